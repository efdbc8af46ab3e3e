#!/usr/bin/env bash
# Every allocation of a start and of a resume fails once: test/run/test_memory.sh with none left out.
# goal: 270 allocations
. "$(dirname "$0")/part.sh"
told=$(test/run/test_memory.sh 1)
grep '^not ok' <<< "$told"
tally "$(grep -oE 'of the [0-9]+ allocations' <<< "$told" | awk '{ n += $3 } END { print n + 0 }')" "$(grep -c '^not ok' <<< "$told")"
