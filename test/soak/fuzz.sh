#!/usr/bin/env bash
# The parsers under libFuzzer, two at a time; what was found so far is kept in build/fuzz/. Counted is the parser with the fewest inputs.
# goal: 100000000 inputs a parser
. "$(dirname "$0")/part.sh"
told=$(scripts/fuzz.sh $((seconds / 2)))
grep -E '^(not ok|skip)' <<< "$told"
tally "$(grep -oE '[0-9]+ inputs' <<< "$told" | sort -n | head -1 | grep -oE '[0-9]+' || echo 0)" "$(grep -c '^not ok' <<< "$told")"
