#!/usr/bin/env bash
# Runs the test suite: cmocka programs of test/<folder>, rank tests under mpirun, shell tests. The last line of output
# is "N passed, N failed, N skipped".
#   scripts/test.sh [FILTER]     only tests whose path contains FILTER
#                                B=build/cpu: the build to test; SMOKE=1: only the short tests, a minute;
#                                RENEW=1: writes the times of the tests to test/seconds.tsv if the whole suite passes
set -u
. "$(dirname "$0")/env.sh"
filter=${1:-}
passed=0 failed=0 skipped=0 failures=()
log=$(mktemp) tmp=$(mktemp -d)
started=$SECONDS limit=600 patience=600 # seconds of one script, of one program
lane_jobs=()
mark=${TRAIN_GPT_TEST:+$TRAIN_GPT_TEST/}$$ tests=0 # in the environment of all that a test starts, also where it leaves its session

# started_by MARK [SESSION]: prints the ids of the running processes that a test has started, or all tests. MARK is in
# their environment (TRAIN_GPT_TEST); SESSION is their session.
started_by() {
    grep -lzsE "^TRAIN_GPT_TEST=$1(/|$)" /proc/[0-9]*/environ | cut -d/ -f3
    [ -z "${2:-}" ] || cat /proc/[0-9]*/stat 2> /dev/null | awk -v s="$2" '{ pid = $1; sub(/.*\) /, "") } $1 != "Z" && $4 == s { print pid }'
}
# end_all SECONDS MARK [SESSION]: asks the processes that started_by prints to end, and kills those that remain after
# SECONDS.
end_all() {
    local patience=$(($1 * 10)) there; shift
    for there in $(started_by "$@"); do kill -TERM "$there" 2> /dev/null; done
    while there=$(started_by "$@"); [ -n "$there" ] && [ $((patience--)) -gt 0 ]; do sleep 0.1; done
    while there=$(started_by "$@"); [ -n "$there" ]; do kill -9 $there 2> /dev/null; sleep 0.05; done
}
finish() { # CODE
    trap '' INT TERM HUP
    kill -9 "${lane_jobs[@]}" 2> /dev/null # so that no further test begins
    end_all 10 "$mark"
    rm -rf "$log" "$tmp"
    trap - EXIT
    exit "$1"
}
trap 'finish $?' EXIT
trap 'finish 130' INT; trap 'finish 143' TERM; trap 'finish 129' HUP

# note NAME STATUS PASSED FAILED SKIPPED SECONDS: prints and counts the result of a test
note() {
    local name=$1 status=$2 p=$3 f=$4 s=$5
    if [ "$status" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
    if [ $((p + f + s)) -eq 0 ]; then f=1; fi                 # a program that ran nothing has not passed
    if grep -q '^left behind: ' "$log"; then f=$((f + 1)); fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    if [ "$f" -gt 0 ]; then failures+=("$name"); echo "--- $name failed (status $status):"; grep -B 12 -A 30 '^not ok' "$log" | head -n 80; tail -n 40 "$log"; fi
    printf '%s\t%d\n' "$name" "$6" >> "$tmp/seconds"
    printf '%-52s %4d passed %3d failed %3d skipped  %4ds\n' "$name" "$p" "$f" "$s" "$6"
    sed -nE 's/^(skip .*)/    \1/p; s/^(not )?ok [0-9]+ (.*)# SKIP/    skip \2/p' "$log" # with what it needs
}

# apart SECONDS COMMAND...: runs a command in its own session, for at most SECONDS, and then ends all that it started.
# The log names each process that still runs 5 s after the command has ended. The command gets its own TMPDIR, because
# jobs of mpirun that end and begin in one folder can hang. A command in the background ignores Ctrl-C, and so would all
# that it starts; `heeding` resets that.
heeding=(env --default-signal=INT,QUIT); "${heeding[@]}" true 2> /dev/null || heeding=()
apart() {
    local seconds=$1 began=$SECONDS own job at status left pid; shift
    own=$(mktemp -d "$tmp/XXXXXX") at=$mark/$BASHPID.$((++tests))
    TMPDIR=$own TRAIN_GPT_TEST=$at "${heeding[@]}" setsid timeout -k 10 "$seconds" "$@" > "$log" 2>&1 < /dev/null & job=$!
    wait $job; status=$?
    if [ $((SECONDS - began)) -ge "$seconds" ]; then
        echo "stopped after its limit of $seconds s" >> "$log"
        end_all 5 "$at" $job
    else
        for _ in $(seq 50); do left=$(started_by "$at" $job); [ -n "$left" ] || break; sleep 0.1; done
        for pid in $(sort -un <<< "$left"); do echo "left behind: process $pid, $(tr '\0' ' ' 2> /dev/null < "/proc/$pid/cmdline")" >> "$log"; done
        [ -z "$left" ] || end_all 0 "$at" $job
    fi
    rm -rf "$own"
    return $status
}

# results: prints the numbers of passed, failed and skipped tests in the TAP output of a cmocka program. A planned test
# without a result counts as failed.
results() {
    awk '/^1\.\.[0-9]+\r?$/ { planned += substr($0, 4) } !/^(not )?ok [0-9]+ / { next } { seen++ }
         /# SKIP/ { s++; next } /^ok/ { p++; next } { f++ } END { if (planned > seen) f += planned - seen; print p + 0, f + 0, s + 0 }' "$log"
}
run_cmocka() { # NAME COMMAND...
    local name=$1 at=$SECONDS status; shift
    if unbuilt "${@: -1}" > "$log"; then note "$name" 1 0 1 0 0; return; fi
    export CMOCKA_MESSAGE_OUTPUT=TAP
    # Checks only programs without MPI for leaks; test/run/test_leaks.sh checks a whole run on two ranks.
    if [ "$1" = run_ranks ]; then apart "$patience" bash -c 'run_ranks "$@"' _ "${@:2}"
    else ASAN_OPTIONS=${ASAN_OPTIONS/detect_leaks=0/detect_leaks=1} apart "$patience" "$@"; fi; status=$?
    unset CMOCKA_MESSAGE_OUTPUT
    # shellcheck disable=SC2046
    note "$name" "$status" $(results) $((SECONDS - at))
}
export -f run_ranks; export B OUTPUT_OPTIONS

# Sets launchless to the reason why no MPI ranks can be started; empty if they can.
case $B in
*nompi*) launchless="this build has no MPI" ;;
*mpich*) launchless=$(command -v mpirun.mpich > /dev/null || echo "mpirun.mpich is not installed (package mpich)") ;;
*)       launchless=$(command -v mpirun > /dev/null || echo "mpirun is not installed (package openmpi-bin)") ;;
esac
without() { echo "skip $1: $2" > "$log"; note "$1" 0 0 0 1 0; } # without NAME WHY: reports a test as skipped

run_shell() {
    local name=$1 at=$SECONDS status
    if [ -n "$launchless" ] && grep -qE 'train_ranks|run_ranks|mpirun' "$name"; then without "$name" "$launchless"; return; fi
    apart $limit bash "$name"; status=$?
    note "$name" "$status" "$(grep -c '^ok ' "$log")" "$(grep -c '^not ok ' "$log")" "$(grep -c '^skip ' "$log")" $((SECONDS - at))
}
run_test() { # run_test NAME: runs the test with this NAME, in the form that every_test prints
    local name=$1 program n=${1##*, }
    program=$B/${name%%.c*} n=${n% ranks}
    case $name in
    *.sh) run_shell "$name" ;;
    *.c) run_cmocka "$name" "$program" ;;
    *)  if [ -z "$launchless" ]; then OMP_NUM_THREADS=1 run_cmocka "$name" run_ranks "$n" "$program"
        elif [ "$n" -eq 1 ]; then OMP_NUM_THREADS=1 run_cmocka "$name" "$program"
        else without "$name" "$launchless"; fi ;;
    esac
}

# Test folders that a build runs. The plain CPU build runs all tests. Its variants (sanitizers, other compilers) run the
# tests of the code that they compile. The emulator build and the CUDA build run the tests of their GPU code.
code="core layers data comm model run/config run/guard run/checkpoint run/outer run/text run/log run/plan run run/verbs"
case $B in
    build/cpu)   folders="$code emu interop fuzz" ;;
    build/emu*)  folders="comm emu" ;; # its ops are in test/emu/test_kernels.sh, under both watchers
    build/cuda*) folders="layers comm model" patience=200 ;; # a kernel that hangs must not take all the time that a GPU is there
    *)           folders="$code interop" ;;
esac
ranks="1 2 3 4" scripts="test_*.sh"
# SMOKE=1 is a quick check while working: unit tests, rank tests with two ranks, and one script that trains, saves and
# resumes.
[ -z "${SMOKE:-}" ] || folders=$code ranks=2 scripts="test_train.sh"

# Lines in the head of a test that this script reads. They begin with "# " in a script and with " * " in C:
#   Runs on 1 2 ranks.    a rank test runs once with each of these numbers of ranks; without this line with 1 to 4
#   Long: WHY             the test is left out with SMOKE=1
#   Timed: WHY            measures times of the program, so no other timed test may run at the same time
# A test script for the emulator (CUDA kernels on the CPU) builds what it needs by a line
# "needs BACKEND=emu TARGET..." (test/run/lib/emu.sh).

# every_test: prints the names of the tests, folder by folder: test/core/test_x.c, "test/comm/ranks_x.c, 2 ranks", test/run/test_x.sh.
every_test() {
    local folder source n counts
    for folder in $folders; do
        for source in test/$folder/test_*.c test/$folder/ranks_*.c test/$folder/$scripts; do
            [ -e "$source" ] || continue
            [ -z "${SMOKE:-}" ] || ! grep -q '^ \* Long: ' "$source" || continue
            case $source in
            */ranks_*) counts=$(sed -n 's/^ \* Runs on \([0-9 ]*\) ranks\.$/\1/p' "$source"); for n in ${counts:-$ranks}; do echo "$source, $n ranks"; done ;;
            *) echo "$source" ;;
            esac
        done
    done | grep -F -- "$filter"
}
mapfile -t names < <(every_test)

# --- three lanes ------------------------------------------------------------------------------------------------------
# The first lane runs the timed tests, which mostly wait, one at a time and before other programs. The two others run
# everything else behind it: the emulator's scripts first, then tests that test/seconds.tsv does not know, then long
# ones. A lane whose tests are done helps the others. The output of these two is printed afterwards.

# in_order NAME...: prints kind, seconds and name of each test, in the order in which a lane (one of three parallel
# workers) takes them.
in_order() {
    printf '%s\n' "$@" | awk -F'\t' -v OFS='\t' 'FILENAME == ARGV[1] { timed[$1]; next } FILENAME == ARGV[2] { emulated[$1]; next }
        FILENAME == ARGV[3] { seconds[$1] = $2; next }
        { source = $1; sub(/,.*/, "", source); print source in timed ? 0 : source in emulated ? 1 : 2, $1 in seconds ? seconds[$1] : 99999, $1 }' \
        <(grep -lE '^(#| \*) Timed: ' "${@%%,*}") <(grep -l '^needs ' "${@%%,*}") <(cat test/seconds.tsv 2> /dev/null) - | sort -s -k1,1n -k2,2nr
}
# is_ready NAME: builds what the test script NAME needs. Two makes in one folder would disturb each other. So the call
# fails at once if another lane (parallel worker) is building; the lane of the emulator's scripts waits instead. If the
# build fails, the test script itself reports it.
is_ready() {
    local words
    while read -r words; do
        ! grep -qsxF -- "$words" "$tmp/made" || continue
        # shellcheck disable=SC2086
        TRAIN_GPT_TEST=$mark flock $at_once -E 99 "$tmp/making" make -s $words > /dev/null 2>&1 < /dev/null
        [ $? -ne 99 ] || return 1
        echo "$words" >> "$tmp/made"
    done < <(sed -n 's/^needs //p' "${1%%,*}")
}
# take FIRST: takes the next test from number FIRST on that no other lane has taken, and sets `name` to it. Fails if
# none is left.
take() {
    local i busy=yes
    while [ -n "$busy" ]; do
        busy=
        for ((i = $1; i < ${#names[@]}; i++)); do
            name=${names[i]}
            if [ -e "$tmp/taken/$i" ]; then continue
            elif ! is_ready "$name"; then busy=yes
            elif mkdir "$tmp/taken/$i" 2> /dev/null; then return; fi
        done
        [ -z "$busy" ] || sleep 1
    done
    return 1
}
lane() {
    log=$(mktemp "$tmp/log.XXXXXX") limit=1500
    renice -n 10 -p $BASHPID > /dev/null
    while take "$timed"; do run_test "$name"; done
    printf 'failed: %s\n' "${failures[@]+"${failures[@]}"}" | grep -v ': $'
    echo "sums $passed $failed $skipped"
}
if [ "$B" != build/cpu ] || [ -n "${SMOKE:-}$filter" ]; then
    for name in "${names[@]}"; do run_test "$name"; done
else
    mkdir "$tmp/taken"
    in_order "${names[@]}" > "$tmp/order"
    timed=$(grep -c ^0 "$tmp/order")
    mapfile -t names < <(cut -f3 "$tmp/order")
    at_once=
    lane > "$tmp/lane1" 2>&1 & lane_jobs+=($!)
    at_once=-n
    lane > "$tmp/lane2" 2>&1 & lane_jobs+=($!)
    while take 0; do run_test "$name"; done
    wait
    for lane in "$tmp/lane1" "$tmp/lane2"; do
        grep -v '^sums \|^failed: ' "$lane"
        while read -r name; do failures+=("$name"); done < <(sed -n 's/^failed: //p' "$lane")
        read -r _ p f s < <(grep '^sums ' "$lane" || echo "sums 0 1 0")
        passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    done
    [ -z "${RENEW:-}" ] || [ "$failed" -gt 0 ] || { echo "# The seconds of each test, written by RENEW=1 scripts/test.sh"; LC_ALL=C sort "$tmp/seconds"; } > test/seconds.tsv
fi

echo
echo "suite took $((SECONDS - started)) s"
[ ${#failures[@]} -eq 0 ] || printf 'failed: %s\n' "${failures[@]}"
ran=$((passed + failed + skipped))
[ $ran -gt 0 ] || echo "no test that $B has is named by \"$filter\": it is any part of a path, such as layers/test_linear" >&2
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ $ran -gt 0 ]
