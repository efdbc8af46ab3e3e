# emu.sh - what the emulator's scripts begin with. Sourced by test/emu/test_*.sh.
. "$(dirname "${BASH_SOURCE[0]}")/expect.sh"
export ASAN_OPTIONS=detect_leaks=0
# needs BACKEND=x WORDS...: makes these targets. scripts/test.sh reads such a line and makes them before the script is
# started. The script is skipped on a machine that cannot compile the emulator.
needs() {
    local reason name=${0##*/test_}
    name=${name%.sh}
    reason=$(make -n "$1" help 2>&1) || { echo "skip ${name/_/ }: ${reason##*\*\*\* }"; exit 0; }
    make -s "$@" || { echo "not ok build"; exit 1; }
}
