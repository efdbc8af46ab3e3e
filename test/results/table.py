"""Makes the tables of measured results from test/results/*.jsonl, between the markers of README.md (at most ten rows)
and docs/measured.md (all rows). Each row comes from a line of these files.

    table.py              rewrites both pages
    table.py --check      fails if either page differs
    table.py --commits    fails if a line of test/results/*.jsonl, or a row of a page, has a commit that is not an
                          ancestor of HEAD
"""
import bisect
import glob
import json
import os
import re
import subprocess
import sys
import textwrap

import soak

BEGIN, END = "<!-- measured: made by test/results/table.py -->", "<!-- end of measured -->"
FOLDER = os.path.dirname(os.path.abspath(__file__))


# The machine of the present measurements. Results of other machines are in an appendix of docs/measured.md.
AT_HAND = "AMD EPYC, 2 cores"


def lines(name):
    path = os.path.join(FOLDER, name)
    return [json.loads(line) for line in open(path)] if os.path.exists(path) else []


def newest(rows, *keys):
    """Returns the last line of each combination of values of the keys, in order of first appearance."""
    found = {}
    for row in rows:
        found[tuple(row.get(key) for key in keys)] = row
    return list(found.values())


def gpu_lines():
    return lines("bench_gpu.jsonl")


def square(matmul_is):
    return matmul_is.replace(" at 1024", " (1024 x 1024)")


def train_rows():
    for row in newest(lines("bench_train.jsonl"), "what", "dtype"):
        yield (f"{row['what']}, {row['dtype']}", f"{row['tokens_per_s']:.0f} tokens/s, {row['step_ms']:.0f} ms a step",
               f"{100 * row['of_matmul']:.1f} % of the {row['matmul']:.0f} GFLOP/s of {square(row['matmul_is'])}", row)


def peer_rows():
    for row in newest(lines("bench_peer.jsonl"), "what", "dtype", "machine"):
        yield (f"{row['what']}, {row['dtype']}, {row['threads']} threads, alternating with PyTorch {row['torch']}", f"{row['ours']:.0f} tokens/s",
               f"PyTorch: {row['compiled']:.0f} compiled, {row['eager']:.0f} eager; {row['ours'] / row['compiled']:.2f} and "
               f"{row['ours'] / row['eager']:.2f} x as fast; medians of {row['rounds']}", row)


def value_rows():
    for row in newest(lines("bench_values.jsonl"), "what"):
        yield (row["what"], row["value"], row["note"], row)


def kinds_rows():
    for row in newest(lines("bench_kinds.jsonl"), "kind", "dtype", "T"):
        yield (f"{row['kind']} of {row['parameters'] / 1e6:.0f} M parameters, T={row['T']}, {row['B']} sequences, {row['dtype']}: "
               "its share of the matrix rate",
               f"{100 * row['beside_gpt2']:.1f} % of GPT-2 124M's, {row['step_ms']:.0f} ms a step",
               f"GPT-2's {row['gpt2_step_ms']:.0f} ms, measured alternately, {row['threads']} thread(s), by the {row['clock']}'s clock", row)


def documents_rows():
    for row in newest(lines("bench_documents.jsonl"), "dtype", "T", "layers"):
        for key, what in (("step", f"a step of GPT-2 124M's width, {row['layers']} layer(s)"), ("forward", "attention forward"),
                          ("backward", "attention backward")):
            clocks = [(row[f"{key}_one{clock}"], row[f"{key}_four{clock}"]) for clock in ("_processor", "")]
            yield (f"data.document_mask, {what}, T={row['T']}, {row['dtype']}",
                   f"{clocks[0][0]:.3f} x the processor time without it, where each sequence is one document",
                   f"documents of 3/8, 1/8, 1/4, 1/4 of a sequence: {clocks[0][1]:.3f} x; by the wall's clock {clocks[1][0]:.2f} x and "
                   f"{clocks[1][1]:.2f} x, at a load of {row['load']}", row)


def ops_rows():
    found = {}
    for row in lines("bench_ops.jsonl"):
        found.setdefault((row["op"], row["dtype"], row["isa"]), []).append(row)
    for rows in found.values():
        row, before = rows[-1], rows[-2] if len(rows) > 1 else None
        yield (f"{row['op']}, 1024 rows of 768 channels, {row['dtype']}, {row['isa']}",
               f"{row['ms']:.3f} ms of one core, {row['gbs']:.1f} GB/s",
               f"{row['of_same_bytes']:.2f} of the speed of a copy that moves as many bytes"
               + (f"; at {before['commit']} {before['ms']:.3f} ms" if before else ""), row)


def presets_rows():
    for row in newest(lines("loss_presets.jsonl"), "name"):
        yield (f"held-out loss of {row['first']}, {row['first_steps']} steps",
               f"{row['first_loss']:.4f}, {row['below_percent']:.1f} % lower",
               f"{row['second']} in the same time, {row['second_steps']} steps: {row['second_loss']:.4f}; "
               f"a step takes {row['time_ratio']:.3f} of its time "
               f"({row['threads']} thread(s), by the {row['clock']}'s clock)", row)


def fp8_rows():
    for row in newest(lines("loss_fp8.jsonl"), "steps"):
        fp32 = f"; both evaluated in fp32 {row['above_percent_in_fp32']:+.2f} %" if "above_percent_in_fp32" in row else ""
        yield (f"held-out loss of configs/demo-gpt2.json with precision=fp8, {row['steps']} steps", f"{row['fp8_loss']:.4f}, {row['above_percent']:+.2f} % above that of bf16",
               f"bf16: {row['bf16_loss']:.4f}{fp32}; the last 50 steps' training loss {row['train_above_percent']:+.2f} %; each step {row['vanished_a_step']} elements "
               f"vanish and {row['saturated_a_step']} saturate, of {row.get('cast_a_step', 22e6) / 1e6:.0f} million", row)


def comm_rows():
    for row in newest(lines("bench_comm.jsonl"), "op", "ranks", "bytes"):
        if row["bytes"] >= 1 << 20:
            yield (f"{row['op']}, {row['ranks']} ranks, {row['bytes'] >> 20} MiB", f"{row['ring_gbs']:.2f} GB/s bus bandwidth",
                   f"{row['ratio']:.2f} x MPI's own", row)


def grid_rows():
    for row in newest(lines("bench_grids.jsonl"), "grid"):
        yield (f"step of a grid of two ranks, {row['grid'].replace('parallel.', '')}, fp32", f"{row['measured_ms']:.0f} ms",
               f"{row['simulated_ms']:.0f} ms simulated (plan cluster=here): x {row['ratio']:.2f}", row)


def islands_rows():
    for row in newest(lines("islands.jsonl"), "what"):
        if "waits_share" in row:
            yield (f"waits of {row['what']}, over {row['link']}; configs/demo-gpt2.json",
                   f"{100 * row['waits_share']:.1f} % of the time", f"{row['steps_per_s']:.2f} steps/s", row)
            continue
        if "wait_ms" in row:
            yield (f"the end of a round of DiLoCo, {row['what']}, over {row['link']}; configs/demo-gpt2.json",
                   f"{row['wait_ms'] / 1e3:.2f} s", "training waits", row)
            continue
        yield (f"step rate of {row['what']}, over {row['link']}; configs/demo-gpt2.json", f"{100 * row['ratio']:.1f} %",
               f"of the speed without exchange: {row['steps_per_s']:.2f} of {row['alone_steps_per_s']:.2f} steps/s", row)


def memory_rows():
    for row in newest(lines("memory_copies.jsonl"), "mbytes"):
        yield (f"training waits for a copy of {row['mbytes']} MB of its state in memory", f"{row['wait_ms']:.1f} ms, {row['ratio']:.2f} of a memcpy",
               f"memcpy of as many bytes: {row['memcpy_ms']:.1f} ms", row)


def islands_loss_rows():
    for row in newest(lines("islands_loss.jsonl"), "name", "tokens"):
        how = f"outer.send={row['send']} outer.wait={row['wait']} outer.every={row['H']}"
        if row["send"] == "deltas":
            how += f" outer.learning_rate={row['rate']} outer.momentum={row['momentum']}"
        curve = f"; at steps {row['losses']}, one job's {row['alone_losses']}" if "losses" in row else ""
        yield (f"held-out loss of configs/demo-gpt2.json by {row['islands']} islands, {row['name']}: {how}",
               f"{row['loss']:.4f}, {row['above_percent']:+.1f} %",
               f"one job of {row['tokens']:,} tokens: {row['alone']:.4f}{curve}", row)


def table(at_hand):
    """Returns the table of results of the present machine (at_hand true), or of all others."""
    out = ["| what | measured | compared with | machine | date | commit |", "|---|---|---|---|---|---|"]
    parts = (peer_rows, train_rows, kinds_rows, documents_rows, ops_rows, presets_rows, fp8_rows, value_rows, comm_rows, grid_rows, islands_rows,
             memory_rows, islands_loss_rows)
    for what, measured, against, row in (row for part in parts for row in part()):
        if (row["machine"] == AT_HAND) == at_hand:
            out.append(f"| {what} | {measured} | {against} | {row['machine']} | {row['date']} | {row['commit']} |")
    return "\n".join(out)


SIZES = ("124m", "355m", "774m", "1558m")
KERNELS = ("layernorm_forward", "residual_layernorm_forward", "layernorm_backward", "classifier_forward_backward", "adamw_update", "embedding_forward",
           "embedding_backward", "attention_forward", "attention_backward", "linear_forward:qkv", "linear_backward:qkv", "linear_activation_forward:fc",
           "linear_activation_backward:fcproj", "head_forward", "head_backward")


def gpu_found():
    return {(row.get("program"), row.get("size") or row.get("op")): row for row in gpu_lines()}


def gpu_rates(ours):
    rates = f"{ours['tflops_causal']:.0f} TFLOP/s by 6P+6LCT, {ours['tflops_full']:.0f} by 6P+12LCT"
    if "mfu_causal" in ours:
        rates += f": MFU {100 * ours['mfu_causal']:.1f} and {100 * ours['mfu_full']:.1f} % of {ours['peak_tflops']:.0f}"
    rates += f"; {100 * ours['of_gemm_causal']:.1f} % of the {ours['matmul_8192'] * 1e-3:.0f} TFLOP/s product at 8192"
    return rates + (f"; {ours['sm_mhz']:.0f} MHz, {ours['power_w']:.0f} W" if "sm_mhz" in ours else "")


def gpu_model_rows():
    """Yields (subject, measured, against, line) for whole models on a GPU; line is None if not measured."""
    found = gpu_found()
    for size in SIZES:
        ours, peer = found.get(("train_gpt", size)), found.get(("PyTorch", size))
        yield (f"GPT-2 {size}, T=1024, bf16",
               ours and f"{ours['tokens_per_s']:,.0f} tokens/s, B={ours['B']}, {ours['memory_mib']:,.0f} MiB (planned {ours['planned_mib']:,.0f})",
               ours and gpu_rates(ours), ours)
        same = ours and peer and ours["gpu"] == peer["gpu"]
        yield (f"GPT-2 {size} in PyTorch{' ' + peer['torch'] if peer else ''}, compiled, bf16 autocast, fused AdamW",
               peer and f"{peer['tokens_per_s']:,.0f} tokens/s, B={peer['B']}",
               f"train_gpt is {ours['tokens_per_s'] / peer['tokens_per_s']:.2f} x as fast" if same else "", peer)
    row = found.get(("run", "124m"))
    yield ("GPT-2 124m in ./train_gpt", row and f"{row['tokens_per_s']:,.0f} tokens/s, {row['memory_mib']:,.0f} MiB of GPU memory",
           row and f"`plan` says {row['planned_mib']:,.0f} MiB", row)


def gpu_kernel_rows():
    found, probe = gpu_found(), {row["probe"]: row for row in gpu_lines() if "probe" in row}
    for op in KERNELS:
        row, measured, against = found.get(("bench_kernels", op)), "", ""
        if row and row["gflop"]:
            measured = f"{row['gflops'] * 1e-3:.0f} TFLOP/s, {row['ms']:.3f} ms"
            against = f"{100 * row['of_gemm']:.0f} % of the product at 8192 ({probe['gemm']['gflops'] * 1e-3:.0f} TFLOP/s)"
        elif row:
            measured, against = f"{row['gbs']:,.0f} GB/s, {row['ms']:.3f} ms", f"{100 * row['of_copy']:.0f} % of a copy ({probe['copy']['gbs']:,.0f} GB/s)"
        yield (f"{op.replace(':', ', ')}, 124m, B=64", measured, against, row)


def gpu_table():
    """Returns the table of results of `make bench` on a GPU, then the names of those not measured."""
    every = list(gpu_model_rows()) + list(gpu_kernel_rows())
    out = ["| on a GPU | measured | compared with | GPU, driver | date | commit |", "|---|---|---|---|---|---|"]
    for what, measured, against, row in every:
        if row:
            out.append(f"| {what} | {measured} | {against} | {row['gpu']}, {row['driver']} | {row.get('date', '')} | {row['commit']} |")
    missing = [what for what, _, _, row in every if not row]
    return "\n".join(out) + ("\n\nNot measured yet: " + "; ".join(missing) + "." if missing else "")


# --- the front page ---------------------------------------------------------------------------------------------------------------------

ROWS, GPU_ROWS, COLUMNS = 10, 6, 120
# Other results for the front page: how the field `what` of a result begins, and the words for it on the page.
FRONT = [("peak memory of 124M training, fp32", "peak memory of 124M training, fp32"),
         ("exec to the demo's step 1", "from start to step 1 of the demo"),
         ("training waits for a checkpoint", "training waits for a checkpoint"),
         ("a step with parallel.deterministic, 10 M parameters, 4 micro-batches of 512 tokens, ranks: 2", "a step with parallel.deterministic, 2 ranks"),
         ("reduce-scatter, 4 ranks, 64 MiB", "ring reduce-scatter, 4 ranks, 64 MiB"),
         ("all-gather, 4 ranks, 64 MiB", "ring all-gather, 4 ranks, 64 MiB")]


def front_rows():
    for what, measured, against, row in [found for found in gpu_model_rows() if found[3]][:GPU_ROWS]:
        if row["program"] == "train_gpt":
            against = f"MFU {100 * row['mfu_causal']:.1f} %" if "mfu_causal" in row else ""
        yield (what.replace(", compiled, bf16 autocast, fused AdamW", ", bf16"), measured.split(" (")[0], against, row, row["gpu"])
    for row in newest(lines("bench_peer.jsonl"), "what", "dtype"):
        yield (f"{row['what']}, {row['dtype']}", f"{row['ours']:.0f} tokens/s",
               f"PyTorch {row['torch'].split('+')[0]}: {row['compiled']:.0f} compiled, {row['eager']:.0f} eager", row, row["machine"])
    for row in newest(lines("bench_train.jsonl"), "what", "dtype"):
        yield (f"{row['what']}, {row['dtype']}", f"{row['tokens_per_s']:.0f} tokens/s",
               f"{100 * row['of_matmul']:.0f} % of {square(row['matmul_is'].split(';')[0])}, {row['matmul']:.0f} GFLOP/s", row, row["machine"])
    others = list(value_rows()) + list(comm_rows())
    for begin, name in FRONT:
        for what, measured, against, row in others:
            if what.startswith(begin):
                yield (name, measured, against, row, row["machine"])


def front_table():
    """Returns the table of the front page: at most ROWS results, each within COLUMNS, and a sentence that names the
    numbered machines."""
    machines, out = [], ["| what | measured | for comparison | machine | commit |", "|---|---|---|---|---|"]
    for what, measured, against, row, machine in list(front_rows())[:ROWS]:
        if machine not in machines:
            machines.append(machine)
        line = f"| {what} | {measured} | {against} | {machines.index(machine) + 1} | {row['commit']} |"
        if len(line) > COLUMNS:
            sys.exit(f"a row of the front page is longer than {COLUMNS} columns: {line}")
        out.append(line)
    names = "; ".join(f"{i + 1} is {machine}" for i, machine in enumerate(machines))
    out += ["", *textwrap.wrap(f'In the column "machine" of this table {names}.', COLUMNS)]
    return "\n".join(out)


def soak_table():
    """Returns the table of the results of `make soak` so far."""
    out = ["Each part of `make soak` repeats one kind of trial, with random details. `test/soak/PART.sh` describes the trial.",
           "", "| part of `make soak` | what it tries | done so far | goal | failed trials |", "|---|---|---|---|---|"]
    for name, done, failed, goal, what in soak.totals():
        with open(os.path.join(FOLDER, "../soak", f"{name}.sh"), encoding="utf-8") as file:
            head = " ".join(line[2:].strip() for line in file if line.startswith("# "))
        out.append(f"| {name} | {re.split(r'[.:](?: |$)', head)[0]} | {done:,} | {goal:,} {what} | {failed} |")
    return "\n".join(out)


def summary():
    """Returns the rows of the front page as sentences that can be read without the head of the table."""
    lines = (f"- {what}: {measured}; {against}. {machine}, commit {row['commit']}." for what, measured, against, row, machine in list(front_rows())[:ROWS])
    lines = (re.sub(r"\bT=(\d+)", r"\1 tokens a sequence", re.sub(r"\bB=(\d+)", r"\1 sequences a step", line)) for line in lines)
    lines = (re.sub(r"(\d+ %) of (oneDNN .*), (\d+ GFLOP/s)\.", r"\1 of the \3 that matrix products by \2 reach there.", line) for line in lines)
    return "\n".join(re.sub(r"^- GPT-2 ", "- training of GPT-2 ", line) for line in lines)


APPENDIX = f"""## Appendix: machines that are not at hand

Nobody can repeat these rows today, because the project no longer has their machines. Each stays until its figure is
measured again on {AT_HAND}."""


def page():
    return (f"## In short\n\n{summary()}\n\n## All rows\n\n{table(True)}\n\n{gpu_table()}\n\n{soak_table()}\n\n{APPENDIX}\n\n{table(False)}")


def check_commits():
    """Fails if a result names a commit that is not in this branch. Only at a commit that a clone has can a result be
    measured again."""
    known = sorted(subprocess.run(["git", "rev-list", "HEAD"], check=True, capture_output=True, text=True, cwd=FOLDER).stdout.split())
    seen, bad = 0, []

    def look(place, commit):
        nonlocal seen
        seen += 1
        at = bisect.bisect_left(known, commit)
        if not re.fullmatch("[0-9a-f]{7,40}", commit) or at == len(known) or not known[at].startswith(commit):
            bad.append(f"{place}: {commit or 'no commit'} is not an ancestor of HEAD: measure it again at a commit of this branch, or remove it")

    for path in sorted(glob.glob(os.path.join(FOLDER, "*.jsonl"))):
        for number, line in enumerate(open(path), 1):
            look(f"test/results/{os.path.basename(path)}:{number}", json.loads(line).get("commit", ""))
    for name in ("README.md", "docs/measured.md"):
        for number, line in enumerate(open(os.path.join(FOLDER, "..", "..", name), encoding="utf-8"), 1):
            for commit in re.findall(r"\| ([0-9a-f]{7,40}(?:-dirty)?) \|$", line) + re.findall(r"\bat ([0-9a-f]{7,40})\b", line) * line.startswith("|"):
                look(f"{name}:{number}", commit)
    if bad:
        sys.exit("\n".join(bad))
    print(f"{seen} figures, each of a commit of this branch")


def main():
    if "--commits" in sys.argv:
        return check_commits()
    for name, made in (("README.md", front_table()), ("docs/measured.md", page())):
        path = os.path.join(FOLDER, "..", "..", name)
        text = open(path, encoding="utf-8").read()
        head, rest = text.split(BEGIN)
        new = f"{head}{BEGIN}\n{made}\n{END}{rest.split(END)[1]}"
        if "--check" not in sys.argv:
            open(path, "w", encoding="utf-8").write(new)
        elif new != text:
            sys.exit(f"{name} differs from test/results/*.jsonl: run python3 test/results/table.py")
    if "--check" in sys.argv:
        print("the figures of README.md and docs/measured.md are those of test/results")


main()
