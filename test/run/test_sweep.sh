#!/usr/bin/env bash
# Some of the kills of test/run/lib/sweep.sh, spread over 1, 2 and 4 ranks. `make soak` runs all of them.
told=$("$(dirname "$0")/lib/sweep.sh" 420 5 700)
status=$?
grep '^not ok' <<< "$told"
[ $status -eq 0 ] && echo "ok killed at I/O calls: $(tail -n 1 <<< "$told")"
exit $status
