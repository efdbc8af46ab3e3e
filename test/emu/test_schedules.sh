#!/usr/bin/env bash
# The program's own product on Hopper under another schedule than in test_kernels.sh: warps in random order.
. "$(dirname "${BASH_SOURCE[0]}")/../run/lib/tiny.sh"
if ! reason=$(make -n BACKEND=emu help 2>&1); then
    echo "skip schedules: ${reason##*\*\*\* }"
    exit 0
fi
GEMM=build/emu/test/layers/test_gemm
make -s BACKEND=emu $GEMM || { echo "not ok build"; exit 1; }
export ASAN_OPTIONS=detect_leaks=0
EMU_SCHED=random:3 expect "matrix product: a random schedule" quiet $GEMM
exit $STATUS
