#!/usr/bin/env bash
# make faults: lists the faults that a run must survive (test/faults.txt). For each it runs the tests that prove it now,
# and prints pass, FAIL or skip.
#   scripts/faults.sh [F1 F7 ...]    only these
set -u
. "$(dirname "$0")/env.sh"
for fault in "$@"; do
    grep -qE "^ *$fault *\|" test/faults.txt || { echo "faults: there is no fault $fault in test/faults.txt" >&2; exit 64; }
done
declare -A result
status=0

prove() { # prove TEST: runs a test, unless it has run already, and keeps its result: pass, FAIL or skip
    local last
    case $1 in
        test/slurm/*) last="skip: make test-slurm" ;;
        test/hosts/*) last="skip: make test-hosts" ;;
        *)  last=$(B=$B scripts/test.sh "$1" 2>&1 < /dev/null | tail -n 1) # mpirun would read the list of faults
            if [[ $last =~ ^([0-9]+)\ passed,\ 0\ failed,\ ([0-9]+)\ skipped ]]; then
                [ "${BASH_REMATCH[1]}" -gt 0 ] && last=pass || last="skip: nothing ran"
                [ "$last" != pass ] || [ "${BASH_REMATCH[2]}" -eq 0 ] || last="skip: ${BASH_REMATCH[2]} of its cases"
            else last="FAIL: $last"; fi ;;
    esac
    result[$1]=$last
}

while IFS='|' read -r fault what tests; do
    fault=${fault// /} what=$(xargs <<< "$what")
    [[ $fault =~ ^F[0-9]+$ ]] || continue
    [ $# -eq 0 ] || [[ " $* " == *" $fault "* ]] || continue
    worst=pass
    [ -n "${tests// /}" ] || worst="FAIL: no test"
    for test in $tests; do
        [ -e "$test" ] || { worst="FAIL: no $test"; continue; }
        [ -n "${result[$test]:-}" ] || prove "$test"
        case ${result[$test]} in FAIL*) worst="${result[$test]} ($test)" ;; skip*) [ "$worst" = pass ] && worst="pass, but $test ${result[$test]}" ;; esac
    done
    case $worst in FAIL*) status=1 ;; esac
    printf '%-4s %-62s %s\n' "$fault" "$what" "$worst"
done < <(sed 's/#.*//' test/faults.txt)
exit $status
