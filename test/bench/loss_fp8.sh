#!/usr/bin/env bash
# Compares the loss of precision=fp8 with that of bf16: configs/demo-gpt2.json is trained on the demo's text with both.
# It appends a line to test/results/loss_fp8.jsonl. The held-out loss is from the run's own evaluation, in its
# precision. The loss of `eval`, in fp32, shows the effect of the training alone. Needs the text of `make demo`. The
# runs stay in runs/fp8/, so the same command continues after a stop.
#   test/bench/loss_fp8.sh [key=value ...]     run.steps=600 for less; RECORD=0: prints, keeps nothing
. "$(dirname "$0")/../../scripts/env.sh"
[ -e datasets/demo/val_000000.bin ] || { echo "loss_fp8: no datasets/demo: make demo prepares its text" >&2; exit 64; }
TRAIN=${TRAIN_GPT:-$PWD/$B/train_gpt}
for precision in bf16 fp8; do
    "$TRAIN" configs/demo-gpt2.json precision=$precision sample.every=0 run.dir="runs/fp8/$precision" "$@" || exit
    "$TRAIN" eval "runs/fp8/$precision" tokens=0 json=true > "runs/fp8/$precision/eval.json" || exit
done
line=$(python3 test/bench/loss_fp8.py runs/fp8/bf16 runs/fp8/fp8) || exit
echo "$line"
# shellcheck disable=SC2086
[ "${RECORD:-1}" = 0 ] || json_result loss_fp8.jsonl command="test/bench/loss_fp8.sh $*" $line
