"""Makes the README's measured table from test/results/*.jsonl: no measured line, no figure.

    table.py README.md            rewrites the part between the markers
    table.py --check README.md    fails when it differs
"""
import glob
import json
import os
import sys

BEGIN, END = "<!-- measured: made by test/results/table.py -->", "<!-- end of measured -->"
FOLDER = os.path.dirname(os.path.abspath(__file__))


def lines(name):
    path = os.path.join(FOLDER, name)
    return [json.loads(line) for line in open(path)] if os.path.exists(path) else []


def newest(rows, *keys):
    """The last line of each combination of keys, in order of first appearance."""
    found = {}
    for row in rows:
        found[tuple(row.get(key) for key in keys)] = row
    return list(found.values())


def train_rows():
    for row in newest(lines("bench_train.jsonl"), "what", "dtype"):
        yield (f"{row['what']}, {row['dtype']}", f"{row['tokens_per_s']:.0f} tokens/s, {row['step_ms']:.0f} ms a step",
               f"{100 * row['of_matmul']:.1f} % of {row['matmul']:.0f} GFLOP/s ({row['matmul_is']})", row)


def value_rows():
    for row in newest(lines("bench_values.jsonl"), "what"):
        yield (row["what"], row["value"], row["note"], row)


def comm_rows():
    for row in newest(lines("bench_comm.jsonl"), "op", "ranks", "bytes"):
        if row["bytes"] >= 1 << 20:
            yield (f"{row['op']}, {row['ranks']} ranks, {row['bytes'] >> 20} MiB", f"{row['ring_gbs']:.2f} GB/s bus bandwidth",
                   f"{row['ratio']:.2f} x MPI's own", row)


def table():
    rows = list(train_rows()) + list(value_rows()) + list(comm_rows())
    out = ["| what | measured | against | machine | commit |", "|---|---|---|---|---|"]
    for what, measured, against, row in rows:
        out.append(f"| {what} | {measured} | {against} | {row['machine']} | {row['commit']} |")
    return "\n".join(out)


def main():
    path = sys.argv[-1]
    text = open(path).read()
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    made = f"{head}{BEGIN}\n{table()}\n{END}{tail}"
    if sys.argv[1] == "--check":
        if made != text:
            sys.exit(f"{path} differs from test/results/*.jsonl: run python3 test/results/table.py {path}")
        print(f"{path}'s figures are those of test/results")
    else:
        open(path, "w").write(made)


main()
