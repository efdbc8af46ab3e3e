#!/usr/bin/env python3
"""loss_fp8.py - compares a run in bf16 with one in fp8 for test/bench/loss_fp8.sh, and prints key=value words.
  loss_fp8.py BF16_RUN FP8_RUN
"""
import json
import sys


def lines(folder, kind):
    rows = {}
    for line in open(f"{folder}/metrics.jsonl"):
        row = json.loads(line)
        if row["kind"] == kind:
            rows[row["step"]] = row
    return rows


bf16, fp8 = sys.argv[1:3]
steps = max(lines(bf16, "train"))
if max(lines(fp8, "train")) != steps:
    sys.exit(f"loss_fp8: {fp8} is not at step {steps}")
trained = {folder: sum(lines(folder, "train")[step]["loss"] for step in range(steps - 49, steps + 1)) / 50 for folder in (bf16, fp8)}
held = {folder: lines(folder, "eval")[steps]["loss"] for folder in (bf16, fp8)}
in_fp32 = {folder: json.load(open(f"{folder}/eval.json"))["loss"] for folder in (bf16, fp8)}
apart = [abs(lines(fp8, "train")[s]["loss"] / row["loss"] - 1) for s, row in lines(bf16, "train").items()]
config = json.load(open(f"{fp8}/config.json"))
width, batch = config["model"]["n_embd"], config["batch"]
# Counts the elements that a step casts to fp8. In each block, inputs and output gradients of the products have together
# 16 times the width for each token. The weights have 12 times the width squared, cast in each micro-batch.
cast = config["model"]["n_layer"] * (16 * width * batch["global_tokens"]
                                     + 12 * width**2 * batch["global_tokens"] // (batch["micro_batch"] * batch["seq_len"]))
counts = list(lines(fp8, "train").values())
print(f"steps={steps} bf16_loss={held[bf16]:.4f} fp8_loss={held[fp8]:.4f} above_percent={100 * (held[fp8] / held[bf16] - 1):.2f} "
      f"bf16_loss_in_fp32={in_fp32[bf16]:.4f} fp8_loss_in_fp32={in_fp32[fp8]:.4f} "
      f"above_percent_in_fp32={100 * (in_fp32[fp8] / in_fp32[bf16] - 1):.2f} "
      f"train_above_percent={100 * (trained[fp8] / trained[bf16] - 1):.2f} most_apart_percent={100 * max(apart):.2f} "
      f"saturated_a_step={sum(r['fp8_saturated'] for r in counts) / steps:.1f} vanished_a_step={sum(r['fp8_vanished'] for r in counts) / steps:.0f} "
      f"cast_a_step={cast}")
