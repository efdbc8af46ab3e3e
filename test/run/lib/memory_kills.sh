#!/usr/bin/env bash
# Loses a host over and over. Two simulated hosts with two ranks train with copies in memory and no checkpoint. At a
# random instant all ranks get SIGKILL, and one host's copies are deleted. Every start must resume from the other host's
# memory, at the newest complete step or the one before. The weights at the end must equal those of a run that lost
# nothing. With one rank, the rank is killed and no copy is lost.
#   test/run/lib/memory_kills.sh KILLS RANKS [SEED [KEY=VALUE...]]
# prints "ok ..." or "not ok ...", then "KILLS kills, FAILED failed resumes, RUNS runs completed"
kills=$1 ranks=$2 RANDOM=${3:-1} words=${*:4}
. "$(dirname "${BASH_SOURCE[0]}")/tiny.sh"
run="$WORK/run" memory="$WORK/memory" every=2 end=60
args="run.steps=$end checkpoint.every=0 checkpoint.memory_every=$every checkpoint.memory_dir=$memory eval.every=0"
args+=" log.tensorboard=false $words"
if [ "$ranks" -gt 1 ]; then
    unshare -u true 2> /dev/null || { echo "skip hosts of $ranks ranks: this user may not give them names"; exit 0; }
    printf '#!/bin/sh\nexport NAME=host$((OMPI_COMM_WORLD_RANK / 2))\nexec unshare -u sh -c '\''hostname $NAME; exec "$@"'\'' _ "$@"\n' > "$WORK/host"
    chmod +x "$WORK/host"
fi
start() { if [ "$ranks" -eq 1 ]; then exec "$TRAIN" "$WORK/tiny.json" $args run.dir="$1"; else exec mpirun --oversubscribe --bind-to none -np "$ranks" "$WORK/host" "$TRAIN" "$WORK/tiny.json" $args run.dir="$1"; fi; }
newest() { grep -s '"event":"memory"' "$run/metrics.jsonl" | tail -1 | sed -E 's/.*"step":([0-9]+).*/\1/'; }

mkdir "$memory"
( start "$WORK/whole" ) > /dev/null || { echo "not ok the run that is not killed"; exit 1; }
killed=0 failed=0 runs=0
while [ "$killed" -lt "$kills" ]; do
    before=$(newest)
    rm -f "$WORK/out"
    ( start "$run" ) > "$WORK/out" 2> "$WORK/err" & job=$!
    # Waits until the first step is printed: by then the output also says at which step the run started.
    while kill -0 $job 2> /dev/null && ! grep -qs "^step *[0-9]*/" "$WORK/out"; do sleep 0.02; done
    sleep "$(awk -v r=$RANDOM 'BEGIN { printf "%.3f", r / 32768 * 0.4 }')"
    # Kills mpirun, too: when all of its ranks have gone at once, it may wait forever.
    struck=no; kill -9 $(pgrep -f "$WORK/tiny.json") 2> /dev/null && struck=yes
    wait $job 2> /dev/null; status=$?
    # The second pattern is what a start prints if the run was killed after its last step.
    at=$(sed -nE 's/^resume .*at step ([0-9]+),.*/\1/p; s/.* is at step ([0-9]+) of .* nothing to do$/\1/p' "$WORK/out")
    if [ "${before:-0}" -gt $every ] && [ "${at:-0}" -lt $((before - every)) ]; then
        failed=$((failed + 1)); echo "not ok went on from step ${at:-0}, and the copies of $before were there"; tail -n 3 "$WORK/err"
    fi
    if [ $status -eq 0 ]; then
        runs=$((runs + 1))
        if ! same_weights "$run" "$WORK/whole" step_000000$end > /dev/null; then failed=$((failed + 1)); echo "not ok run $runs ended with other weights"; fi
        rm -rf "$run"
    # a start must have been killed (137): fails if it ended otherwise, or if nothing killed it
    elif [ $struck$status != yes137 ]; then
        failed=$((failed + 1)); echo "not ok a start ended with $status, and was it killed? $struck: $(tail -n 2 "$WORK/err")"
        [ $failed -lt 10 ] || break
    else
        killed=$((killed + 1))
        [ "$ranks" -eq 1 ] || rm -rf "$memory"/*-host$((RANDOM % 2))
    fi
done
( start "$run" ) > "$WORK/out" 2>&1; status=$?
expect "$ranks ranks: $kills kills took place" [ "$killed" -eq "$kills" ]
expect "$ranks ranks: after $killed kills the run ends" [ $status -eq 0 ]
expect "$ranks ranks: with the weights of a run that was not killed" same_weights "$run" "$WORK/whole" step_000000$end
expect "$ranks ranks: steps strictly increase" [ "$(steps_of "$run")" = "$(seq $end | tr '\n' ' ')" ]
expect "$ranks ranks: no copy is left" [ -z "$(ls -A "$memory")" ]
expect "$ranks ranks: no failed resume" [ "$failed" -eq 0 ]
echo "$killed kills, $failed failed resumes, $runs runs completed between them"
exit $STATUS
