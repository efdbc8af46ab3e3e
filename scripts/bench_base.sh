#!/usr/bin/env bash
# Speed beside another commit: builds BASE in build/same/, trains the same model with it and with this tree in turns, PAIRS times, and prints the
# median of this tree's time over BASE's with an interval that holds the true median 98.8 times of 100 for 11 pairs (the second smallest to the
# second largest ratio: order statistics, no assumption about the noise). Fails where a median is over 1.02.
#   make bench BASE=commit [PAIRS=11]
set -u
. "$(dirname "$0")/env.sh"
base=$(git rev-parse --short "${1:?usage: scripts/bench_base.sh BASE}") || exit 1
pairs=${PAIRS:-11} work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

tree=$PWD/build/same/$base
[ -d "$tree" ] || git worktree add -q --detach "$tree" "$base" || exit 1
for at in "$tree" .; do
    make -s -C "$at" BACKEND=cpu build/cpu/train_gpt > "$work/build.log" 2>&1 || { tail -n 20 "$work/build.log"; exit 1; }
done

awk 'BEGIN { srand(11); for (i = 0; i < 60000; i++) printf "%s%c", substr("abcdefghijklmnop", 1 + (i * 7 + int(i / 5) * 3) % 11, 4), i % 9 == 8 ? 10 : 32 }' > "$work/text.txt"
"$tree/build/cpu/train_gpt" tokenize "$work/text.txt" out="$work/data" val=0.1 > /dev/null || exit 1
cat > "$work/config.json" <<JSON
{ "run": {"steps": 12, "dir": "$work/run"},
  "model": {"n_layer": 4, "n_head": 4, "n_embd": 256, "n_positions": 256, "vocab_size": 5000},
  "data": {"train": "$work/data/train_*.bin"},
  "batch": {"global_tokens": 1024, "micro_batch": 2},
  "checkpoint": {"every": 0}, "eval": {"every": 0}, "sample": {"every": 0} }
JSON

# step_ms TREE RANKS KEY=VALUE...: prints the median time of a step, without the first three.
step_ms() {
    local program=$1/build/cpu/train_gpt ranks=$2; shift 2
    rm -rf "$work/run"
    { if [ "$ranks" = 1 ]; then "$program" "$work/config.json" "$@"; else run_ranks "$ranks" "$program" "$work/config.json" "$@"; fi; } > "$work/log" 2>&1 ||
        { tail -n 3 "$work/log" >&2; return 1; }
    sed -nE 's/.*"kind":"train".*"ms":([0-9.]+).*/\1/p' "$work/run/metrics.jsonl" | tail -n +4 | sort -n | awk '{ ms[NR] = $1 } END { if (!NR) exit 1; print ms[int((NR + 1) / 2)] }'
}

bad=0
compare() { # NAME RANKS KEY=VALUE...
    local name=$1 pair a b; shift
    : > "$work/ratios"
    for ((pair = 0; pair < pairs; pair++)); do
        if ((pair % 2)); then a=$(step_ms "$tree" "$@") && b=$(step_ms . "$@"); else b=$(step_ms . "$@") && a=$(step_ms "$tree" "$@"); fi || exit 1
        awk "BEGIN { print $b / $a }" >> "$work/ratios"
    done
    sort -n "$work/ratios" | awk -v name="$name" -v last="$b" '{ r[NR] = $1 }
        END { k = NR > 5 ? 2 : 1; m = r[int((NR + 1) / 2)]; printf "%-28s %.3f of the time before  [%.3f, %.3f]  (%d pairs, a step takes %.1f ms)\n", name, m, r[k], r[NR + 1 - k], NR, last; exit m > 1.02 }' ||
        bad=1
}
echo "a step of this tree over one of $base"
compare "fp32, 1 rank" 1 precision=fp32
compare "bf16, 1 rank" 1 precision=bf16
compare "fp32, 2 ranks, ZeRO-1" 2 precision=fp32
compare "fp32, 2 ranks, in order" 2 precision=fp32 parallel.deterministic=true
exit $bad
