#!/usr/bin/env bash
# A rank of 2 or 4 is stopped, hangs, or never leaves a random collective. As root, cables between hosts are also cut
# (test/hosts). All ranks must be gone within 15 s, with exit code 77 and a message.
# goal: 500 hangs and cut links
. "$(dirname "$0")/part.sh"
round() (
    trap - EXIT
    . test/run/lib/struck.sh
    every_collective $((2 + RANDOM % 2 * 2)) 3
    for point in $(shuf -n 3 <<< "$POINTS"); do
        ranks=$((2 + RANDOM % 2 * 2))
        struck "a hang in $point on $ranks ranks" "$point:hang,rank=$((RANDOM % ranks))" $ranks 77 15 "no progress .* in .*; collective .* is in flight"
    done
    for point in $(grep -v reduce@ <<< "$POINTS" | shuf -n 1); do struck "a stall in $point" "$point:stall,rank=$((RANDOM % 2))" 2 77 15 "no progress .* in .*; collective .* is in flight"; done
    SIGNAL=STOP struck "a stopped rank" "" 2 77 15 "no progress .* in .*; collective .* is in flight"
)
while more; do
    told=$(round)
    [ "$(id -u)" != 0 ] || told+=$'\n'$(bash test/hosts/cut.sh)
    grep '^not ok' <<< "$told"
    tally "$(grep -cE '^(ok|not ok) ' <<< "$told")" "$(grep -c '^not ok' <<< "$told")"
done
