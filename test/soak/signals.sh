#!/usr/bin/env bash
# Sends SIGUSR1 at random instants, on 1 and 2 ranks alternately. Runs test/run/lib/signals.sh over and over, 20 signals
# each.
# goal: 1000 stops
. "$(dirname "$0")/part.sh"
while more; do
    for ranks in 1 2; do
        told=$(test/run/lib/signals.sh 20 $ranks $RANDOM)
        grep '^not ok' <<< "$told"
        tally 20 "$(grep -c '^not ok' <<< "$told")"
    done
done
