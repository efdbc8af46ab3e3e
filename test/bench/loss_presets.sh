#!/usr/bin/env bash
# Measures which of two configs learns more in the same time (test/bench/loss_presets.py). It appends a line to
# test/results/loss_presets.jsonl. It needs the text of `make demo`. The runs stay in runs/presets/, so the same command
# continues after a stop.
#   test/bench/loss_presets.sh NAME FIRST.json SECOND.json [key=value ...]     demo configs/demo.json configs/demo-gpt2.json
#   THREADS=1: times are the processor's, for a busy machine;  RECORD=0: prints, keeps nothing
. "$(dirname "$0")/../../scripts/env.sh"
[ $# -ge 3 ] || { sed -n 's/^#   //p' "$0" >&2; exit 64; }
[ -e datasets/demo/val_000000.bin ] || { echo "loss_presets: no datasets/demo: make demo prepares its text" >&2; exit 64; }
line=$(TRAIN_GPT=$PWD/$B/train_gpt python3 test/bench/loss_presets.py "$@") || exit
echo "$line"
# shellcheck disable=SC2086
[ "${RECORD:-1}" = 0 ] || json_result loss_presets.jsonl command="test/bench/loss_presets.sh $*" $line
