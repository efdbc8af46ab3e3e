#!/usr/bin/env bash
# Compares learning rates at three widths, with µP (model.mup_base_n_embd) and without. A small gpt2 is trained on the
# bytes of a text once for each width, rate and seed. For each width, with and without µP, a line is appended to
# test/results/mup_rates.jsonl: held-out losses by rate, means over the seeds, and the best rate.
#   test/bench/mup_rates.sh TEXT [STEPS [SEEDS]]     TEXT: such as datasets/tinyshakespeare/input.txt; STEPS: 160; SEEDS: 2
#   RECORD=0: prints, keeps nothing
. "$(dirname "$0")/../../scripts/env.sh"
[ -f "${1:-}" ] || { sed -n 's/^#   //p' "$0" >&2; exit 64; }
steps=${2:-160} seeds=${3:-2} base=64
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
TRAIN=${TRAIN:-$PWD/$B/train_gpt}
RATES="0.0005 0.001 0.002 0.004 0.008"
"$TRAIN" tokenize "$1" out="$work/data" val=0.05 > /dev/null || exit 65
cat > "$work/config.json" <<JSON
{ "run": {"steps": $steps}, "model": {"n_layer": 2, "n_head": 2, "n_embd": 64, "n_positions": 64, "vocab_size": 256},
  "data": {"train": "$work/data/train*", "val": "$work/data/val*"}, "batch": {"global_tokens": 1024, "micro_batch": 16},
  "schedule": {"warmup_steps": 20, "final_lr_fraction": 0.1}, "precision": "fp32", "checkpoint": {"every": 0},
  "eval": {"every": $steps, "tokens": 32768}, "log": {"every": 1000, "tensorboard": false} }
JSON

# loss WIDTH BASE RATE: trains with each seed and prints the mean held-out loss. Heads have 32 channels at every width.
loss() {
    local seed
    for seed in $(seq "$seeds"); do
        "$TRAIN" "$work/config.json" run.dir="$work/run" run.seed="$seed" run.resume=never model.n_embd="$1" model.n_head=$(($1 / 32)) \
            model.mup_base_n_embd="$2" optimizer.learning_rate="$3" > "$work/out" 2>&1 || { tail -n 3 "$work/out" >&2; return 1; }
        sed -n 's/.*"kind":"eval".*"loss":\([^,}]*\).*/\1/p' "$work/run/metrics.jsonl" | tail -n 1
        rm -rf "$work/run"
    done | awk '{ sum += $1 } END { if (NR == 0) exit 1; printf "%.4f", sum / NR }'
}
for from in $base 0; do
    for width in 64 128 256; do
        losses="" best=""
        for rate in $RATES; do
            one=$(loss $width $from "$rate") || exit 1
            losses+="$rate:$one "
            best=$(awk -v a="${best#*:}" -v b="$one" -v old="$best" -v new="$rate:$one" 'BEGIN { print (old == "" || b < a) ? new : old }')
        done
        echo "$([ "$from" = 0 ] && echo "no µP" || echo "µP") width $width: best rate ${best%:*}, loss ${best#*:} of ${losses% }"
        [ "${RECORD:-1}" = 0 ] || json_result mup_rates.jsonl command="test/bench/mup_rates.sh TEXT $steps $seeds" mup="$((from > 0))" width="$width" \
            losses="${losses% }" best_rate="${best%:*}" best_loss="${best#*:}"
    done
done
