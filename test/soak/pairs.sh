#!/usr/bin/env bash
# Each number of ranks from 1 to 8 saves, and each resumes, with the bits of the unbroken run (parallel.deterministic).
# It starts at a random pair.
# goal: 64 pairs
. "$(dirname "$0")/part.sh"
. test/run/lib/tiny.sh
. test/run/lib/pairs.sh
trap 'rm -rf "$WORK"; tell' EXIT
first=$((RANDOM % 64))
for i in $(seq 0 63); do
    more || break
    at=$(((first + i) % 64))
    told=$(pairs $((at / 8 + 1)):$((at % 8 + 1)))
    grep '^not ok' <<< "$told"
    tally 1 "$(grep -c '^not ok' <<< "$told" | sed 's/^[1-9].*/1/')"
done
