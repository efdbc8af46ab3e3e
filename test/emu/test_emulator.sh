#!/usr/bin/env bash
# The emulator of CUDA kernels: the clean cases pass in all variants, and some planted faults are caught. All faults: make emu-planted.
set -u
cd "$(dirname "$0")/../.."
if ! reason=$(env -u MAKEFLAGS -u MAKELEVEL make -n BACKEND=emu help 2>&1); then
    echo "skip emulator: ${reason##*\*\*\* }"
    exit 0
fi
scripts/emu_planted.sh 0 3 5 6 10 12 18 21 28 41 51 55 72 84 88 97 | while read -r number rest; do
    case $number in [0-9]*) ;; *) echo "$number $rest"; continue ;; esac
    case $rest in
        *clean:* | *\ caught\ *) echo "ok emulator $number $rest" ;;
        *"as they should be"*) ;;
        *) echo "not ok emulator $number $rest" ;;
    esac
done
