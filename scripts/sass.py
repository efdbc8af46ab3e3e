#!/usr/bin/env python3
"""make sass: compares the machine code that nvcc makes of each kernel with the table test/results/sass.tsv.

    sass.py FOLDER TABLE             compares; exit code 1 if a kernel became worse
    sass.py --update FOLDER TABLE    writes the table

FOLDER/sm_ARCH/layers/X.cubin and X.ptxas (output of `ptxas -v`) come from `make sass`. ptxas reports registers, stack,
spills and shared memory. nvdisasm lists the instructions. The script looks for nvdisasm in CUDA's bin folder and in
PATH. Otherwise it installs the PyPI wheel nvidia-cuda-nvdisasm under build/. Without nvdisasm the columns about
instructions stay as they are.

A row of the table is a kernel for one architecture. Its columns:
    mma       instructions of the tensor cores, as HGMMA:24 (wgmma), QGMMA (fp8), HMMA (mma.sync)
    loop      instructions of the hottest loop: the innermost loop with most mma; without mma the longest loop
    mma/l     tensor core instructions in that loop
    shared/l  loads from shared memory in that loop: LDS and LDSM
    global/l  loads from global memory in that loop: LDG, cp.async, TMA

A kernel is worse in these cases. It has a warning C7508 or C7510 (wgmma serialised, setmaxnreg ignored), spills, or a
larger stack. Fewer warps fit on a multiprocessor because of registers. It needs more static shared memory. It no longer
uses tensor cores, or a slower kind of them. Its loop has grown by more than 3 % and 3 instructions, or has more loads
of either kind per mma. A kernel that the table lacks is reported, and only its spills and warnings are judged. Whatever
sass_hazards.py finds is wrong in any kernel.
"""
import glob
import os
import re
import subprocess
import sys

from sass_hazards import hazards

WHEEL, PLACE = "nvidia-cuda-nvdisasm", "build/nvdisasm"
COLUMNS = ["arch", "kernel", "registers", "stack", "spill", "shared", "mma", "loop", "mma/l", "shared/l", "global/l", "warnings"]
FROM_SASS = ["mma", "loop", "mma/l", "shared/l", "global/l"]
KINDS = ["QGMMA", "HGMMA", "HMMA"]  # the quickest first
SHARED, GLOBAL = re.compile(r"LDS(M)?\b"), re.compile(r"LDG(STS)?\b|UTMALDG")
SLOW_GROWTH = 1.03


# --- the disassembler ---------------------------------------------------------------------------------------------------

def disassembler():
    """Returns the path of nvdisasm. If it cannot be found or installed, prints a line with the reason and returns
    None."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    folders = [os.path.join(home, "bin")] + os.environ.get("PATH", "").split(":")
    folders += glob.glob(os.path.join(PLACE, "nvidia", "*", "bin"))
    for folder in folders:
        if os.access(os.path.join(folder, "nvdisasm"), os.X_OK):
            return os.path.join(folder, "nvdisasm")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", PLACE, WHEEL]
    done = subprocess.run(pip, capture_output=True, text=True)
    found = glob.glob(os.path.join(PLACE, "nvidia", "*", "bin", "nvdisasm"))
    if found:
        os.chmod(found[0], 0o755)
        return found[0]
    lines = done.stderr.strip().splitlines()
    print(f"skip instructions: no nvdisasm in CUDA, and no wheel {WHEEL}: {lines[-1] if lines else 'pip said nothing'}")
    return None


# --- what ptxas said -------------------------------------------------------------------------------------------------------

def plain(name):
    """Returns the name of a kernel without return type, arguments and the namespaces that the compiler adds."""
    name = re.sub(r"^void ", "", name)
    name = re.sub(r"(\(anonymous namespace\)|_INTERNAL_\w+|_GLOBAL__N_\w*)::", "", name)
    name = re.sub(r"\((bool|int|DType|\w+)\)(-?\d+)", r"\2", name)  # a template's numbers
    depth = 0
    for i, c in enumerate(name):
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0:
            name = name[:i]
            break
    return name.replace("__nv_bfloat16", "bf16").replace("__half", "half").replace("__nv_fp8_", "").replace(", ", ",").replace(" ", "")


def demangled(names):
    out = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout.splitlines()
    return dict(zip(names, (plain(name) for name in out)))


def resources(path):
    """Returns what `ptxas -v` reports about each kernel, by its mangled name. path: the file with the output of
    ptxas."""
    found, name = {}, None
    for line in open(path):
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            name = match[1]
            found.setdefault(name, {"warnings": set()})
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            if name:
                found[name] |= {"stack": int(match[1]), "spill": int(match[2]) + int(match[3])}
        elif match := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            found[name] |= {"registers": int(match[1]), "shared": int(shared[1]) if shared else 0}
        elif match := re.search(r"\((C75\d\d)\).*'(\w+)'", line):
            found.setdefault(match[2], {"warnings": set()})["warnings"].add(match[1])
    return {name: kernel for name, kernel in found.items() if "registers" in kernel}


# --- instructions and loops ----------------------------------------------------------------------------------------------

INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)\s*([^;]*);")


def functions(text):
    """Yields (name, code, labels) for each kernel. code: its instructions as (predicated, name, operands). labels:
    the index in code of each label."""
    code, labels = None, {}
    for line in text.splitlines():
        if match := re.match(r"\.text\.(\w+):", line):
            if code is not None:
                yield name, code, labels
            name, code, labels = match[1], [], {}
        elif code is not None and (match := re.match(r"(\.L_\w+):", line)):
            labels[match[1]] = len(code)
        elif code is not None and (match := INSTRUCTION.search(line)):
            code.append((bool(match[1]), match[2], match[3]))
    if code is not None:
        yield name, code, labels


def blocks_of(code, labels):
    """Returns two lists of the basic blocks, in order: the index of the first instruction of each, and its
    successors."""
    sync, jumps = {}, {}
    for i, (conditional, name, operands) in enumerate(code):
        target = re.search(r"`\((\.L_\w+)\)", operands)
        base = name.split(".")[0]
        to = []
        if base == "BSSY":
            sync[operands.split(",")[0].strip()] = labels.get(target[1]) if target else None
            continue
        if base == "BRA" and target:
            to = [labels[target[1]]] if target[1] in labels else []
            falls = conditional or ".DIV" in name or re.match(r"!?U?P\d|!?UP", operands.strip()) or name.startswith("BRA.U")
        elif base == "BSYNC":
            known = sync.get(operands.strip())
            to, falls = ([known] if known is not None else []), conditional
        elif base in ("EXIT", "RET", "BRX", "JMP", "JMX"):
            falls = conditional
        else:
            continue
        jumps[i] = [t for t in to if t is not None] + ([i + 1] if falls else [])
    starts = sorted({0} | {i + 1 for i in jumps} | {t for to in jumps.values() for t in to} | set(labels.values()))
    starts = [s for s in starts if s < len(code)]
    number = {s: n for n, s in enumerate(starts)}
    next_of = []
    for n, s in enumerate(starts):
        end = starts[n + 1] if n + 1 < len(starts) else len(code)
        to = jumps.get(end - 1, [end])
        next_of.append([number[t] for t in to if t in number])
    return starts, next_of


def natural_loops(next_of):
    """Returns a set of blocks for each loop, its body. Loops with the same head are joined. next_of: successors of
    each block."""
    count = len(next_of)
    before = [[] for _ in range(count)]
    for n, to in enumerate(next_of):
        for t in to:
            before[t].append(n)
    order, seen, stack = [], {0}, [(0, iter(next_of[0]))]
    while stack:  # walks the graph depth first; `order` gets a block after all its successors
        n, to = stack[-1]
        t = next((t for t in to if t not in seen), None)
        if t is None:
            order.append(n)
            stack.pop()
        else:
            seen.add(t)
            stack.append((t, iter(next_of[t])))
    order.reverse()
    rank = {n: i for i, n in enumerate(order)}
    immediate = {0: 0}  # dominator tree, computed as in Cooper, Harvey, Kennedy: "A simple, fast dominance algorithm"

    def meet(a, b):
        while a != b:
            while rank[a] > rank[b]:
                a = immediate[a]
            while rank[b] > rank[a]:
                b = immediate[b]
        return a
    changed = True
    while changed:
        changed = False
        for n in order[1:]:
            known = [p for p in before[n] if p in immediate]
            best = known[0]
            for p in known[1:]:
                best = meet(best, p)
            if immediate.get(n) != best:
                immediate[n], changed = best, True

    def dominates(a, b):
        while rank[b] > rank[a]:
            b = immediate[b]
        return a == b
    loops = {}
    for n in order:
        for head in next_of[n]:
            if not dominates(head, n):
                continue
            body, wanted = loops.setdefault(head, {head}), [n]
            while wanted:
                b = wanted.pop()
                if b not in body:
                    body.add(b)
                    wanted += [p for p in before[b] if p in rank]
    return list(loops.values())


def kind_of(name):
    base = name.split(".")[0]
    return base if base in KINDS else None


def instructions(code, labels):
    """Returns the columns of the table that are computed from the instructions of a kernel."""
    starts, next_of = blocks_of(code, labels)
    ends = starts[1:] + [len(code)]
    block = [[name for _, name, _ in code[s:e]] for s, e in zip(starts, ends)]
    counts = {}
    for _, name, _ in code:
        if kind := kind_of(name):
            counts[kind] = counts.get(kind, 0) + 1
    loops = []
    for body in natural_loops(next_of):
        names = [name for b in body for name in block[b]]
        loops.append((body, names, sum(kind_of(name) is not None for name in names)))
    with_mma = [l for l in loops if l[2]]
    innermost = [l for l in with_mma if not any(o[0] < l[0] for o in with_mma)]
    hot = max(innermost, key=lambda l: (l[2], len(l[1]))) if innermost else max(loops, key=lambda l: len(l[1]), default=None)
    names = hot[1] if hot else []
    return {"mma": " ".join(f"{k}:{counts[k]}" for k in KINDS if k in counts) or "-", "loop": len(names), "mma/l": hot[2] if hot else 0,
            "shared/l": sum(bool(SHARED.match(n)) for n in names), "global/l": sum(bool(GLOBAL.match(n)) for n in names)}


# --- the table -----------------------------------------------------------------------------------------------------------

def measured(folder):
    """Returns the rows of all cubins, by (arch, kernel), and whether nvdisasm could list their instructions."""
    tool, rows = disassembler(), {}
    for said in sorted(glob.glob(f"{folder}/sm_*/**/*.ptxas", recursive=True)):
        arch = re.search(r"/sm_(\w+)/", said)[1]
        found, cubin = resources(said), said.replace(".ptxas", ".cubin")
        if not found or not os.path.exists(re.sub(r".*/sm_\w+/", "", cubin).replace(".cubin", ".cu")):
            continue  # skipped, because the file has no kernel, or its source no longer exists
        names = demangled(sorted(found))
        code = {}
        if tool:
            text = subprocess.run([tool, "-c", cubin], capture_output=True, text=True, check=True).stdout
            code = {name: instructions(lines, labels) | {"hazards": hazards(lines, *blocks_of(lines, labels))}
                    for name, lines, labels in functions(text)}
        for name, kernel in found.items():
            row = {"arch": arch, "kernel": f"{os.path.basename(cubin)[:-6]}:{names[name]}", **kernel, **code.get(name, {})}
            row["warnings"] = " ".join(sorted(kernel["warnings"])) or "-"
            rows[arch, row["kernel"]] = row
    return rows, bool(tool)


def read_table(path):
    if not os.path.exists(path):
        return {}
    lines = [line.rstrip("\n").split("\t") for line in open(path) if not line.startswith("#")]
    rows = [dict(zip(lines[0], line)) for line in lines[1:]]
    for row in rows:
        row |= {c: int(row[c]) for c in COLUMNS if row[c].isdigit() and c != "arch"}
    return {(row["arch"], row["kernel"]): row for row in rows}


def write_table(path, rows, before, has_code):
    with open(path, "w") as out:
        out.write("# Made by `make sass UPDATE=1`; scripts/sass.py says what the columns are.\n" + "\t".join(COLUMNS) + "\n")
        for key in sorted(rows):
            row = rows[key]
            if not has_code:
                row |= {c: before.get(key, {}).get(c, "?") for c in FROM_SASS}
            out.write("\t".join(str(row[c]) for c in COLUMNS) + "\n")


def warps(registers):
    """Returns how many warps fit on a quarter of a multiprocessor, which has 16,384 registers. A thread gets its
    registers in groups of eight."""
    return min(16, 16384 // (32 * (max(registers, 1) + 7 & ~7)))


def quickest(mma):
    return next((i for i, kind in enumerate(KINDS) if kind in str(mma)), len(KINDS))


def per_mma(row, column):
    return row[column] / row["mma/l"] if row["mma/l"] else 0.0


def alone(row):
    """Yields faults that no kernel may have, whatever the table says: spills, and warnings of ptxas."""
    if row["spill"]:
        yield f"spills {row['spill']} bytes, of 0"
    if row["warnings"] != "-":
        yield f"ptxas warns {row['warnings']}"


def worse(row, old, has_code):
    for column in ["stack", "shared"]:
        if row[column] > old[column]:
            yield f"{column} memory {old[column]} -> {row[column]} bytes"
    if warps(row["registers"]) < warps(old["registers"]):
        yield f"registers {old['registers']} -> {row['registers']}: {4 * warps(old['registers'])} -> {4 * warps(row['registers'])} warps"
    if not has_code or old["loop"] == "?":
        return
    if quickest(row["mma"]) > quickest(old["mma"]):
        yield f"tensor cores {old['mma']} -> {row['mma']}"
    if row["loop"] > SLOW_GROWTH * old["loop"] and row["loop"] > old["loop"] + 3 and row["mma/l"] <= old["mma/l"]:
        yield f"instructions of the loop {old['loop']} -> {row['loop']}"
    for column, what in [("shared/l", "shared"), ("global/l", "global")]:
        if old["mma/l"] and row["mma/l"] and per_mma(row, column) > SLOW_GROWTH * per_mma(old, column):
            yield f"{what} loads of the loop {old[column]} for {old['mma/l']} products -> {row[column]} for {row['mma/l']}"


def main(arguments):
    update = "--update" in arguments
    folder, table = [a for a in arguments if not a.startswith("--")]
    rows, has_code = measured(folder)
    if not rows:
        sys.exit(f"sass: no kernels under {folder}")
    before, faults, fresh = read_table(table), 0, []
    for key, row in sorted(rows.items()):
        old = before.get(key)
        said = [f for f in alone(row)]
        recorded = old and row["spill"] <= old["spill"] and row["warnings"] in ("-", old["warnings"])
        if said and recorded:
            print(f"exception sm_{key[0]} {key[1]}: {'; '.join(said)}: the table has it so")
            said = []
        said += row.get("hazards", [])
        if old and not update:
            said += worse(row, old, has_code)
        fresh += [] if old else [key]
        for fault in said:
            faults += not update
            print(f"{'note' if update else 'not ok'} sm_{key[0]} {key[1]}: {fault}")
    archs = sorted({arch for arch, _ in rows})
    gone = [key for key in before if key not in rows and key[0] in archs]
    if update:
        write_table(table, {**{k: r for k, r in before.items() if k[0] not in archs}, **rows}, before, has_code)
        print(f"{table}: {len(rows)} kernels of {', '.join('sm_' + a for a in archs)}")
        return 0
    for keys, what in [(fresh, "not in the table"), (gone, "in the table alone")]:
        if keys:
            print(f"note {len(keys)} kernels are {what}, such as sm_{keys[0][0]} {keys[0][1]}: make sass UPDATE=1")
    if faults == 0:
        print(f"{len(rows)} kernels of {', '.join('sm_' + a for a in archs)}: none is worse than in {table}"
              + ("" if has_code else " (instructions were not looked at)"))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
