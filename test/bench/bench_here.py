#!/usr/bin/env python3
"""bench_here.py - measures this machine as a cluster of two ranks, and compares simulated with real training steps.

Writes configs/clusters/here.json from the rates that two ranks of one thread each reach at the same time: those of
operations by test/bench/bench_kernels, those of the ring by test/bench/bench_comm. Alternating with these measurements
it trains with every grid of two ranks. For each grid it prints a JSON line with the median step of the fastest round,
and the step that `plan cluster=here` simulates. Run by scripts/bench_comm.sh.
  bench_here.py BUILD LAUNCH
"""
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

BUILD, LAUNCH = sys.argv[1], sys.argv[2].split()
B, T, C, H, V, L = 1, 512, 384, 6, 4096, 4
MICRO_BATCHES, STEPS, ROUNDS = 4, 9, 3
CLUSTER = "configs/clusters/here.json"
GRIDS = ["parallel.zero_stage=0", "parallel.zero_stage=1", "parallel.zero_stage=2", "parallel.zero_stage=3", "parallel.replicas=2",
         "parallel.tensor=2", "parallel.context=2", "parallel.pipeline=2", "parallel.pipeline=2 parallel.interleave=2"]


def output(command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def kernels():
    """Runs bench_kernels on two ranks at once. Returns (seconds, FLOP, bytes) of each operation and the rates of the
    probes, as means over the ranks, and the rows that the classifier computes at once."""
    text = output(LAUNCH + ["-np", "2", f"{BUILD}/test/bench/bench_kernels", "fp32"] + [str(n) for n in (B, T, C, H, V, L)])
    ops, probes = {}, {}
    for line in text.splitlines():
        pairs = dict(p.split("=", 1) for p in line.split() if "=" in p)
        if "op" in pairs:
            ops.setdefault(pairs["op"], []).append((float(pairs["ms"]) / 1e3, float(pairs["gflop"]) * 1e9, float(pairs["mbytes"]) * 1e6))
        elif "probe" in pairs:
            probes.setdefault(pairs["probe"], []).append(float(pairs.get("gflops", pairs.get("gbs", 0))) * 1e9)
        elif "rows" in pairs:
            rows = int(pairs["rows"])
    mean = {op: tuple(statistics.mean(v) for v in zip(*lines)) for op, lines in ops.items()}
    return mean, {name: statistics.mean(v) for name, v in probes.items()}, rows


def rate(ops, names, times, what):
    """Returns the FLOP (what=1) or bytes (what=2) a second of these operations together. Each counts as often as in
    a micro-batch, times(name)."""
    return sum(ops[n][what] * times(n) for n in names) / sum(ops[n][0] * times(n) for n in names)


def link():
    """Returns the seconds that a collective of two ranks takes apart from its bytes, and the bytes a second. Both
    are from measurements at 64 KiB and 4 MiB."""
    text = output(LAUNCH + ["-np", "2", f"{BUILD}/test/bench/bench_comm", "4"])
    latency, speed = [], []
    table = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        op, _, size, ring, *_ = line.split()
        sent = int(size) / 2 * (2 if op == "all-reduce" else 1)
        table.setdefault(op, {})[int(size)] = (sent, sent / (float(ring) * 1e9))
    for op, sizes in table.items():
        (small, t0), (large, t1) = sizes[min(sizes)], sizes[max(sizes)]
        speed.append((large - small) / (t1 - t0))
        latency.append(max(0.0, t0 - small / speed[-1]) / (2 if op == "all-reduce" else 1))
    return statistics.median(latency), statistics.median(speed)


def rates():
    """Returns FLOP a second of products and of attention, bytes a second of the other operations, and the rates of
    the two probes: products and copies."""
    ops, probes, rows = kernels()
    chunks = B * T / rows
    each = lambda n: chunks if n.startswith(("head", "classifier")) else (1 if n.startswith("embedding") else 1.0 / MICRO_BATCHES if n == "adamw_update" else L)
    products = [n for n in ops if n.startswith(("linear", "head"))]
    attention = [n for n in ops if n.startswith("attention")]
    others = ["residual_layernorm_forward", "layernorm_backward", "classifier_forward_backward", "adamw_update", "embedding_forward", "embedding_backward"]
    return rate(ops, products, each, 1), rate(ops, attention, each, 1), rate(ops, others, each, 2), probes["gemm"], probes["copy"]


def write_cluster(measured, latency, speed):
    product, attend, memory, gemm, copy = (max(v) for v in zip(*measured))
    peak, copy = max(product, attend, gemm), max(memory, copy)
    sure = lambda x: float(f"{x:.3g}")
    processor = re.search(r"model name\s*:\s*(.*)", open("/proc/cpuinfo").read())
    cluster = {
        "$comment": "Measured by make bench-comm: two ranks of one thread each, at once, fp32.",
        "gpus_per_node": os.cpu_count(),
        "gpu": {"name": (processor.group(1) if processor else "processor")[:48] + ", one core",
                "memory_bytes": float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2), "reserved_bytes": 6.7e7,
                "flops": {"fp32": sure(peak)}, "bytes_per_s": sure(copy)},
        "links": [{"ranks": 0, "bytes_per_s": sure(speed), "latency_s": sure(latency)}],
        "efficiency": {"product": min(1.0, sure(product / peak)), "attention": min(1.0, sure(attend / peak)), "memory": min(1.0, sure(memory / copy)), "link": 1.0, "ramp": 0},
        "overlap": {"collectives": False, "messages": False},
    }
    with open(CLUSTER, "w") as f:
        json.dump(cluster, f, indent=2)
        f.write("\n")


def write_shard(path, tokens):
    import array
    header = array.array("i", [0] * 256)
    header[0], header[1], header[2] = 20240520, 1, tokens
    body = array.array("H", [(i * 7919 + i // 13) % V for i in range(tokens)])
    with open(path, "wb") as f:
        header.tofile(f)
        body.tofile(f)


def config(folder):
    path = f"{folder}/config.json"
    json.dump({"run": {"steps": STEPS, "dir": f"{folder}/run"}, "precision": "fp32",
               "model": {"n_layer": L, "n_head": H, "n_embd": C, "n_positions": T, "vocab_size": V}, "data": {"train": f"{folder}/train.bin"},
               "batch": {"micro_batch": B, "seq_len": T, "global_tokens": B * T * MICRO_BATCHES}, "checkpoint": {"every": 0, "keep": 1}, "log": {"every": 1000}}, open(path, "w"))
    return path


def measured_ms(folder, path, grid):
    """Trains on this grid and returns the median milliseconds of the steps from the fourth on."""
    shutil.rmtree(f"{folder}/run", ignore_errors=True)
    subprocess.run(LAUNCH + ["-np", "2", f"{BUILD}/train_gpt", path] + grid, check=True, capture_output=True)
    ms = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl")]
    return statistics.median(m["ms"] for m in ms if m["kind"] == "train" and m["step"] > 3)


def main():
    os.environ["OMP_NUM_THREADS"] = "1"
    latency, speed = link()
    with tempfile.TemporaryDirectory() as folder:
        write_shard(f"{folder}/train.bin", 400000)
        path, measured = config(folder), []
        real = {g: [] for g in GRIDS}
        for _ in range(ROUNDS):  # simulated and real runs alternate, so that other work on the machine affects both
            measured.append(rates())
            for g in GRIDS:
                real[g].append(measured_ms(folder, path, g.split()))
        measured.append(rates())
        write_cluster(measured, latency, speed)
        for g in GRIDS:
            plan = json.loads(output([f"{BUILD}/train_gpt", "plan", path, "ranks=2", "cluster=here", "json=true"] + g.split()))
            ms = min(real[g])  # the fastest of all rounds counts, as for the measured rates of the machine
            print(json.dumps({"grid": g, "measured_ms": round(ms, 1), "simulated_ms": round(plan["step_ms"], 1), "ratio": round(plan["step_ms"] / ms, 3)}), flush=True)


main()
