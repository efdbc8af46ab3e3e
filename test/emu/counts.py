"""Compares what the emulator counted in the op tests (EMU_COUNTS) with the table test/results/emu_counts.tsv.

    counts.py COUNTED TABLE             prints "ok KERNEL: ..." or "not ok KERNEL: what became worse"
    counts.py --update COUNTED TABLE    writes the table

`conflicts` of a kernel: passes of its instructions on shared memory, divided by the least possible number; 1 means no
bank conflicts. `again`: the bytes of the sectors of global memory that it requested, divided by the bytes that it
touched; 1 means each byte once. `traffic` of an operation: the bytes that its kernels touched, divided by those of its
contract (layers/contracts.h), which are also its "Bound:" and the plan's. Op tests are small, so partial sums and half
sectors count more in them than in training. A value more than 10 % above the table is worse. What the table lacks is
printed.
"""
import os
import sys

COLUMNS = {"kernel": ["conflicts", "again"], "operation": ["traffic"]}
# A kernel or operation is reported as worse if one of its ratios is more than this factor times the one in the table.
# Ratios are over sums of all shapes that the tests use, so a new test case changes them.
WORSE = 1.1


def counted(path):
    """Returns the ratios of each kernel and operation, from sums over all tests."""
    sums = {}
    for line in open(path):
        what, name, *numbers = line.rstrip("\n").split("\t")
        old = sums.setdefault((what, name), [0.0] * len(numbers))
        sums[what, name] = [a + float(b) for a, b in zip(old, numbers)]
    rows = {}
    for (what, name), n in sums.items():
        if name.startswith("cublas") or name in ("matmul", "matmul, set", "matmul, added"):
            continue  # a kernel of a library: the emulator's replacement shows nothing about the real one
        if what == "kernel":
            _, passes, least, asked, moved = n
            rows[what, name] = [passes / least if least else 1.0, asked / moved if moved else 1.0]
        elif n[2] and n[1]:  # an operation without bytes, such as a fill, which runs no kernel in the emulator, is left out
            rows[what, name] = [n[2] / n[1]]
    return rows


def read_table(path):
    rows = {}
    for line in open(path) if os.path.exists(path) else []:
        if not line.startswith("#"):
            what, name, *ratios = line.rstrip("\n").split("\t")
            rows[what, name] = [float(r) for r in ratios]
    return rows


def main(arguments):
    update = arguments[0] == "--update"
    path, table = arguments[-2:]
    rows, before = counted(path), read_table(table)
    if len(rows) < 20:
        print(f"not ok counts: only {len(rows)} kernels and operations were counted")
        return
    if update:
        with open(table, "w") as out:
            out.write("# Made by `UPDATE=1 scripts/test.sh test_kernels`. kernel, conflicts, again; operation, traffic: test/emu/counts.py\n")
            for (what, name), ratios in sorted(rows.items()):
                out.write("\t".join([what, name] + [f"{r:.3f}" for r in ratios]) + "\n")
        print(f"ok counts: {table} has {len(rows)} rows")
        return
    fresh, worse = [], 0
    for key, ratios in sorted(rows.items()):
        if key not in before:
            fresh.append(key[1])
            continue
        for column, ratio, old in zip(COLUMNS[key[0]], ratios, before[key]):
            if ratio > WORSE * old + 0.001:
                print(f"not ok {key[0]} {key[1]}: {column} {old:.3f} -> {ratio:.3f}")
                worse += 1
    if fresh:
        print(f"# {len(fresh)} kernels and operations are not in {table}, such as {fresh[0]}: UPDATE=1 scripts/test.sh test_kernels")
    if not worse:
        print(f"ok counts: bank conflicts and bytes of {len(rows)} kernels and operations are as in {table}")


main(sys.argv[1:])
