#!/usr/bin/env bash
# Islands that join a server and leave it at random instants, in order or killed, 10 a round: test/run/lib/island_leaves.sh over and over.
# goal: 100 joins and leaves
. "$(dirname "$0")/part.sh"
while more; do
    told=$(test/run/lib/island_leaves.sh 10 $RANDOM)
    grep '^not ok' <<< "$told"
    tally "$(sed -nE 's/^([0-9]+) joins and leaves, .*/\1/p' <<< "$told" | grep . || echo 0)" "$(grep -c '^not ok' <<< "$told")"
done
