#!/usr/bin/env bash
# make soak: runs the long tests, in pieces. Each piece appends one line to test/results/soak.jsonl. The totals so far
# are printed with their goals.
#   scripts/soak.sh [MINUTES] [PART...]     a piece of about MINUTES (20 at most), shared among the parts: test/soak/*.sh
set -u
. "$(dirname "$0")/env.sh"
minutes=${1:-20}; [ $# -gt 0 ] && shift
parts=("$@")
[ ${#parts[@]} -gt 0 ] || for part in $(grep -l '^# goal: ' test/soak/*.sh); do part=${part##*/}; parts+=("${part%.sh}"); done
[ "$minutes" -le 20 ] || { echo "soak: at most 20 minutes a piece; it goes on where it stopped" >&2; exit 64; }
status=0
for tool in pgrep:procps python3:python3; do
    command -v "${tool%:*}" > /dev/null || { echo "soak: ${tool%:*} is not installed: apt-get install ${tool#*:}" >&2; exit 69; }
done

piece() { # PART SECONDS
    local began=$SECONDS log last
    [ -f "test/soak/$1.sh" ] || { echo "soak: no part $1" >&2; exit 64; }
    log=$(B=$B bash "test/soak/$1.sh" "$2") || status=1
    grep '^not ok' <<< "$log"
    last=$(tail -n 1 <<< "$log")
    if [[ $last =~ ^([0-9]+)\ done,\ ([0-9]+)\ failed$ ]]; then
        json_result soak.jsonl part="$1" count="${BASH_REMATCH[1]}" failed="${BASH_REMATCH[2]}" seconds=$((SECONDS - began))
    else
        echo "not ok $1 ended without its count: $last"; status=1
    fi
}

for part in "${parts[@]}"; do piece "$part" $((minutes * 60 / ${#parts[@]})); done
python3 test/results/soak.py
exit $status
