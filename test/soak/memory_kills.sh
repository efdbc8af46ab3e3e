#!/usr/bin/env bash
# A host is lost at a random instant, its memory too; or a rank alone is killed. 10 a round: test/run/lib/memory_kills.sh over and over.
# goal: 200 lost hosts
. "$(dirname "$0")/part.sh"
while more; do
    for ranks in 4 1; do
        told=$(test/run/lib/memory_kills.sh 10 $ranks $RANDOM)
        grep '^not ok' <<< "$told"
        tally $([ $ranks -eq 4 ] && echo 10 || echo 0) "$(grep -c '^not ok' <<< "$told")"
    done
done
