#!/usr/bin/env python3
"""make performance: rewrites the tables of docs/performance.md from `plan kernels=true` of the emulator build.

    performance_page.py PROGRAM PAGE             rewrites the part of PAGE between the markers
    performance_page.py --check PROGRAM PAGE     fails if that part differs
"""
import json
import subprocess
import sys

BEGIN, END = "<!-- step: made by scripts/performance_page.py -->", "<!-- end of step -->"
ASKED = ["configs/gpt2-124m.json", "batch.global_tokens=65536", "gpu=h100", "kernels=true"]
LEAST_MS = 0.3  # operations that take less time than this, in ms a step, share one row of the table
MEASURED = "test/results/bench_gpu.jsonl"
# Matrix products by their names in test/bench/bench_kernels.c, with the operation and sizes that `plan` prints for
# them. All other operations have the same name in the benchmark and in the plan.
PRODUCTS = {"linear_forward:qkv": ("matmul", "65536 x 2304 x 768"), "linear_forward:attproj": ("matmul", "65536 x 768 x 768"),
            "linear_forward:fcproj": ("matmul", "65536 x 768 x 3072"), "head_forward": ("matmul", "9472 x 50304 x 768")}


def row(words, align=""):
    return "| " + " | ".join(str(w) for w in words) + " |"


def figures(one):
    return [one["calls"], one["launches"], f"{one['ms']:.1f}", f"{one['limit_ms']:.1f}", f"{one['ms'] - one['limit_ms']:.1f}"]


def added(ones):
    return {key: sum(one[key] for one in ones) for key in ("calls", "launches", "ms", "limit_ms")}


def measured(kernels):
    """Returns a table of the estimated time of each operation beside its newest measured time on an H100."""
    with open(MEASURED, encoding="utf-8") as lines:
        timed = {one["op"]: one for one in map(json.loads, lines) if "H100" in one["gpu"] and one.get("what") == "kernel of GPT-2 124m, B=64, T=1024"}
    out = [row(["operation", "sizes", "estimate, ms a call", "measured, ms a call", "measured / estimate", "commit"]), "|---" * 6 + "|"]
    for op, one in timed.items():
        name, sizes = PRODUCTS.get(op, (op, None))
        same = [k for k in kernels if k["operation"] == name and sizes in (None, k["sizes"])]
        estimate = same[0]["ms"] / same[0]["calls"] if same else 0
        # a shorter estimate (in ms) is only the time of the launch, so the ratio would mean nothing
        if estimate > 0.01:
            out.append(row([name, same[0]["sizes"], f"{estimate:.3f}", f"{one['ms']:.3f}", f"{one['ms'] / estimate:.2f}", one["commit"]]))
    return out


def table(program):
    plan = json.loads(subprocess.run([program, "plan", *ASKED, "json=true"], check=True, capture_output=True, text=True).stdout)
    kernels, families = plan["kernels"], []
    for one in kernels:
        if one["family"] not in families:
            families.append(one["family"])
    head, line = ["calls", "launches", "ms", "limit ms", "left ms"], "|---" * 7 + "|"
    out = [row(["operation", "sizes"] + head), line]
    out += [row([one["operation"], one["sizes"]] + figures(one)) for one in kernels if one["ms"] >= LEAST_MS]
    out.append(row(["smaller ones", ""] + figures(added([one for one in kernels if one["ms"] < LEAST_MS]))))
    gaps = {"calls": "", "launches": plan["launches"], "ms": plan["gaps_ms"], "limit_ms": plan["gaps_limit_ms"]}
    out.append(row(["gaps, the host's work", ""] + figures(gaps)))
    out += ["", row(["family"] + head + ["measured"]), line]
    for family in families:
        ones = [one for one in kernels if one["family"] == family]
        out.append(row([family] + figures(added(ones)) + ["yes" if all(one["measured"] for one in ones) else "no: estimate"]))
    out.append(row(["gaps, the host's work"] + figures(gaps) + ["no: estimate"]))
    whole = {"calls": "", "launches": plan["launches"], "ms": plan["step_ms"], "limit_ms": plan["limit_ms"]}
    out.append(row(["**sum**"] + figures(whole) + [""]))
    goal_ms = 65536 / plan["goal_tokens_per_s"] * 1e3
    # Share of each operation's time that would disappear if it were fused into the matrix products beside it. The norm
    # makes four passes over its rows, and two would disappear. After attention, the output product, which already waits
    # for memory, would make one of those two itself.
    shares = {"activation_forward": 1, "activation_backward": 1, "attention_delta": 1, "residual_layernorm_forward": 3 / 8}
    apart_ms = sum(one["ms"] * shares.get(one["operation"], 0) for one in kernels)
    rate = lambda ms: f"{65536 / ms * 1e3:,.0f} tokens/s"
    away = f"{abs(plan['step_ms'] - goal_ms):.1f} ms " + ("less" if plan["step_ms"] > goal_ms else "more")
    fused_ms = plan["step_ms"] - apart_ms
    out += ["", f"Estimate of the whole step: {plan['tokens_per_s']:,.0f} tokens/s, MFU {100 * plan['mfu']:.1f} %. If each kernel reached its "
            f"limit, the speed would be {rate(plan['limit_ms'])}.",
            "", f"The goal of this project is {plan['goal_tokens_per_s']:,.0f} tokens/s, 55 % of the peak of an H100. A step then takes {goal_ms:.1f} ms, "
            f"{away} than estimated.",
            "", "The program's own matrix product can compute GELU, its gradient, attention's delta and the sums of the residual stream in its epilogues. "
            f"If multiplications hid all of this work, a step would take {fused_ms:.1f} ms: {rate(fused_ms)}.",
            "", "This table compares estimates of single operations with the times that an NVIDIA H100 80GB HBM3 took:", ""] + measured(kernels)
    return "\n".join(out)


def main(arguments):
    program, page = arguments[-2:]
    text = open(page, encoding="utf-8").read()
    before, rest = text.split(BEGIN + "\n", 1)
    old, after = rest.split("\n" + END, 1)
    new = table(program)
    if arguments[0] != "--check":
        open(page, "w", encoding="utf-8").write(before + BEGIN + "\n" + new + "\n" + END + after)
    elif new != old:
        sys.exit(f"{page}: the step is no longer what the program says: make performance")
    print(f"{page}: {next(line for line in new.splitlines() if line.startswith('Estimate'))}")


if __name__ == "__main__":
    main(sys.argv[1:])
