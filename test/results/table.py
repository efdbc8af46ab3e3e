"""Makes the README's measured table from test/results/*.jsonl: no measured line, no figure.

    table.py README.md            rewrites the part between the markers
    table.py --check README.md    fails when it differs
"""
import glob
import json
import os
import sys

import soak

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


SIZES = ("124m", "355m", "774m", "1558m")
KERNELS = ("layernorm_forward", "residual_layernorm_forward", "layernorm_backward", "classifier_forward_backward", "adamw_update", "embedding_forward",
           "embedding_backward", "attention_forward", "attention_backward", "linear_forward:qkv", "linear_backward:qkv", "linear_gelu_forward:fc",
           "linear_gelu_backward:fcproj", "head_forward", "head_backward")


def gpu_table():
    """What `make bench` found on a GPU; a row without a measurement says so."""
    found = {(row.get("program"), row.get("size") or row.get("op")): row for row in lines("bench_gpu.jsonl")}
    probe = {row["probe"]: row for row in lines("bench_gpu.jsonl") if "probe" in row}
    out = ["| on a GPU | measured | against | GPU, driver | commit |", "|---|---|---|---|---|"]

    def add(what, row, measured, against=""):
        where = f"{row['gpu']}, {row['driver']} | {row['commit']}" if row else " | "
        out.append(f"| {what} | {measured if row else 'not measured'} | {against if row else ''} | {where} |")

    for size in SIZES:
        ours, peer = found.get(("train_gpt", size)), found.get(("PyTorch", size))
        against = measured = ""
        if ours:
            measured = f"{ours['tokens_per_s']:,.0f} tokens/s, B={ours['B']}, {ours['memory_mib']:,.0f} MiB (planned {ours['planned_mib']:,.0f})"
            rates = f"{ours['tflops_causal']:.0f} TFLOP/s by 6P+6LCT, {ours['tflops_full']:.0f} by 6P+12LCT"
            if "mfu_causal" in ours:
                rates += f": MFU {100 * ours['mfu_causal']:.1f} and {100 * ours['mfu_full']:.1f} % of {ours['peak_tflops']:.0f}"
            against = f"{rates}; {100 * ours['of_gemm_causal']:.1f} % of the {ours['matmul_8192'] * 1e-3:.0f} TFLOP/s product at 8192"
            if "sm_mhz" in ours:
                against += f"; {ours['sm_mhz']:.0f} MHz, {ours['power_w']:.0f} W"
        add(f"GPT-2 {size}, T=1024, bf16", ours, measured, against)
        if peer:
            measured = f"{peer['tokens_per_s']:,.0f} tokens/s, B={peer['B']}"
            against = f"train_gpt is {ours['tokens_per_s'] / peer['tokens_per_s']:.2f} x as fast" if ours and ours["gpu"] == peer["gpu"] else ""
        add(f"the same in PyTorch{' ' + peer['torch'] if peer else ''}, compiled, bf16 autocast, fused AdamW", peer, measured, against)
    row = found.get(("run", "124m"))
    add("the program itself, GPT-2 124m", row, f"{row['tokens_per_s']:,.0f} tokens/s, {row['memory_mib']:,.0f} MiB" if row else "",
        f"plan says {row['planned_mib']:,.0f} MiB" if row else "")
    for op in KERNELS:
        row = found.get(("bench_kernels", op))
        measured = against = ""
        if row and row["gflop"]:
            measured, against = f"{row['gflops'] * 1e-3:.0f} TFLOP/s, {row['ms']:.3f} ms", f"{100 * row['of_gemm']:.0f} % of the product at 8192 ({probe['gemm']['gflops'] * 1e-3:.0f} TFLOP/s)"
        elif row:
            measured, against = f"{row['gbs']:,.0f} GB/s, {row['ms']:.3f} ms", f"{100 * row['of_copy']:.0f} % of a copy ({probe['copy']['gbs']:,.0f} GB/s)"
        add(f"{op.replace(':', ', ')}, 124m, B=64", row, measured, against)
    return "\n".join(out)


def soak_table():
    """What `make soak` has reached so far."""
    out = ["| `make soak` | so far | goal | failed |", "|---|---|---|---|"]
    for name, done, failed, goal, what in soak.totals():
        out.append(f"| {name} | {done:,} | {goal:,} {what} | {failed} |")
    return "\n".join(out)


def main():
    path = sys.argv[-1]
    text = open(path).read()
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    made = f"{head}{BEGIN}\n{table()}\n\n{gpu_table()}\n\n{soak_table()}\n{END}{tail}"
    if sys.argv[1] == "--check":
        if made != text:
            sys.exit(f"{path} differs from test/results/*.jsonl: run python3 test/results/table.py {path}")
        print(f"{path}'s figures are those of test/results")
    else:
        open(path, "w").write(made)


main()
