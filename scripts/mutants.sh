#!/usr/bin/env bash
# Plants the one-line faults (mutants) of test/mutants.txt, one at a time, in a copy of the sources. The test suite must
# catch each.
#   scripts/mutants.sh [FILTER]      only mutants whose name contains FILTER
# A mutant is caught when the part of the suite that it names fails. That part must pass on the unchanged sources, which
# is checked first. The copy is build/mutants. A second run of this script at the same time is refused with exit code
# 73.
set -u
. "$(dirname "$0")/env.sh"
if [ -z "${MUTANTS_LOCKED:-}" ]; then # -o: nothing that a test leaves behind holds the lock
    mkdir -p build
    MUTANTS_LOCKED=1 flock -n -o -E 73 build/mutants.lock "$BASH" scripts/mutants.sh "$@"
    code=$?
    [ $code -ne 73 ] || echo "another scripts/mutants.sh is at work in $PWD/build/mutants: wait until it is done, or use another clone" >&2
    exit $code
fi
unset MUTANTS_LOCKED
filter=${1:-}
tree=$PWD/build/mutants
mkdir -p "$tree"
git ls-files -z --cached --others --exclude-standard | xargs -0 -I{} sh -c 'test -e "$1" && echo "$1"' _ {} > build/mutants.list
tar -cf - -T build/mutants.list | tar -xf - -C "$tree" --keep-newer-files --warning=no-ignore-newer
cd "$tree" || exit 1

# targets PART: prints the make targets for a part of the test suite: its test programs, or all tests if the part has a
# script.
targets() {
    local test programs=""
    for test in $(find test -name 'test_*.*' -o -name 'ranks_*.c' | grep -F -- "$1"); do
        case $test in *.c) programs+=" build/cpu/${test%.c}" ;; *) echo tests; return ;; esac
    done
    echo "$programs"
}
# suite PART: builds and runs a part of the test suite in the copy, and keeps the logs. Exit code 0: all tests passed.
# 1: a test failed. 2: it does not build. 3: no test ran, which proves nothing. 124: the mutant hangs.
suite() { # PART
    local status verdict
    case $1 in *:*) emulated "${1%%:*}" "${1#*:}"; return ;; esac
    make -s BACKEND=cpu $(targets "$1") > build.log 2>&1 || return 2
    B=build/cpu timeout 300 scripts/test.sh "$1" > test.log 2>&1 < /dev/null; status=$? # mpirun would read the list of mutants
    verdict=$(tail -n 1 test.log)
    [ $status -ne 124 ] || return 124
    [[ $verdict =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed, ]] && [ $((BASH_REMATCH[1] + BASH_REMATCH[2])) -gt 0 ] || return 3
    [ $status -eq 0 ]
}

# emulated BUILD TEST[:early]: runs one test program on the emulator; with :early, asynchronous copies arrive at once
emulated() {
    make -s BACKEND=emu SAN="${1#emu}" "build/$1/test/${2%:*}" > build.log 2>&1 || return 2
    OMP_NUM_THREADS=1 EMU_ASYNC=$([ "${2#*:}" = early ] && echo early || echo late) timeout 300 "build/$1/test/${2%:*}" > test.log 2>&1 < /dev/null || return 1
}

# restore: puts the original file back, with a time later than that of the objects built from the mutant, so that make
# builds them again.
restore() { [ -z "${file:-}" ] || { mv "$file.original" "$file"; touch "$file"; file=; }; }
file= ; trap restore EXIT

python3 test/mutants.py list test/mutants.txt | grep -F -- "$filter" > mutants.tsv || { echo "mutants: no mutant's name has \"$filter\"" >&2; exit 64; }
caught=0 survived=0
for part in $(cut -f2 mutants.tsv | sort -u); do
    suite "$part"; code=$?
    [ $code -ne 3 ] || { echo "the part '$part' runs no test here: $(grep -m 1 '^ *skip ' test.log || tail -n 1 test.log)"; exit 69; }
    [ $code -eq 0 ] || { echo "the part '$part' fails without a mutant:"; tail -n 20 build.log test.log; exit 1; }
done
while IFS=$'\t' read -r name part; do
    file=$(python3 test/mutants.py apply test/mutants.txt "$name") || { echo "$name: does not apply"; survived=$((survived + 1)); continue; }
    suite "$part"; code=$?
    case $code in 0) result=SURVIVED ;; 2) result="DOES NOT COMPILE" ;; 3) result="NO VERDICT" ;; *) result=caught ;; esac
    if [ $result = caught ]; then caught=$((caught + 1)); else survived=$((survived + 1)); fi
    printf '%-56s %-28s %s\n' "$name" "$part" "$result"
    restore
done < mutants.tsv
echo "$caught mutants caught, $survived survived"
[ "$survived" -eq 0 ]
