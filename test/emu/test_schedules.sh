#!/usr/bin/env bash
# The program's own product on Hopper under another schedule than in test_kernels.sh: warps in random order.
. "$(dirname "${BASH_SOURCE[0]}")/../run/lib/emu.sh"
needs BACKEND=emu build/emu/test/layers/test_gemm
EMU_SCHED=random:3 expect "matrix product: a random schedule" quiet build/emu/test/layers/test_gemm
exit $STATUS
