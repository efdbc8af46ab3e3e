#!/usr/bin/env bash
# Tests the emulator of CUDA kernels: the cases without faults pass in all variants, and some planted faults are caught.
# `make emu-planted` tests all faults.
. "$(dirname "${BASH_SOURCE[0]}")/../run/lib/emu.sh"
needs BACKEND=emu SAN=-plain emu-cases
needs BACKEND=emu emu-cases
needs BACKEND=emu SAN=-race emu-cases
scripts/emu_planted.sh 0 3 5 6 10 12 18 21 28 29 41 47 48 51 55 72 77 84 88 97 | while read -r number rest; do
    case $number in [0-9]*) ;; *) echo "$number $rest"; continue ;; esac
    case $rest in
        *clean:* | *\ caught\ *) echo "ok emulator $number $rest" ;;
        *"as they should be"*) ;;
        *) echo "not ok emulator $number $rest" ;;
    esac
done
# Expected counts of a kernel whose source states the cost of each line (cases/counted.cu). Four bytes are written
# twice, and count once as moved.
counted='kernel\tcounted_kernel\t1\t71\t42\t1216\t260\noperation\tcounted\t1\t512\t260\n'
expect "emulator times what it counts by bytes" quiet env EMU_COUNTS="$WORK/counts" build/emu-race/test/emu/cases/cases counted
expect "emulator counts bank conflicts and bytes" diff <(printf "$counted") "$WORK/counts"
exit $STATUS
