#!/usr/bin/env bash
# make check: checks the sources, besides the tests. It prints a line for each check; the first word is ok or FAIL.
#   scripts/check.sh [WORD...]    only the checks named: comments includes ops length flags readme figures mutants schema sass
#                               cppcheck shell gcc clang asan tsan valgrind mpich
set -u
. "$(dirname "$0")/env.sh"
all="comments includes ops length flags readme figures mutants schema sass cppcheck shell gcc clang asan tsan valgrind mpich"
wanted=" ${*:-$all} "
for word in "$@"; do case " $all " in *" $word "*) ;; *) echo "check: there is no check $word; there are: $all" >&2; exit 64 ;; esac; done
failed=0
log=$(mktemp); trap 'rm -f "$log"' EXIT
check() { # check NAME COMMAND...: passes when the command succeeds
    local name=$1; shift
    case $wanted in *" $name "*) ;; *) return ;; esac
    if "$@" >"$log" 2>&1; then echo "ok   $name: $(tail -n 1 "$log")"; else echo "FAIL $name:"; tail -n 40 "$log"; failed=1; fi
}

# can NAME WHY CONDITION...: succeeds if the condition holds. Otherwise it prints, for a requested check, that the check
# is skipped and why.
can() {
    local name=$1 why=$2; shift 2
    "$@" > /dev/null 2>&1 && return
    case $wanted in *" $name "*) echo "skip $name: $why" ;; esac
    return 1
}

# includes: checks which folders include headers of which. The order is core <- {layers, comm, data} <- model <-
# run/{config, guard, checkpoint, outer, text, log, plan} <- run <- run/verbs <- train_gpt.cu. Of the seven folders in
# run/, each may include the ones before it. Only comm/ may include mpi.h and nccl.h, only layers/ oneDNN.
includes() {
    local bad=""
    # sees FOLDER ALLOWED...: prints the #include lines in FOLDER's files that name a folder other than FOLDER and
    # ALLOWED
    sees() {
        local folder=$1 allowed; shift
        allowed=$(printf '%s/[a-z0-9_]+\\.(h|cuh)"|' "$folder" "$@"); allowed=${allowed%|}
        grep -nE '#include "[a-z_]+/' "$folder"/*.* | grep -vE "#include \"($allowed)"
    }
    bad=$(sees core; sees layers core; sees comm core; sees data core; sees model core layers comm; sees run/config core layers comm data model
          sees run/guard core comm layers model run/config; sees run/checkpoint core comm layers data model run/config run/guard
          sees run/outer core comm layers data model run/config run/guard run/checkpoint
          sees run/text core comm layers data model run/config run/guard run/checkpoint
          sees run/log core comm layers data model run/config run/guard run/checkpoint run/outer run/text
          sees run/plan core comm layers data model run/config run/guard run/checkpoint run/outer run/text run/log
          sees run core comm layers data model run/config run/guard run/checkpoint run/outer run/text run/log run/plan
          sees run/verbs core comm layers data model run/config run/guard run/checkpoint run/outer run/text run/log run/plan run
          grep -nE '#include "test/' train_gpt.cu
          grep -nE '#include <(mpi|nccl)\.h>' core/* layers/* data/* model/* run/*.* run/*/* train_gpt.cu; grep -nE '#include <(oneapi/dnnl|dnnl)' core/* comm/* data/* model/* run/*.* run/*/* train_gpt.cu)
    [ -z "$bad" ] || { echo "$bad"; return 1; }
    echo "$(cat core/* layers/* comm/* data/* model/* run/*.* run/*/* | grep -c '#include "') includes, all downwards"
}
# ops: checks that every operation of layers.h is called in test/layers.
ops() {
    local op missing="" n=0
    for op in $(grep -oE '^(void|int|size_t|double) +[a-z0-9_]+\(' layers/layers.h | grep -oE '[a-z0-9_]+\(' | tr -d '('); do
        n=$((n + 1)); grep -qE "\b$op\(" test/layers/*.c || missing="$missing $op"
    done
    [ -z "$missing" ] || { echo "no case in test/layers for:$missing"; return 1; }
    echo "$n ops, each with a case"
}
length() {
    local long
    long=$(awk 'length > 120 {print FILENAME ":" FNR " has " length " columns"} END {if (NR > 120) print NR, FILENAME}' README.md)
    [ -z "$long" ] || { echo "$long"; return 1; }
    echo "README within 120 lines and columns"
}
flags() { ! grep -nE 'ffast-math|Ofast|march=native' Makefile scripts/*.sh | grep -vE 'No -ffast|grep' && echo "no flag that breaks NaN or ties the program to this machine"; }
readme() { python3 test/results/table.py --check; }
figures() { python3 test/results/table.py --commits; }
# has_history: succeeds if the repository has all commits: it is a clone of its own, and not a shallow one.
has_history() { [ "$(git rev-parse --show-toplevel)" = "$(pwd -P)" ] && [ "$(git rev-parse --is-shallow-repository)" = false ]; }
mutants() { python3 test/mutants.py check test/mutants.txt; }
schema() {
    make -s BACKEND=cpu build/cpu/train_gpt && build/cpu/train_gpt schema | cmp - configs/train_gpt.schema.json &&
        build/cpu/train_gpt help config markdown | cmp - docs/config.md && echo "configs/train_gpt.schema.json and docs/config.md are what the table says"
}
# sass: checks that the machine code that nvcc makes of each kernel is not worse than test/results/sass.tsv says.
sass() { make -s sass; }
cppcheck_run() { cppcheck --quiet --enable=warning,performance,portability --inline-suppr --suppress=missingIncludeSystem --suppress=unknownMacro --library=test/cppcheck.cfg --suppress=missingReturn:comm/no_mpi.c --error-exitcode=1 -I. --std=c11 core layers comm data model run && echo "cppcheck: nothing to say"; }
shell() { shellcheck scripts/train.sbatch scripts/elastic.sh && shellcheck -x -s bash -S warning test/slurm/*.sh && echo "shellcheck: nothing to say"; }
warnings() { make -s BACKEND=cpu WERROR=1 CC="$1" SAN= tests && echo "$1 -Wall -Wextra -Werror: clean"; }
asan() { make -s BACKEND=cpu SAN=-asan tests && ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 B=build/cpu-asan scripts/test.sh "test/${1:-}"; }
# tsan: runs tests under ThreadSanitizer. It builds with clang, whose OpenMP reports its own synchronization to
# ThreadSanitizer (libarcher). gcc's OpenMP does not.
tsan() {
    local part
    make -s BACKEND=cpu SAN=-tsan CC=clang tests || return 1
    export TSAN_OPTIONS="ignore_noninstrumented_modules=1 die_after_fork=0 suppressions=$PWD/test/tsan.supp"
    for part in data/ layers/ run/checkpoint/test_checkpoint.c run/guard/test_watchdog test_simulate run/test_train model/ranks_overlap; do
        OMP_NUM_THREADS=2 B=build/cpu-tsan-clang scripts/test.sh "$part" || return 1
    done
}
# valgrind_run: runs test programs under valgrind. memcheck.sh limits the instruction sets, because valgrind 3.19 does
# not know AVX-512, and oneDNN's AVX2 code reads after the end of one of its own buffers.
valgrind_run() {
    make -s BACKEND=cpu tests && B=build/cpu test/run/lib/memcheck.sh
}
mpich() { make -s BACKEND=cpu MPI=mpich tests && B=build/cpu-mpich scripts/test.sh ranks; }

check comments python3 scripts/comments.py --count
check includes includes
check ops ops
check length length
check flags flags
check readme readme
can figures "no git here, or a clone without all commits" has_history && check figures figures
check mutants mutants
check schema schema
has_nvcc() { [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ] || command -v nvcc; }
has_archer() { command -v clang && [ -e /usr/lib/llvm-14/lib/libarcher.so ]; }
can sass "no nvcc" has_nvcc && check sass sass
can cppcheck "not installed" command -v cppcheck && check cppcheck cppcheck_run
can shell "shellcheck is not installed" command -v shellcheck && check shell shell
check gcc warnings gcc
can clang "not installed" command -v clang && check clang warnings clang
check asan asan
can tsan "no clang with libomp and libarcher" has_archer && check tsan tsan
can valgrind "not installed" command -v valgrind && check valgrind valgrind_run
can mpich "libmpich-dev is not installed" pkg-config --exists mpich && check mpich mpich
[ $failed -eq 0 ] && echo "check: all ok"
exit $failed
