#!/usr/bin/env bash
# Every place that allocates in a start, a resume and the verbs fails once: test/run/test_memory.sh with none left out.
# goal: 500 allocations
. "$(dirname "$0")/part.sh"
told=$(test/run/test_memory.sh 1)
grep '^not ok' <<< "$told"
tally "$(grep -oE 'of the [0-9]+ places' <<< "$told" | awk '{ n += $3 } END { print n + 0 }')" "$(grep -c '^not ok' <<< "$told")"
