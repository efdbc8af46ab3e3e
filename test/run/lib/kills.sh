#!/usr/bin/env bash
# Kills a small training run with SIGKILL at random instants and starts it again, over and over. Every start must resume
# from the newest complete checkpoint. The weights at the end must equal those of a run that was never killed, bit for
# bit.
#   GRID="parallel.tensor=2 ..." test/run/lib/kills.sh KILLS RANKS [SEED]     prints "ok ..." or "not ok ...", then "KILLS kills, FAILED failed resumes, RUNS runs completed"
kills=$1 ranks=$2 RANDOM=${3:-1}
. "$(dirname "${BASH_SOURCE[0]}")/tiny.sh"
run="$WORK/run"
args="run.steps=40 checkpoint.every=3 eval.every=0 schedule.name=cosine ${GRID:-}"
start() { if [ "$ranks" -eq 1 ]; then exec "$TRAIN" "$WORK/tiny.json" $args run.dir="$1"; else exec mpirun --oversubscribe --bind-to none -np "$ranks" "$TRAIN" "$WORK/tiny.json" $args run.dir="$1"; fi; }
newest() { ls "$run/checkpoints" 2>/dev/null | grep -E '^step_[0-9]+$' | tail -1 | sed 's/step_0*//'; }

( start "$WORK/whole" ) > /dev/null || { echo "not ok the run that is not killed"; exit 1; }
killed=0 failed=0 runs=0
while [ "$killed" -lt "$kills" ]; do
    before=$(newest)
    ( start "$run" ) > "$WORK/out" 2> "$WORK/err" & job=$!
    # The kill comes between the first step and some time after the last one. mpirun itself needs some 0.4 s to start.
    sleep "$(awk -v r=$RANDOM -v n="$ranks" 'BEGIN { printf "%.3f", (n > 1 ? 0.35 : 0) + r / 32768 * (n > 1 ? 1.6 : 1.0) }')"
    victim=$job
    # kills a single rank chosen at random, instead of the whole job
    if [ "$ranks" -gt 1 ] && [ $((RANDOM % 2)) -eq 0 ]; then
        victim=$(pgrep -f "^$TRAIN $WORK/tiny.json" | shuf -n 1 --random-source=<(yes $RANDOM))
    fi
    struck=no; [ -z "$victim" ] || { kill -9 "$victim" 2> /dev/null && struck=yes; }
    # Open MPI 4.1's mpirun itself can wait for ever after a rank was killed while it started: then it is killed, too.
    { sleep 60; kill -9 $job; } 2> /dev/null & guard=$!
    wait $job 2> /dev/null; status=$?
    # stopped first, so that it cannot start its sleep after its children have been looked for
    { kill -STOP $guard; pkill -P $guard; kill -9 $guard; wait $guard; } 2> /dev/null
    for _ in $(seq 50); do pgrep -f "^$TRAIN $WORK/tiny.json" > /dev/null || break; sleep 0.1; done
    if [ $status -eq 0 ]; then
        runs=$((runs + 1))
        if ! same_weights "$run" "$WORK/whole" step_00000040 > /dev/null; then failed=$((failed + 1)); echo "not ok run $runs ended with other weights"; fi
        rm -rf "$run"
    # a start must have been killed (137): fails if it ended otherwise, or if nothing killed it; 14 is Open MPI's own
    # end if a rank is killed while the ranks connect
    elif [ $struck$status != yes137 ] && { [ $struck$status != yes14 ] || [ "$victim" = $job ]; }; then
        failed=$((failed + 1)); echo "not ok a start ended with $status, and was it killed? $struck: $(tr -d "\0" < "$WORK/err" | grep train_gpt: || tail -n 2 "$WORK/err")"
        [ $failed -lt 10 ] || break
    else
        killed=$((killed + 1))
        # Checks that a start that reached its first output has resumed from the newest checkpoint.
        if [ -n "$before" ] && grep -q "^start " "$WORK/out"; then failed=$((failed + 1)); echo "not ok began anew in spite of step $before"; fi
        if [ -n "$before" ] && grep -q "^resume " "$WORK/out" && ! grep -q "at step $before," "$WORK/out"; then
            failed=$((failed + 1)); echo "not ok $(grep '^resume ' "$WORK/out"), and step $before was there"
        fi
        if grep -vE "mpirun|Primary job|abort|signal 9|^-*$|prterun|noticed|process|exited|node|is gone: the job ends|steps in a row took over|stops after this step" "$WORK/err" | grep -q "train_gpt:"; then
            failed=$((failed + 1)); echo "not ok $(grep 'train_gpt:' "$WORK/err" | head -3)"
        fi
    fi
done
( start "$run" ) > "$WORK/out" 2>&1; status=$?
expect "$ranks ranks: $kills kills took place" [ "$killed" -eq "$kills" ]
expect "$ranks ranks: after $killed kills the run ends" [ $status -eq 0 ]
expect "$ranks ranks: with the weights of a run that was not killed" same_weights "$run" "$WORK/whole" step_00000040
expect "$ranks ranks: steps strictly increase" [ "$(steps_of "$run")" = "$(seq 40 | tr '\n' ' ')" ]
expect "$ranks ranks: no failed resume" [ "$failed" -eq 0 ]
echo "$killed kills, $failed failed resumes, $runs runs completed between them"
exit $STATUS
