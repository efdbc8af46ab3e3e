#!/usr/bin/env bash
# Runs the CUDA kernels in the emulator with threads in many orders: every op test, and the emulator's own cases without
# faults, under ASan and under the race checker. Threads run forward, in reverse and in random orders, and copies arrive
# late or early. From time to time all planted faults are tried, and each must be caught.
# goal: 1000 runs
. "$(dirname "$0")/part.sh"
build() { env -u B make -s -j2 BACKEND=emu SAN="$1" op-tests emu-cases; }
if ! reason=$(env -u B make -n BACKEND=emu help 2>&1); then echo "skip schedules: ${reason##*\*\*\* }"; exit; fi
for variant in "" -race; do build "$variant" || { echo "not ok build of the emulator$variant"; tally 0 1; exit; }; done
export OMP_NUM_THREADS=1

programs=(test/emu/cases/cases)
for test in test/layers/test_*.c; do case $test in *reference*) ;; *) programs+=("${test%.c}") ;; esac; done
# one NUMBER: runs one test program; NUMBER chooses which, the build, when copies arrive and the order of threads. The
# program changes with every number, the build after all programs, then the copies, then the order. Random orders differ
# each time.
one() {
    local i=$1 n=${#programs[@]} program variant async schedule log
    program=${programs[i % n]} i=$((i / n))
    variant=$([ $((i % 2)) -eq 0 ] || echo -race) i=$((i / 2))
    async=$([ $((i % 2)) -eq 0 ] && echo late || echo early) i=$((i / 2))
    case $((i % 4)) in 0) schedule=forward ;; 1) schedule=reverse ;; *) schedule=random:$i ;; esac
    log=$(EMU_SCHED=$schedule EMU_ASYNC=$async timeout 900 "build/emu$variant/$program" 2>&1) && return
    echo "not ok EMU_SCHED=$schedule EMU_ASYNC=$async build/emu$variant/$program: $(grep -m1 -E 'EMU (ERROR|RACE)|AddressSanitizer:|runtime error|FAILED|^not ok' <<< "$log")"
    return 1
}
PLANTED_EVERY=100 # one run in so many tries all planted faults instead
for ((i = $(so_far schedules); ; i++)); do
    more || break
    if [ $((i % PLANTED_EVERY)) -eq $((PLANTED_EVERY - 1)) ]; then
        if scripts/emu_planted.sh > /dev/null; then tally 1 0; else echo "not ok scripts/emu_planted.sh"; tally 1 1; fi
    elif one $i; then tally 1 0; else tally 1 1; fi
done
