# The own matrix product under other schedules than test_kernels.sh has: asynchronous copies that come at once, and at random.
. "$(dirname "${BASH_SOURCE[0]}")/../run/lib/tiny.sh"
if ! reason=$(env -u MAKEFLAGS -u MAKELEVEL make -n BACKEND=emu help 2>&1); then
    echo "skip gemm: ${reason##*\*\*\* }"
    exit 0
fi
TEST=build/emu/test/layers/test_gemm
env -u MAKEFLAGS -u MAKELEVEL make -s -j2 BACKEND=emu $TEST || { echo "not ok build"; exit 1; }
export ASAN_OPTIONS=detect_leaks=0
EMU_ASYNC=early expect "copies that come at once" quiet $TEST
EMU_SCHED=random:3 expect "a random schedule" quiet $TEST
exit $STATUS
