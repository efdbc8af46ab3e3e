#!/usr/bin/env bash
# Runs every CUDA kernel on the emulated GPU, by the op tests of test/layers. The first pass has AddressSanitizer and
# UBSan, and asynchronous copies that arrive as late as possible. The second pass has the race checker, and copies that
# arrive at once, so that a tile freed too early is refilled while a product reads it. The test also lists which kernels
# ran with which element types. It compares the counts of bank conflicts and bytes with a table, which UPDATE=1 writes.
# The test of the whole model is the longest and begins first. Under the race checker it runs only in `make soak`
# (test/soak/schedules.sh).
. "$(dirname "${BASH_SOURCE[0]}")/../run/lib/emu.sh"
needs BACKEND=emu op-tests
needs BACKEND=emu SAN=-race op-tests
launched=$WORK/launched counted=$WORK/counted
export OMP_NUM_THREADS=1

# Runs the op tests of one variant, two at a time. Prints "ok" or "not ok" for each test.
run_ops() { # VARIANT
    local build=build/emu$1
    { [ "$1" = -race ] || echo model/test_gpt; ls test/layers/test_*.c | sed -E 's#^test/(.*)\.c$#\1#' | grep -v '_reference$'; } | EMU_KERNELS=$launched xargs -P 2 -I{} sh -c '
        log=$(mktemp)
        if timeout 600 "$0/test/$1" > "$log" 2>&1; then echo "ok $0 $1"; else echo "not ok $0 $1"; tail -n 30 "$log"; fi
        rm -f "$log"' "$build" {}
}
run_ops ""
EMU_ASYNC=early EMU_COUNTS=$counted run_ops -race

python3 test/emu/kernels.py "$launched"
# shellcheck disable=SC2086
python3 test/emu/counts.py ${UPDATE:+--update} "$counted" test/results/emu_counts.tsv
