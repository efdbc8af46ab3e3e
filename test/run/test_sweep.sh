#!/usr/bin/env bash
# Kills a run at some I/O calls, by test/run/lib/sweep.sh, spread over 1, 2 and 4 ranks. `make soak` tries all calls.
told=$("$(dirname "$0")/lib/sweep.sh" 420 5 700)
status=$?
grep '^not ok' <<< "$told"
[ $status -eq 0 ] && echo "ok killed at I/O calls: $(tail -n 1 <<< "$told")"
exit $status
