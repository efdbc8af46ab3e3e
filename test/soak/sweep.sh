#!/usr/bin/env bash
# A rank dies at an I/O call, before it or after it: each call, each rank, at 1, 2 and 4 ranks; test/run/lib/sweep.sh from where the last piece ended.
# goal: 3700 calls
. "$(dirname "$0")/part.sh"
from=$(so_far sweep)
while more; do
    told=$(test/run/lib/sweep.sh "$from" 20)
    grep '^not ok' <<< "$told"
    tally 20 "$(grep -c '^not ok' <<< "$told")"
    from=$((from + 20))
done
