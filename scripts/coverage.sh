#!/usr/bin/env bash
# Measures branch coverage of the code that reads input files: config, data and checkpoints. It builds with gcov
# (build/cpu-coverage), runs the tests and prints the share of branches taken in each file. The total is appended to
# test/results/. It needs gcovr and about twenty minutes.
#   scripts/coverage.sh [report]     report: prints the coverage of tests that have run before
# Branches of CHECK() (assertions) are left out, because only a bug takes them.
set -u
. "$(dirname "$0")/env.sh"
B=build/cpu-coverage
command -v gcovr > /dev/null || { echo "coverage: gcovr is missing: apt-get install gcovr" >&2; exit 69; }
if [ "${1:-}" != report ]; then
    mkdir -p $B && gcc -O1 -c -o $B/ends.o test/preload/coverage.c || exit 1
    make -s BACKEND=cpu B=$B EXTRA_CFLAGS="--coverage -fprofile-update=atomic -O0" \
        LDFLAGS="--coverage -fopenmp -pthread -Wl,--wrap=_exit -Wl,--wrap=MPI_Abort $PWD/$B/ends.o" tests || exit 1
    find $B -name '*.gcda' -delete
    # the tests that count for coverage: those of whole folders, and scripts whose runs read files or fail to read them
    for part in core/test_{json,io} data/ run/{config,checkpoint}/ interop/ run/test_{bad_input,disk,golden,guard,lock,ranks,sample,sweep,tokenize,train,verbs}.sh; do
        B=$B scripts/test.sh "test/$part" | grep -E ' passed .*s$'
    done
    B=$B test/run/test_memory.sh 1
fi
files=()
for file in core/io core/json data/ run/checkpoint/ run/config/; do files+=(-f "$file.*"); done
report=$(gcovr -r . --object-directory $B --exclude-unreachable-branches --exclude-branches-by-pattern '.*\bCHECK\(.*' -b "${files[@]}") || exit 1
echo "$report"
json_result bench_values.jsonl what="branches of config, data and checkpoint code that the tests take" command="scripts/coverage.sh" \
    value="$(awk '/^TOTAL/ { printf "%.1f %%, %d of %d", 100 * $3 / $2, $3, $2 }' <<< "$report")" note="goal 95 %"
