#!/usr/bin/env bash
# A rank dies before or after an I/O call: each call, and each rank of 1, 2 and 4. Continues test/run/lib/sweep.sh where
# the last call of this script ended.
# goal: 3700 calls
. "$(dirname "$0")/part.sh"
from=$(so_far sweep)
while more; do
    told=$(test/run/lib/sweep.sh "$from" 20)
    grep '^not ok' <<< "$told"
    tally 20 "$(grep -c '^not ok' <<< "$told")"
    from=$((from + 20))
done
