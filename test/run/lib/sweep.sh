#!/usr/bin/env bash
# Kills a small run at every I/O call, also those of its saves and deletions. One of 1, 2 or 4 ranks is killed before or
# after the call, each rank in turn. The next start must resume from the newest checkpoint and skip none. It must end
# with the weights of a run that was never killed.
#   test/run/lib/sweep.sh FROM COUNT [STRIDE]     cases FROM, FROM+STRIDE, ...; prints "not ok ..." for each that fails, then "N of TOTAL cases, N failed"
from=$1 count=$2 stride=${3:-1}
. "$(dirname "${BASH_SOURCE[0]}")/tiny.sh"
args="run.steps=8 checkpoint.every=2 checkpoint.keep=2 eval.every=0 log.every=100"
# start RANKS RUN RULES: runs a training in folder RUN, in which calls fail as RULES says. Its output is in $WORK/out.
start() {
    if [ "$1" -eq 1 ]; then TRAIN_GPT_FAIL=$3 "$FAILING" "$WORK/tiny.json" $args run.dir="$2"
    else TRAIN_GPT_FAIL=$3 run_ranks "$1" "$FAILING" "$WORK/tiny.json" $args run.dir="$2"; fi > "$WORK/out" 2>&1
}
newest() { ls "$1/checkpoints" 2> /dev/null | grep -E '^step_[0-9]+$' | tail -n 1 | sed 's/step_0*//'; }

# Lists the cases, one a line: the number of ranks, and the rule that kills one of them at an I/O call. To count the
# calls, a first run only logs them (io@1+:count).
for ranks in 1 2 4; do
    TRAIN_GPT_FAIL_LOG="$WORK/calls" start $ranks "$WORK/whole-$ranks" "io@1+:count" || { echo "not ok the run at $ranks ranks that is not killed"; exit 1; }
    for rank in $(seq 0 $((ranks - 1))); do
        calls=$(grep -c "rank=$rank$" "$WORK/calls")
        for what in kill-before kill-after; do for n in $(seq "$calls"); do echo "$ranks io@$n:$what,rank=$rank"; done; done
    done
    rm "$WORK/calls"
done > "$WORK/cases"
total=$(wc -l < "$WORK/cases") tried=0 failed=0
bad() { failed=$((failed + 1)); echo "not ok $ranks ranks, $rule: $1"; }

while [ $tried -lt "$count" ]; do
    read -r ranks rule <<< "$(sed -n "$(((from + tried * stride) % total + 1))p" "$WORK/cases")"
    run="$WORK/run-$tried"; tried=$((tried + 1))
    TRAIN_GPT_FAIL_LOG="$WORK/struck" start "$ranks" "$run" "$rule" && [ ! -d "$run/checkpoints/step_00000008" ] && bad "ended well, without its last checkpoint"
    [ -e "$WORK/struck" ] || bad "the call was not made, so nothing was killed"
    rm -f "$WORK/struck"
    step=$(newest "$run")
    if ! start "$ranks" "$run" ""; then bad "the next start: $(grep 'train_gpt:' "$WORK/out" | head -n 1)"
    elif grep -q 'passed over' "$WORK/out"; then bad "$(grep 'passed over' "$WORK/out")"
    elif [ -n "$step" ] && [ "$step" -lt 8 ] && ! grep -q "^resume .*at step $step," "$WORK/out"; then bad "did not go on from step $step"
    elif ! same_weights "$run" "$WORK/whole-$ranks" step_00000008 > /dev/null; then bad "other weights at the end"
    elif [ -n "$(find "$run/checkpoints" -name '*.tmp' -o -name '.trash*')" ] && [ "${step:-0}" -lt 8 ]; then bad "leftovers stay"
    fi
    rm -rf "$run"
done
echo "$tried of $total cases, $failed failed"
[ $failed -eq 0 ]
