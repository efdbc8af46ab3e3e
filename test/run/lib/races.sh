#!/usr/bin/env bash
# Starts two jobs for one run folder at once, over and over. Exactly one runs. The other ends with 73 within two seconds
# and has changed nothing. The folder then holds one job's run.
#   test/run/lib/races.sh RACES [SEED]     prints "not ok ..." for each that goes wrong, then "RACES races, FAILED failures"
races=$1 RANDOM=${2:-1}
. "$(dirname "${BASH_SOURCE[0]}")/tiny.sh"
failed=0
tiny() { exec "$TRAIN" "$WORK/tiny.json" run.dir="$WORK/run" eval.every=0 checkpoint.every=5 run.steps=1000000 "$@"; }
complain() { failed=$((failed + 1)); echo "not ok race $race: $*"; }
for race in $(seq "$races"); do
    # every third race begins in a new folder, the others in that of the race before
    if [ $((race % 3)) -eq 0 ]; then rm -rf "$WORK/run"; fi
    ( tiny > "$WORK/out.1" 2> "$WORK/err.1" ) & one=$!
    [ $((RANDOM % 2)) -eq 0 ] && sleep "0.0$((RANDOM % 10))"
    ( tiny > "$WORK/out.2" 2> "$WORK/err.2" ) & two=$!
    wait -n -p first $one $two; status=$?
    [ "$first" = $one ] && loser=1 winner=$two || loser=2 winner=$one
    [ $status -eq 73 ] || complain "exit $status: $(tail -n 2 "$WORK/err.$loser")"
    grep -q "process $winner)" "$WORK/err.$loser" || grep -q "(it has just begun)" "$WORK/err.$loser" || complain "$(cat "$WORK/err.$loser") names another than $winner"
    [ -s "$WORK/out.$loser" ] && complain "the one that is refused has begun"
    await_step "$WORK/run"
    kill -USR1 $winner 2> /dev/null; wait $winner; status=$?
    [ $status -eq 75 ] || complain "the other ends with $status"
    [ "$(steps_of "$WORK/run")" = "$(seq "$(values "$WORK/run" train step | tail -n 1)" | tr '\n' ' ')" ] || complain "steps do not increase one by one"
    [ -e "$WORK/run/.nonce" ] || [ -n "$(ls "$WORK/run/checkpoints" | grep tmp)" ] && complain "left behind: $(ls -a "$WORK/run" "$WORK/run/checkpoints")"
done
ok $((failed > 0)) "$races races of two jobs for one folder: one runs, the other is refused"
echo "$races races, $failed failures"
exit $STATUS
