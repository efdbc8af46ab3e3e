#!/usr/bin/env bash
# Cuts the cable at a random instant of a training on two hosts. `make soak` runs it in its part `hangs`. Prints one
# line: ok or not ok.
. "$(dirname "$0")/hosts.sh"
begin 1 run.steps=1000000 eval.every=0 checkpoint.every=3 run.dir="$WORK/run" run.watchdog_seconds=5
sleep "0.$((RANDOM % 1000))"
cable down
gone 15; soon=$?
wait $JOB; code=$?
if [ $soon = 0 ] && [ $code = 77 ] && [ "$(cat "$WORK"/kept/code.*)" = $'77\n77' ]; then echo "ok a cut cable: all gone after $TOOK s"
else echo "not ok a cut cable: all gone after $TOOK s, mpirun's exit code $code, the ranks' $(cat "$WORK"/kept/code.* | tr '\n' ' ')"; fi
