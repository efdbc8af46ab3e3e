#!/usr/bin/env bash
# The emulator of CUDA kernels: the clean cases pass in all variants, and some planted faults are caught. `make
# emu-planted` tests all faults.
set -u
cd "$(dirname "$0")/../.."
if ! reason=$(make -n BACKEND=emu help 2>&1); then
    echo "skip emulator: ${reason##*\*\*\* }"
    exit 0
fi
counts=$(mktemp); trap 'rm -f "$counts"' EXIT
scripts/emu_planted.sh 0 3 5 6 10 12 18 21 28 29 41 47 48 51 55 72 77 84 88 97 | while read -r number rest; do
    case $number in [0-9]*) ;; *) echo "$number $rest"; continue ;; esac
    case $rest in
        *clean:* | *\ caught\ *) echo "ok emulator $number $rest" ;;
        *"as they should be"*) ;;
        *) echo "not ok emulator $number $rest" ;;
    esac
done
# Counts of a kernel whose source states the cost of each line. Four bytes are written twice and moved once.
if EMU_COUNTS=$counts build/emu-race/test/emu/cases/cases counted > /dev/null; then echo "ok emulator times what it counts by bytes"; else
    echo "not ok emulator times what it counts by bytes"; fi
wanted=$(printf 'kernel\tcounted_kernel\t1\t71\t42\t1216\t260\noperation\tcounted\t1\t512\t260')
if [ "$(cat "$counts")" = "$wanted" ]; then echo "ok emulator counts bank conflicts and bytes"; else
    echo "not ok emulator counts bank conflicts and bytes:"; cat "$counts"; fi
