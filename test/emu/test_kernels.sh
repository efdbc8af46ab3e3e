#!/usr/bin/env bash
# Every CUDA kernel on the emulated GPU: the op tests of test/layers under AddressSanitizer and UBSan, where asynchronous copies come
# as late as they may, then under the race checker, where they come at once: a stage that is free too early is filled while a product
# reads it. A list of which kernels ran with which element types, and what the race checker counted beside (UPDATE=1 writes its table).
# The whole model, which is the longest of them, goes first, and under the race checker only in `make soak`
# (test/soak/schedules.sh).
set -u
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/env.sh"
if ! reason=$(make -n BACKEND=emu help 2>&1); then
    echo "skip kernels: ${reason##*\*\*\* }"
    exit 0
fi
launched=$(mktemp) counted=$(mktemp); trap 'rm -f "$launched" "$counted"' EXIT
export OMP_NUM_THREADS=1

# The op tests of one variant, two at a time: "ok" or "not ok" a test.
run_ops() { # VARIANT
    local build=build/emu$1
    make -s BACKEND=emu SAN="$1" op-tests || { echo "not ok build of $build"; return; }
    { [ "$1" = -race ] || echo model/test_gpt; ls test/layers/test_*.c | sed -E 's#^test/(.*)\.c$#\1#' | grep -v '_reference$'; } | EMU_KERNELS=$launched ASAN_OPTIONS=detect_leaks=0 xargs -P 2 -I{} sh -c '
        log=$(mktemp)
        if timeout 600 "$0/test/$1" > "$log" 2>&1; then echo "ok $0 $1"; else echo "not ok $0 $1"; tail -n 30 "$log"; fi
        rm -f "$log"' "$build" {}
}
run_ops ""
EMU_ASYNC=early EMU_COUNTS=$counted run_ops -race

python3 test/emu/kernels.py "$launched"
# shellcheck disable=SC2086
python3 test/emu/counts.py ${UPDATE:+--update} "$counted" test/results/emu_counts.tsv
