# Hopper's own kernels under other schedules than test_kernels.sh has: asynchronous copies that come at once, where a stage that is
# free too early is filled while a product reads it, and at random.
. "$(dirname "${BASH_SOURCE[0]}")/../run/lib/tiny.sh"
if ! reason=$(env -u MAKEFLAGS -u MAKELEVEL make -n BACKEND=emu help 2>&1); then
    echo "skip schedules: ${reason##*\*\*\* }"
    exit 0
fi
GEMM=build/emu/test/layers/test_gemm ATTENTION=build/emu/test/layers/test_attention
env -u MAKEFLAGS -u MAKELEVEL make -s -j2 BACKEND=emu $GEMM $ATTENTION || { echo "not ok build"; exit 1; }
export ASAN_OPTIONS=detect_leaks=0
EMU_ASYNC=early expect "matrix product: copies that come at once" quiet $GEMM
EMU_SCHED=random:3 expect "matrix product: a random schedule" quiet $GEMM
EMU_ASYNC=early expect "attention: copies that come at once" quiet $ATTENTION
exit $STATUS
