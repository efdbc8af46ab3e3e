#!/usr/bin/env bash
# A random rank of 2 to 8 dies in a random collective or at any instant. All ranks must end within 2 s (of a quiet
# machine), and the exit code must be 137.
# goal: 1000 crashes
. "$(dirname "$0")/part.sh"
round() (
    trap - EXIT
    . test/run/lib/struck.sh
    sizes=(2 3 4 6 8) ranks=${sizes[RANDOM % 5]}
    every_collective $ranks 3
    for point in $(shuf -n 4 <<< "$POINTS"); do
        struck "a death in $point" "$point:kill-$([ $((RANDOM % 2)) = 0 ] && echo before || echo after),rank=$((RANDOM % ranks))" $ranks 137 2 ""
    done
    SIGNAL=KILL struck "a death at any instant" "" $ranks 137 2 ""
    SIGNAL=SEGV struck "a crash at any instant" "" $ranks 139 2 ""
)
while more; do
    told=$(round)
    grep '^not ok' <<< "$told"
    tally "$(grep -cE '^(ok|not ok) ' <<< "$told")" "$(grep -c '^not ok' <<< "$told")"
done
