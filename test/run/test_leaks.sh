#!/usr/bin/env bash
# Memory that is never freed: whole runs and subcommands under LeakSanitizer, on one rank and on two. Only the build
# with SAN=-asan has it.
case ${B:-build/cpu} in *-asan) ;; *) echo "skip leaks: this build has no LeakSanitizer (SAN=-asan has)"; exit 0 ;; esac
. "$(dirname "${BASH_SOURCE[0]}")/lib/tiny.sh"
export ASAN_OPTIONS=detect_leaks=1:fast_unwind_on_malloc=0 LSAN_OPTIONS=suppressions=$PWD/test/lsan.supp:print_suppressions=0

leakless() { "$@" > "$WORK/out" 2> "$WORK/err" && return; grep -E "leak of|#[0-9] |SUMMARY" "$WORK/err" | head -40; return 1; }
expect "a run leaks nothing" leakless train
expect "a run that has nothing to do leaks nothing" leakless train
for verb in "plan $WORK/tiny.json" "check $WORK/tiny.json" "sample $WORK/run prompt=a tokens=3" schema --help --version; do
    expect "${verb%% *} leaks nothing" leakless "$TRAIN" $verb
done

# MPI unloads its libraries before LeakSanitizer's report, and their functions then have no names. This dlclose unloads
# nothing.
echo 'int dlclose(void *handle) { return !handle; }' | gcc -x c -shared -fPIC -o "$WORK/keep.so" -
expect "2 ranks leak nothing of ours" leakless run_ranks 2 env LD_PRELOAD="$(gcc -print-file-name=libasan.so):$WORK/keep.so" "$TRAIN" "$WORK/tiny.json" run.dir="$WORK/two"
exit $STATUS
