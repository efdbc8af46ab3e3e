# part.sh - shared by the parts of `make soak`. A part is a script test/soak/NAME.sh SECONDS. Each call works for about
# that long, prints a line `not ok ...` for each failure, and at the end `N done, N failed`. The part's head has a line
# `# goal: NUMBER NOUN`, the number to reach over all calls. Sourced, not run.
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/env.sh"
seconds=${1:-60} end=$((SECONDS + ${1:-60})) done=0 failed=0
more()  { [ $SECONDS -lt $end ]; }
tally() { done=$((done + $1)) failed=$((failed + $2)); }   # tally DONE FAILED: adds to the numbers of this call
# so_far PART: prints how much earlier calls of the part have done, for a part that works through a list.
so_far() { grep -s "\"part\": \"$1\"" test/results/soak.jsonl | grep -oE '"count": [0-9]+' | awk '{ n += $2 } END { print n + 0 }'; }
# fuzz_parser TARGET: runs the parser of test/fuzz/ under libFuzzer. build/fuzz/ keeps the inputs found so far.
fuzz_parser() {
    local told; told=$(scripts/fuzz.sh "$seconds" "$1")
    grep -E '^(not ok|skip)' <<< "$told"
    tally "$(grep -oE '[0-9]+ inputs' <<< "$told" | grep -oE '[0-9]+' || echo 0)" "$(grep -c '^not ok' <<< "$told")"
}
tell()  { echo "$done done, $failed failed"; [ "$failed" -eq 0 ]; }
trap tell EXIT
