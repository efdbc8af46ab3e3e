#!/usr/bin/env bash
# Runs the program's own Hopper product (gemm_hopper_kernel) with warps in random order. test_kernels.sh runs it in a
# fixed order.
. "$(dirname "${BASH_SOURCE[0]}")/../run/lib/emu.sh"
needs BACKEND=emu build/emu/test/layers/test_gemm
EMU_SCHED=random:3 expect "matrix product: a random schedule" quiet build/emu/test/layers/test_gemm
exit $STATUS
