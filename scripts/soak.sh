#!/usr/bin/env bash
# make soak: the long proofs, in pieces. Each piece appends one line to test/results/soak.jsonl; the totals so far stand against their goals.
#   scripts/soak.sh [MINUTES] [PART...]     one piece of each part, of about MINUTES (20 at most) in all; parts: kills fuzz
set -u
. "$(dirname "$0")/env.sh"
minutes=${1:-20}; [ $# -gt 0 ] && shift
parts=("$@"); [ ${#parts[@]} -gt 0 ] || parts=(kills fuzz)
[ "$minutes" -le 20 ] || { echo "soak: at most 20 minutes a piece; it goes on where it stopped" >&2; exit 64; }
seconds=$((minutes * 60 / ${#parts[@]}))
status=0

soak_kills() { # kill -9 at random instants, at 1, 2 and 4 ranks in turn, 20 a round
    local end=$((SECONDS + seconds)) kills=0 failed=0 ranks last
    while [ $SECONDS -lt $end ]; do
        for ranks in 1 2 4; do
            last=$(test/run/kills.sh 20 $ranks $((RANDOM % 30000)))
            grep '^not ok' <<< "$last" && failed=$((failed + $(grep -c '^not ok' <<< "$last")))
            kills=$((kills + 20))
        done
    done
    json_result soak.jsonl part=kills count="$kills" failed="$failed" seconds=$((SECONDS - end + seconds))
    [ "$failed" -eq 0 ]
}

soak_fuzz() {
    local log target inputs
    log=$(scripts/fuzz.sh $((seconds / 2))); local result=$? # four parsers, two at a time
    while read -r word target inputs _; do
        [ "$word" = ok ] && json_result soak.jsonl part="fuzz ${target%:}" count="$inputs" failed=0 seconds=$((seconds / 2))
        [ "$word" = not ] && json_result soak.jsonl part="fuzz $inputs" count=0 failed=1 seconds=$((seconds / 2))
    done < <(grep -E '^(ok|not ok) ' <<< "$log")
    return $result
}

for part in "${parts[@]}"; do
    case $part in
        kills) soak_kills || status=1 ;;
        fuzz) soak_fuzz || status=1 ;;
        *) echo "soak: no part $part" >&2; exit 64 ;;
    esac
done
python3 - <<'PY'
import json
goals = {"kills": 10_000, "fuzz config": 10**8, "fuzz shard": 10**8, "fuzz safetensors": 10**8, "fuzz manifest": 10**8}
total = {}
for line in open("test/results/soak.jsonl"):
    row = json.loads(line)
    done = total.setdefault(row["part"], [0, 0])
    done[0] += row["count"]; done[1] += row["failed"]
for part, goal in goals.items():
    count, failed = total.get(part, [0, 0])
    print(f"{part:18} {count:>12,} of {goal:>12,}   {failed} failed")
PY
exit $status
