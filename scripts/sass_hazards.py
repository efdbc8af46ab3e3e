"""Finds instructions that no compiled kernel may have, whatever the table of sass.py says.

Follows every path through a kernel, and reports instructions that break these rules:

    products    Between a wgmma and the wait that covers it (WARPGROUP.DEPBAR) no instruction reads or writes its sums,
                or writes the registers of its left factor. ptxas ensures this, but reuses registers as soon as the
                program no longer needs them. If ptxas loses track, only a GPU would show the fault, now and then.
    registers   After setmaxnreg no register beyond the new number is used.
    waiting     A kernel that waits for the kernels before it (griddepcontrol.wait: ACQBULK) touches no global memory
                before that wait.
"""
import re

PRODUCTS = ("HGMMA", "QGMMA")
GLOBAL = re.compile(r"(LD|ST|LDG|STG|LDGSTS|ATOM|ATOMG|RED|REDG|UTMALDG|UTMASTG|UTMAREDG|UBLKCP|UBLKRED)\b")
STORES = {"ST", "STG", "STS", "STSM", "STL", "RED", "REDG", "R2UR", "LDGSTS"}  # the first operand is read
WIDTH = {"64": 2, "128": 4}


def operands_of(text):
    """Splits operands at commas outside of brackets."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text)]


def registers_of(name, text):
    """Returns the set of registers that an instruction reads, and the set that it writes."""
    base, *parts = name.split(".")
    width = next((WIDTH[p] for p in parts if p in WIDTH), 1)
    operands, written = operands_of(text), set()
    while operands and re.fullmatch(r"!?U?P(\d|T)", operands[0]):  # predicates come first
        operands.pop(0)
    target = re.fullmatch(r"R(\d+)(\.\w+)*", operands[0]) if operands and base not in STORES else None
    if target:
        operands.pop(0)
        wide = width if base.startswith("LD") else 2 if "WIDE" in parts or base in ("DADD", "DMUL", "DFMA") else 1
        if base == "LDSM":
            wide = int(parts[-1]) if parts[-1].isdigit() else 1
        written = set(range(int(target[1]), int(target[1]) + wide))
    read = set()
    for operand in operands:
        of_value = 4 if base == "STSM" else width if base in STORES else 1
        for number in re.findall(r"\bR(\d+)\b", operand):
            read |= set(range(int(number), int(number) + (1 if "[" in operand else of_value)))
    return read, written


def product_of(text):
    """Returns the registers of a product's sums, those of its left factor, and whether it ends a group of products.
    text begins after the 64 rows in the name of the instruction, as in HGMMA.64x128x16."""
    shape = re.match(r"x(\d+)x\d+\S*\s+(.*)", text)
    operands = operands_of(shape[2])
    first, left = int(operands[0][1:]), re.fullmatch(r"R(\d+)(\.\w+)*", operands[1])
    return (frozenset(range(first, first + int(shape[1]) // 2)), frozenset(range(int(left[1]), int(left[1]) + 4)) if left else frozenset(),
            "gsb0" in operands)


class Path:
    """The state of a kernel at one place on one path. Has the products of the open group, the groups in flight, the
    limit on registers, and whether the kernel has waited for earlier ones."""
    def __init__(self, open_=(), flying=(), limit=None, waited=False):
        self.open, self.flying, self.limit, self.waited = open_, flying, limit, waited

    def key(self):
        return self.open, self.flying, self.limit, self.waited

    def in_flight(self):
        return [product for group in self.flying for product in group] + list(self.open)

    def take(self, name, text, waits):
        """Updates the state by one instruction. Returns a sentence if the instruction is forbidden, otherwise None.
        waits: True if the kernel waits for earlier kernels."""
        fault = None
        if name.startswith(PRODUCTS):
            sums, left, ends = product_of(text)
            for other, other_left in self.in_flight():
                if (sums & other and sums != other) or left & other or sums & other_left:
                    fault = "a product takes registers of another one in flight"
            used = max(sums | left)
            self.open = tuple(sorted({*self.open, (sums, left)}, key=lambda p: (sorted(p[0]), sorted(p[1]))))
            if ends:
                self.open, self.flying = (), (*self.flying, self.open)[-8:]
        elif name.startswith("WARPGROUP.DEPBAR"):
            pending = int(text.split(",")[1], 16)
            self.flying = self.flying[-pending:] if pending else ()
            return None
        elif name.startswith("USETMAXREG"):
            self.limit = int(operands_of(text)[-1], 16)
            return None
        else:
            read, written = registers_of(name, text)
            for sums, left in self.in_flight():
                if (read | written) & sums:
                    fault = "sums of a product in flight are touched"
                elif written & left:
                    fault = "the left factor of a product in flight is written"
            used = max(read | written, default=-1)
        if self.limit is not None and used >= self.limit:
            fault = f"register {used} of {self.limit} after setmaxnreg"
        if name == "ACQBULK":
            self.waited = True
        elif waits and not self.waited and GLOBAL.match(name):
            fault = "global memory before griddepcontrol.wait"
        return fault


def hazards(code, starts, next_of):
    """Returns one line for each forbidden instruction. code is from sass.functions(); starts and next_of are from
    sass.blocks_of()."""
    waits = any(name == "ACQBULK" for _, name, _ in code)
    if not waits and not any(name.startswith(PRODUCTS + ("USETMAXREG",)) for _, name, _ in code):
        return []
    ends, seen, found = starts[1:] + [len(code)], set(), {}
    ahead = [(0, Path().key())] if starts else []
    while ahead:
        block, key = ahead.pop()
        if (block, key) in seen:
            continue
        seen.add((block, key))
        path = Path(*key)
        for i in range(starts[block], ends[block]):
            fault = path.take(code[i][1], code[i][2], waits)
            if fault:
                found[i] = f"{fault}: {code[i][1]}{' ' if not code[i][1].endswith('.64') else ''}{code[i][2]}".strip()
        ahead += [(after, path.key()) for after in next_of[block]]
    return [found[i] for i in sorted(found)]
