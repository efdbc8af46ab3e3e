#!/usr/bin/env bash
# Every place that allocates memory in a start, a resume and the subcommands fails once: test/run/test_memory.sh with no
# place left out.
# goal: 500 allocations
. "$(dirname "$0")/part.sh"
told=$(test/run/test_memory.sh 1)
grep '^not ok' <<< "$told"
tally "$(grep -oE 'of the [0-9]+ places' <<< "$told" | awk '{ n += $3 } END { print n + 0 }')" "$(grep -c '^not ok' <<< "$told")"
