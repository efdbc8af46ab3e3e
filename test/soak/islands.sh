#!/usr/bin/env bash
# Islands (training jobs) join a server and leave it at random instants, by request or killed. Runs
# test/run/lib/island_leaves.sh over and over, 10 leaves each.
# goal: 100 joins and leaves
. "$(dirname "$0")/part.sh"
while more; do
    told=$(test/run/lib/island_leaves.sh 10 $RANDOM)
    grep '^not ok' <<< "$told"
    tally "$(sed -nE 's/^([0-9]+) joins and leaves, .*/\1/p' <<< "$told" | grep . || echo 0)" "$(grep -c '^not ok' <<< "$told")"
done
