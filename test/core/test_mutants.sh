#!/bin/bash
# test_mutants.sh - the refusals of scripts/mutants.sh and of the reader of test/mutants.txt.
. "$(dirname "${BASH_SOURCE[0]}")/../run/lib/expect.sh"

refuses() { # refuses PATTERN LINE...: checks that a file of these lines is refused.
    local pattern=$1; shift
    printf '%s\n' "$@" > "$WORK/mutants.txt"
    ! python3 test/mutants.py list "$WORK/mutants.txt" > "$WORK/out" 2>&1 && grep -q "$pattern" "$WORK/out"
}
HEAD='one | core/rng.c | f | core'
expect "a mutant without its new fragment" refuses 'one: .* without its line that begins with +' "$HEAD" '- a' 'two | core/rng.c | f | core' '- a' '+ b'
expect "the last one without it" refuses 'one: .* without its line that begins with +' "$HEAD" '- a'
expect "a mutant without the old one" refuses 'one: .* without its line that begins with -' "$HEAD" '+ a'
expect "a fragment of no mutant" refuses 'before the first mutant' '- a' "$HEAD"
printf '%s\n' "$HEAD" '- a' '+' > "$WORK/mutants.txt"
expect "a fragment that goes" [ "$(python3 test/mutants.py list "$WORK/mutants.txt")" = $'one\tcore' ]

mkdir -p build
second() { scripts/mutants.sh 'no such mutant' > "$WORK/out" 2>&1; [ $? -eq 73 ] && grep -q 'another scripts/mutants.sh is at work' "$WORK/out"; }
if flock -n 9; then expect "a second run in one tree, exit 73" second; else expect "this is that second run" second; fi 9> build/mutants.lock
alone() { scripts/mutants.sh 'no such mutant' > "$WORK/out" 2>&1; [ $? -eq 64 ] && grep -q "no mutant's name has" "$WORK/out"; }
if flock -n build/mutants.lock true; then expect "alone it gets as far as its word" alone; fi
exit $STATUS
