#!/usr/bin/env bash
# The test suite: cmocka programs of test/<folder>, rank tests under mpirun, shell tests. Ends with "N passed, N failed, N skipped".
#   scripts/test.sh [FILTER]     only tests whose path contains FILTER;  B=build/cpu picks the build;  SMOKE=1: the short ones, a minute
set -u
. "$(dirname "$0")/env.sh"
filter=${1:-}
passed=0 failed=0 skipped=0 failures=()
log=$(mktemp) tmp=$(mktemp -d)
started=$SECONDS limit=600 patience=600 # seconds of one script, of one program
lane_jobs=()
mark=${TRAIN_GPT_TEST:+$TRAIN_GPT_TEST/}$$ tests=0 # in the environment of all that a test starts, also where it leaves its session

# started_by MARK [SESSION]: prints the ids of the processes that a test, or all tests, have started and that still run.
started_by() {
    grep -lzsE "^TRAIN_GPT_TEST=$1(/|$)" /proc/[0-9]*/environ | cut -d/ -f3
    [ -z "${2:-}" ] || cat /proc/[0-9]*/stat 2> /dev/null | awk -v s="$2" '{ pid = $1; sub(/.*\) /, "") } $1 != "Z" && $4 == s { print pid }'
}
# end_all SECONDS MARK [SESSION]: asks these processes to end, and kills those that remain after SECONDS.
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

# results: prints passed, failed, skipped from the TAP output of a cmocka program. A planned test without result failed.
results() {
    awk '/^1\.\.[0-9]+\r?$/ { planned += substr($0, 4) } !/^(not )?ok [0-9]+ / { next } { seen++ }
         /# SKIP/ { s++; next } /^ok/ { p++; next } { f++ } END { if (planned > seen) f += planned - seen; print p + 0, f + 0, s + 0 }' "$log"
}
run_cmocka() { # NAME COMMAND...
    local name=$1 at=$SECONDS status; shift
    case $name in *"$filter"*) ;; *) return ;; esac
    if unbuilt "${@: -1}" > "$log"; then note "$name" 1 0 1 0 0; return; fi
    export CMOCKA_MESSAGE_OUTPUT=TAP
    # Only programs without MPI are checked for leaks here; test/run/test_leaks.sh checks a whole run on two ranks.
    if [ "$1" = run_ranks ]; then apart "$patience" bash -c 'run_ranks "$@"' _ "${@:2}"
    else ASAN_OPTIONS=${ASAN_OPTIONS/detect_leaks=0/detect_leaks=1} apart "$patience" "$@"; fi; status=$?
    unset CMOCKA_MESSAGE_OUTPUT
    # shellcheck disable=SC2046
    note "$name" "$status" $(results) $((SECONDS - at))
}
export -f run_ranks; export B OUTPUT_OPTIONS

# Prints why no ranks can be started; nothing if they can.
case $B in
*nompi*) launchless="this build has no MPI" ;;
*mpich*) launchless=$(command -v mpirun.mpich > /dev/null || echo "mpirun.mpich is not installed (package mpich)") ;;
*)       launchless=$(command -v mpirun > /dev/null || echo "mpirun is not installed (package openmpi-bin)") ;;
esac
without() { # without NAME WHY: reports a test as skipped
    case $1 in *"$filter"*) echo "skip $1: $2" > "$log"; note "$1" 0 0 0 1 0 ;; esac
}

run_shell() {
    local name=$1 at=$SECONDS status
    case $name in *"$filter"*) ;; *) return ;; esac
    if [ -n "$launchless" ] && grep -qE 'train_ranks|run_ranks|mpirun' "$name"; then without "$name" "$launchless"; return; fi
    apart $limit bash "$name"; status=$?
    note "$name" "$status" "$(grep -c '^ok ' "$log")" "$(grep -c '^not ok ' "$log")" "$(grep -c '^skip ' "$log")" $((SECONDS - at))
}

# Test folders of a build. The plain CPU build runs all tests, its variants those of the code that they compile, the
# emulator and a GPU those of the code that runs there.
case $B in
    build/cpu)   folders="core layers data comm model run/config run/guard run/checkpoint run/outer run/text run/log run/plan run run/verbs emu interop fuzz" ;;
    build/emu*)  folders="comm emu" ;; # its ops are in test/emu/test_kernels.sh, under both watchers
    build/cuda*) folders="layers comm model" patience=200 ;; # a kernel that hangs must not take all the time that a GPU is there
    *)           folders="core layers data comm model run/config run/guard run/checkpoint run/outer run/text run/log run/plan run run/verbs interop" ;;
esac
# For a quick check while working: unit tests, ranks two by two, and one script that trains, saves and resumes.
ranks="1 2 3 4" scripts="test_*.sh"
if [ -n "${SMOKE:-}" ]; then
    folders="core layers data comm model run/config run/guard run/checkpoint run/outer run/text run/log run/plan run run/verbs" ranks=2 scripts="test_train.sh"
    long="test_checkpoint_faults test_checkpoint_power ranks_checkpoint_faults test_watchdog ranks_groups ranks_grid" # they wait, or try every case
fi
is_wanted() { case " ${long:-} " in *" $(basename "$1" .c) "*) return 1 ;; esac; }
# rank_counts: prints on how many ranks a rank test runs, which a line of its head may say.
rank_counts() { local said; said=$(sed -n 's/^ \* Runs on \([0-9 ]*\) ranks\.$/\1/p' "$1"); echo "${said:-$ranks}"; }
run_folders() { # FOLDER...
    local folder source script n
    for folder in "$@"; do
        for source in test/$folder/test_*.c; do
            [ -e "$source" ] && is_wanted "$source" && run_cmocka "$source" "$B/${source%.c}"
        done
        for source in test/$folder/ranks_*.c; do
            [ -e "$source" ] && is_wanted "$source" || continue
            for n in $(rank_counts "$source"); do
                if [ -z "$launchless" ]; then OMP_NUM_THREADS=1 run_cmocka "$source, $n ranks" run_ranks "$n" "$B/${source%.c}"
                elif [ "$n" -eq 1 ]; then OMP_NUM_THREADS=1 run_cmocka "$source, $n ranks" "$B/${source%.c}"
                else without "$source, $n ranks" "$launchless"; fi
            done
        done
        for script in test/$folder/$scripts; do [ -e "$script" ] && ! is_patient "$script" && run_shell "$script"; done
    done
}

# Three lanes. One runs the emulator's long scripts, which build what other scripts need. One runs patient scripts and
# whole folders (name/), which have no time limits. One runs the others, which mostly wait and are first. A lane that is
# finished takes the next patient script, long ones first, and last those that wait for all of the emulator's builds.
# The output of the other lanes is printed afterwards.
lanes="" patient=""
if [ "$B" = build/cpu ] && [ -z "${SMOKE:-}$filter" ]; then
    lanes=1 builders="emu/kernel_plan emu/emulator emu/kernels"
    patient="run/grid emu/training model/ emu/streams emu/host run/deterministic run/islands run/stream fuzz/fuzz run/sweep_search run/plan/"
    patient+=" run/servers layers/ run/eval run/ranks run/memory run/disk run/newcomer run/documents run/llama run/moments run/fp8 run/experts"
    patient+=" run/sweep run/names run/memory_copies run/muon data/ run/qwen3_moe run/tokenize run/qwen3 run/texts run/sample run/export"
    patient+=" run/train run/watch run/fetch run/copies run/plot run/inspect run/configs run/decay run/keep emu/schedules emu/plan_bound"
    for name in $patient; do case $name in */) folders=" $folders "; folders=${folders/ ${name%/} / } ;; esac; done
fi
is_patient() { local name=${1/test_/}; name=${name#test/}; case " ${builders:-} $patient " in *" ${name%.sh} "*) return 0 ;; *) return 1 ;; esac; }
run_scripts() { # run_scripts NAME...: runs those that exist
    local name script
    for name in "$@"; do script=test/${name%/*}/test_${name##*/}.sh; [ ! -e "$script" ] || run_shell "$script"; done
}
run_patient() {
    local name
    for name in $patient; do
        mkdir "$taken/${name/\//.}" 2> /dev/null || continue
        case $name in
            emu/schedules | emu/plan_bound) until [ -e "$taken/built.kernels" ]; do sleep 1; done ;;
            emu/*) until [ -e "$taken/built.kernel_plan" ]; do sleep 1; done ;; # which builds the whole program
        esac
        case $name in */) run_folders "${name%/}" ;; *) run_scripts "$name" ;; esac
    done
}
lane() { # lane SCRIPT...: runs these, then patient ones
    log=$(mktemp "$tmp/log.XXXXXX") limit=1500
    renice -n 10 -p $BASHPID > /dev/null
    local name
    for name in "$@"; do run_scripts "$name"; touch "$taken/built.${name#*/}"; done
    run_patient
    printf 'failed: %s\n' "${failures[@]+"${failures[@]}"}" | grep -v ': $'
    echo "sums $passed $failed $skipped"
}
if [ -n "$lanes" ]; then
    taken=$tmp/taken; mkdir "$taken"
    # shellcheck disable=SC2086
    (lane $builders) > "$tmp/lane1" 2>&1 & lane_jobs+=($!)
    (lane) > "$tmp/lane2" 2>&1 & lane_jobs+=($!)
fi
run_folders $folders
if [ -n "$lanes" ]; then
    run_patient
    wait
    for lane in "$tmp/lane1" "$tmp/lane2"; do
        grep -v '^sums \|^failed: ' "$lane"
        while read -r name; do failures+=("$name"); done < <(sed -n 's/^failed: //p' "$lane")
        read -r _ p f s < <(grep '^sums ' "$lane" || echo "sums 0 1 0")
        passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    done
fi

echo
echo "suite took $((SECONDS - started)) s"
[ ${#failures[@]} -eq 0 ] || printf 'failed: %s\n' "${failures[@]}"
ran=$((passed + failed + skipped))
[ $ran -gt 0 ] || echo "no test that $B has is named by \"$filter\": it is any part of a path, such as layers/test_linear" >&2
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ $ran -gt 0 ]
