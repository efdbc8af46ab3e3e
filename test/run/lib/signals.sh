#!/usr/bin/env bash
# Sends SIGUSR1 to a small training run at random instants, from its first moment to its last, and starts it again, over
# and over. Each time it must save, end with 75, and resume from there. Weights and log at the end must equal those of a
# run that was never stopped.
#   test/run/lib/signals.sh SENDS RANKS [SEED]     prints "ok ..." or "not ok ...", then "SENDS sends, FAILED failures, RUNS runs completed"
sends=$1 ranks=$2 RANDOM=${3:-1}
. "$(dirname "${BASH_SOURCE[0]}")/tiny.sh"
run="$WORK/run"
args="run.steps=60 checkpoint.every=3 eval.every=4 eval.tokens=0 schedule.name=cosine"
start() { if [ "$ranks" -eq 1 ]; then exec "$TRAIN" "$WORK/tiny.json" $args run.dir="$1"; else exec mpirun --oversubscribe --bind-to none -np "$ranks" "$TRAIN" "$WORK/tiny.json" $args run.dir="$1"; fi; }
members() { if [ "$ranks" -eq 1 ]; then echo "$job"; else pgrep -f "^$TRAIN $WORK/tiny.json"; fi; }
# takes_requests PROCESS: succeeds if the process is a rank that handles SIGUSR1, which is number 10 in its mask of
# caught signals. bash, which starts the rank, may catch the signal as well.
takes_requests() { local mask; [ "/proc/$1/exe" -ef "$TRAIN" ] || return; mask=$(sed -n 's/^SigCgt:\s*//p' "/proc/$1/status" 2>/dev/null); [ -n "$mask" ] && [ $((0x$mask >> 9 & 1)) -eq 1 ]; }
all_take_requests() { local pid n=0; for pid in $(members); do takes_requests "$pid" || return 1; n=$((n + 1)); done; [ $n -eq "$ranks" ]; }
complain() { failed=$((failed + 1)); echo "not ok send $sent: $*"; tail -n 5 "$WORK/out" "$WORK/err"; }

( start "$WORK/whole" ) > /dev/null || { echo "not ok the run that is not stopped"; exit 1; }
sent=0 failed=0 runs=0
while [ "$sent" -lt "$sends" ]; do
    ( start "$run" ) > "$WORK/out" 2> "$WORK/err" & job=$!
    until all_take_requests || ! kill -0 $job 2> /dev/null; do sleep 0.01; done
    sleep "$(awk -v r=$RANDOM 'BEGIN { printf "%.3f", r / 32768 * 0.6 }')"
    case $((ranks > 1 ? sent % 3 : 2)) in
    0) victim=$(members | tail -n 1) ;; # signals the last rank alone
    1) victim=$(members | head -n 1) ;;
    *) victim=$job ;;                   # mpirun passes the signal on to all ranks
    esac
    kill -USR1 ${victim:-$job} 2> /dev/null && told=1 || told=0
    wait $job; status=$?
    if [ $status -eq 75 ] && [ $told -eq 0 ]; then
        complain "exit 75, and nobody asked"
    elif [ $status -eq 75 ]; then
        sent=$((sent + 1))
        [ -n "$(ls "$run/checkpoints" | grep -E '^step_[0-9]+$')" ] || complain "75 without a checkpoint"
        grep -qE "^stopped at step [0-9]+ of 60, saved" "$WORK/out" || complain "75 without a message"
    elif [ $status -eq 0 ]; then # the run had reached its last step before the signal
        [ $told -eq 1 ] && [ "$(values "$run" train step | tail -n 1)" != 60 ] && complain "exit 0 at step $(values "$run" train step | tail -n 1)"
        runs=$((runs + 1))
        same_weights "$run" "$WORK/whole" step_00000060 > /dev/null || complain "other weights"
        same_losses "$run" "$WORK/whole" 0 && same_evals "$run" "$WORK/whole" 0 || complain "another log"
        rm -rf "$run"
    else
        sent=$((sent + 1))
        complain "exit $status"
    fi
    [ "$failed" -gt 5 ] && break
done
( start "$run" ) > "$WORK/out" 2>&1; status=$?
expect "$ranks ranks: $sends stops took place" [ "$sent" -ge "$sends" ]
expect "$ranks ranks: after $sent stops the run ends" [ $status -eq 0 ]
expect "$ranks ranks: with the weights of a run that was not stopped" same_weights "$run" "$WORK/whole" step_00000060
expect "$ranks ranks: with its losses" same_losses "$run" "$WORK/whole" 0
expect "$ranks ranks: with its evaluations" same_evals "$run" "$WORK/whole" 0
expect "$ranks ranks: every stop is exit 75" [ "$failed" -eq 0 ]
echo "$sent sends, $failed failures, $runs runs completed between them"
exit $STATUS
