#!/usr/bin/env bash
# The machine's clock jumps back and forth by days. Waits, time limits, the watchdog and the lock must not notice,
# because they use the monotonic clock.
# Timed: waits must end when the monotonic clock says so.
. "$(dirname "${BASH_SOURCE[0]}")/lib/tiny.sh"
sanitized clock "comes before preloaded libraries" && exit 0
gcc -O1 -shared -fPIC -o "$WORK/clock.so" test/preload/clock.c || { echo "not ok the preloaded library"; exit 1; }
jumping() { LD_PRELOAD="$WORK/clock.so" "$@"; }

first=$(jumping date +%s) second=$(jumping bash -c 'date +%s; date +%s' | tail -1)
expect "the clock does jump" [ $(( (first - $(date +%s)) / 80000 )) -ne 0 -a -n "$second" ]
train run.dir="$WORK/quiet" run.steps=24 checkpoint.every=2 > /dev/null
expect "a run and its checkpoints do not mind" quiet jumping "$TRAIN" "$WORK/tiny.json" run.dir="$WORK/one" run.steps=24 checkpoint.every=2 run.watchdog_seconds=10 run.max_minutes=5 2> /dev/null
expect "one process: the same weights" same_weights "$WORK/one" "$WORK/quiet" step_00000024
expect "nor do two ranks" quiet run_ranks 2 env LD_PRELOAD="$WORK/clock.so" "$TRAIN" "$WORK/tiny.json" run.dir="$WORK/two" run.steps=24 checkpoint.every=2 run.watchdog_seconds=10 run.max_minutes=5 2> /dev/null
expect "2 ranks: every step, and no step twice" [ "$(steps_of "$WORK/two")" = "$(seq 24 | tr '\n' ' ')" ]
expect "a step takes no days" [ "$(values "$WORK/one" train ms | awk '$1 < 0 || $1 > 60000' | wc -l)" -eq 0 ]
jumping "$TRAIN" "$WORK/tiny.json" run.dir="$WORK/limit" run.steps=1000000 run.max_minutes=0.03 checkpoint.every=0 eval.every=0 > /dev/null
expect "run.max_minutes counts minutes that pass: exit 75" [ $? -eq 75 ]

# Makes the lock of a run look like that of another host that is still running. `watch` must not call that run silent
# when this machine's clock jumps between two looks.
tiny run.dir="$WORK/away" run.steps=1000000 checkpoint.every=0 eval.every=0 > /dev/null & job=$!
await_step "$WORK/away"; cp -r "$WORK/away" "$WORK/other"; kill $job; wait $job
sed -i 's/^host .*/host elsewhere/' "$WORK/other/lock"
CLOCK_BACK=1 LD_PRELOAD="$WORK/clock.so" timeout -s INT 8 python3 scripts/in_terminal.py 80 "$TRAIN" watch "$WORK/other" > "$WORK/seen" 2>&1
expect "watch: the lock is another host's, and several looks are there" eval 'grep -q "^host elsewhere" "$WORK/other/lock" && [ "$(grep -ac other "$WORK/seen")" -ge 2 ]'
expect "watch: it is running in each" eval 'grep -aq "running" "$WORK/seen" && ! grep -aq "without a word" "$WORK/seen"'
exit $STATUS
