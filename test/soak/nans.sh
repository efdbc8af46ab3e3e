#!/usr/bin/env bash
# Makes gradients that are not finite in nearly every step. A fault that occurs once leaves no trace in the weights.
# None gets into a checkpoint.
# goal: 1000 NaNs and infinities
. "$(dirname "$0")/part.sh"
. test/run/lib/tiny.sh
trap 'tell; rm -rf "$WORK"' EXIT
TRAIN=$PWD/$B/test/train_gpt-failpoints
STEPS=40
args="run.steps=$STEPS checkpoint.every=4 checkpoint.keep=20 eval.every=0 schedule.name=constant"
run_on() { local n=$1; shift; if [ "$n" -eq 1 ]; then train "$@"; else train_ranks "$n" "$@"; fi; }
struck() { sort -u "$WORK/log" 2> /dev/null | wc -l; }
bad() { failed=$((failed + 1)); echo "not ok $*"; tail -3 "$WORK/err"; }

for n in 1 2 3; do run_on $n run.dir="$WORK/whole$n" $args > /dev/null 2>&1 || bad "$n ranks without a fault"; done
while more; do
    for n in 1 2 3; do
        words=(nan inf lone) rules="" call=$((2 + RANDOM % 2))
        # every other computation of gradients is wrong, so each of these steps is computed again
        while [ "$call" -le $((2 * STEPS)) ]; do
            rules="$rules;guard.gradient@$call:${words[RANDOM % 3]},rank=$((RANDOM % n))"
            call=$((call + 2))
        done
        rm -rf "$WORK/run" "$WORK/log"
        TRAIN_GPT_FAIL=${rules#;} TRAIN_GPT_FAIL_LOG=$WORK/log run_on $n run.dir="$WORK/run" $args > "$WORK/out" 2> "$WORK/err" || bad "$n ranks: exit $?"
        same_weights "$WORK/run" "$WORK/whole$n" step_000000$STEPS > "$WORK/err" || bad "$n ranks: other weights"
        tally "$(struck)" 0

        policy=$([ $((RANDOM % 2)) -eq 0 ] && echo skip || echo rollback) rules="" call=$((2 + RANDOM % 5))
        # the gradients of a step are wrong twice in a row, so the step is skipped or rolled back
        while [ "$call" -le $STEPS ]; do
            rules="$rules;guard.gradient@$call:nan,rank=$((RANDOM % n));guard.gradient@$((call + 1)):inf,rank=$((RANDOM % n))"
            call=$((call + 5 + RANDOM % 8))
        done
        rm -rf "$WORK/run" "$WORK/log"
        TRAIN_GPT_FAIL=${rules#;} TRAIN_GPT_FAIL_LOG=$WORK/log run_on $n run.dir="$WORK/run" $args run.on_nonfinite=$policy run.max_skips=50 \
            > "$WORK/out" 2> "$WORK/err" || bad "$n ranks, $policy: exit $?"
        python3 test/run/lib/finite.py "$WORK"/run/checkpoints/step_* > "$WORK/err" 2>&1 || bad "$n ranks, $policy: a checkpoint that is not finite"
        [ "$(values "$WORK/run" train step | tr '\n' ' ')" = "$(seq $STEPS | tr '\n' ' ')" ] || bad "$n ranks, $policy: steps are missing"
        tally "$(struck)" 0
    done
done
