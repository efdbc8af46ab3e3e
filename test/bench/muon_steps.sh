#!/usr/bin/env bash
# Measures how many steps Muon needs for the held-out loss that AdamW reaches in STEPS steps, with the demo's model.
# Each optimizer has the best of several learning rates, and Muon has shorter and shorter schedules. It appends two
# lines to test/results/bench_values.jsonl. It needs the text of `make demo`. Runs stay in runs/muon_steps/: the same
# command continues after a stop and repeats no finished run.
#   test/bench/muon_steps.sh      STEPS=600;  RECORD=0: prints, keeps nothing
. "$(dirname "$0")/../../scripts/env.sh"
STEPS=${STEPS:-600} RATES_ADAMW="1e-3 2e-3 4e-3 8e-3" RATES_MUON="3e-3 6e-3 1.2e-2 2.4e-2" SHARES="85 75 67 60 50"
[ -e datasets/demo/val_000000.bin ] || { echo "muon_steps: no datasets/demo: make demo prepares its text" >&2; exit 64; }

# loss NAME RATE STEPS: trains and prints the held-out loss at the end.
loss() {
    local run=runs/muon_steps/$1.$2.$3
    "$B/train_gpt" configs/demo.json run.dir="$run" run.steps="$3" optimizer.name="$1" optimizer.learning_rate="$2" eval.every="$3" \
        sample.every=0 checkpoint.every="$3" log.tensorboard=false > "$run.out" 2>&1 || { tail -n 3 "$run.out" >&2; return 1; }
    grep '"kind":"eval"' "$run/metrics.jsonl" | tail -n 1 | sed -E 's/.*"loss":([0-9.]+).*/\1/'
}
# best NAME RATES...: trains with each learning rate and prints "loss rate" for the one with the lowest loss.
best() {
    local name=$1 rate; shift
    for rate in "$@"; do echo "$(loss "$name" "$rate" "$STEPS" || echo inf) $rate"; done | tee -a /dev/stderr | sort -g | head -n 1
}
mkdir -p runs/muon_steps
# shellcheck disable=SC2086
read -r adamw_loss adamw_rate < <(best adamw $RATES_ADAMW)
# shellcheck disable=SC2086
read -r muon_loss muon_rate < <(best muon $RATES_MUON)
least=$STEPS at=$muon_loss
for share in $SHARES; do
    steps=$((STEPS * share / 100)) && reached=$(loss muon "$muon_rate" $steps) || exit 1
    echo "muon, $steps steps: $reached"
    awk -v a="$reached" -v b="$adamw_loss" 'BEGIN { exit !(a <= b) }' || break
    least=$steps at=$reached
done
echo "AdamW: $adamw_loss at $adamw_rate after $STEPS steps; Muon: $muon_loss at $muon_rate, and $at after $least steps"
[ "${RECORD:-1}" = 0 ] && exit
json_result bench_values.jsonl what="held-out loss of the demo's model after $STEPS steps: AdamW, Muon" command="test/bench/muon_steps.sh" \
    value="$adamw_loss, $muon_loss" note="learning rates $adamw_rate and $muon_rate, the best of $RATES_ADAMW and of $RATES_MUON"
json_result bench_values.jsonl what="steps of Muon to AdamW's held-out loss after $STEPS steps, the demo's model" \
    command="test/bench/muon_steps.sh" \
    value="$least" note="a schedule of so many steps ends at $at; with the next shorter schedule that was tried Muon stays above AdamW's loss"
