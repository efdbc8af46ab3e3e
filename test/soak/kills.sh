#!/usr/bin/env bash
# Kills training runs with SIGKILL at random instants, on 1, 2 and 4 ranks alternately. Runs test/run/lib/kills.sh over
# and over, 20 kills each.
# goal: 10000 kills
. "$(dirname "$0")/part.sh"
while more; do
    for ranks in 1 2 4; do
        told=$(test/run/lib/kills.sh 20 $ranks $RANDOM)
        grep '^not ok' <<< "$told"
        tally "$(sed -nE 's/^([0-9]+) kills, .*/\1/p' <<< "$told" | grep . || echo 0)" "$(grep -c '^not ok' <<< "$told")"
    done
done
