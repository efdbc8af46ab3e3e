#!/usr/bin/env bash
# Two jobs for one run folder at once, 10 races a round: test/run/lib/races.sh over and over.
# goal: 100 races
. "$(dirname "$0")/part.sh"
while more; do
    told=$(test/run/lib/races.sh 10 $RANDOM)
    grep '^not ok' <<< "$told"
    tally 10 "$(grep -c '^not ok' <<< "$told")"
done
