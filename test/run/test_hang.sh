# A rank that hangs takes the job with it, soon and with a word: the others notice that it no longer answers.
. "$(dirname "$0")/tiny.sh"

# hang SIGNAL TARGET: 2 ranks train without end; rank 1 gets the signal after some steps. Leaves the exit status in $STATUS_OF and the seconds in $TOOK.
hang() {
    rm -rf "$WORK/run"
    ( train_ranks 2 run.steps=1000000 run.watchdog_seconds=2 eval.every=0 checkpoint.every=0 > "$WORK/out" 2> "$WORK/err"; echo $? > "$WORK/status" ) &
    local job=$!
    await_step "$WORK/run"
    kill -"$1" "$(pgrep -n -f "$WORK/tiny.json run.steps")"
    local at=$SECONDS
    wait $job
    TOOK=$((SECONDS - at)); STATUS_OF=$(cat "$WORK/status")
}
hang STOP
expect "a stopped rank: all are gone within 15 s" [ "$TOOK" -le 15 ]
expect "a stopped rank: exit 77" [ "$STATUS_OF" -eq 77 ]
expect "a stopped rank: rank, host and phase are told" grep -qE "rank [01] of 2 on .*: no progress for 2\.[0-9] s \(limit 2\.0 s, run.watchdog_seconds\) in " "$WORK/err"
expect "a stopped rank: the stacks are printed" grep -q "(main):" "$WORK/err"
expect "nobody is left" [ -z "$(pgrep -f "$WORK/tiny.json")" ]
hang KILL
expect "a killed rank: all are gone within 2 s" [ "$TOOK" -le 2 ]
expect "a killed rank: the job has failed" [ "$STATUS_OF" -ne 0 ]
expect "nobody is left after a kill" [ -z "$(pgrep -f "$WORK/tiny.json")" ]
exit $STATUS
