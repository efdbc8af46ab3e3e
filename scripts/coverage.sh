#!/usr/bin/env bash
# Branch coverage of the code that reads input files: config, data and checkpoints. Builds it with gcov
# (build/cpu-coverage), runs its tests, prints the share of branches taken for each file and appends the whole to
# test/results/. Needs gcovr. Some twenty minutes.
#   scripts/coverage.sh [report]     report: of the tests run before
# Branches of CHECK() are left out: they are taken by bugs alone.
set -u
. "$(dirname "$0")/env.sh"
B=build/cpu-coverage
command -v gcovr > /dev/null || { echo "coverage: gcovr is missing: apt-get install gcovr" >&2; exit 69; }
if [ "${1:-}" != report ]; then
    mkdir -p $B && gcc -O1 -c -o $B/ends.o test/preload/coverage.c || exit 1
    make -s BACKEND=cpu B=$B EXTRA_CFLAGS="--coverage -fprofile-update=atomic -O0" \
        LDFLAGS="--coverage -fopenmp -pthread -Wl,--wrap=_exit -Wl,--wrap=MPI_Abort $PWD/$B/ends.o" tests || exit 1
    find $B -name '*.gcda' -delete
    for part in core/test_json core/test_io data run/test_check run/ranks_check run/config/test_config run/checkpoint/test_manifest run/checkpoint/test_safetensors run/checkpoint/test_weights run/checkpoint/test_checkpoint run/test_bad \
        run/test_disk run/test_golden run/test_sweep run/test_tokenize run/test_train run/test_verbs test_sample run/test_guard.sh \
        run/test_ranks run/test_lock.sh interop; do
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
