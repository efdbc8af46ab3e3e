#!/usr/bin/env bash
# make bench BASE=commit: compares the speed of this tree with that of another commit. It builds BASE in build/same/.
# Both programs run the same work alternately, PAIRS times: training steps, the start of a run, tokenizing, sampling. A
# row prints the median of the ratios of this tree's time to BASE's, and an interval that contains the true median with
# a probability of 98.8 % (for 11 pairs). The interval is the second smallest to the second largest ratio: order
# statistics, without an assumption about the noise. The script fails if a median is over 1.02.
#   scripts/bench_base.sh BASE [NAME]    PAIRS=11; NAME: only the rows whose names contain it
set -u
. "$(dirname "$0")/env.sh"
base=$(git rev-parse --short "${1:?usage: scripts/bench_base.sh BASE [NAME]}") || exit 1
wanted=${2:-} pairs=${PAIRS:-11} work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

tree=$PWD/build/same/$base
[ -d "$tree" ] || git worktree add -q --detach "$tree" "$base" || exit 1
for at in "$tree" .; do
    make -s -C "$at" BACKEND=cpu build/cpu/train_gpt > "$work/build.log" 2>&1 || { tail -n 20 "$work/build.log"; exit 1; }
done

awk 'BEGIN { srand(11); for (i = 0; i < 60000; i++) printf "%s%c", substr("abcdefghijklmnop", 1 + (i * 7 + int(i / 5) * 3) % 11, 4), i % 9 == 8 ? 10 : 32 }' > "$work/text.txt"
"$tree/build/cpu/train_gpt" tokenize "$work/text.txt" out="$work/data" val=0.1 > /dev/null || exit 1
# Writes a text of 8 MiB whose words are random, so that a tokenizer's cache of words cannot hold them all.
awk 'BEGIN { srand(7); for (n = 0; n < 8388608; n += length(w) + 1) { w = ""; for (k = 2 + int(rand() * 7); k > 0; k--) w = w sprintf("%c", 97 + int(rand() * rand() * 26)); printf "%s%s", w, rand() < 0.1 ? "\n" : " " } }' > "$work/long.txt"
"$tree/build/cpu/train_gpt" train-tokenizer "$work/text.txt" "$work/long.txt" out="$work/bpe" vocab_size=2000 > /dev/null || exit 1
cat > "$work/config.json" <<JSON
{ "run": {"steps": 12, "dir": "$work/run"},
  "model": {"n_layer": 4, "n_head": 4, "n_embd": 256, "n_positions": 256, "vocab_size": 5000},
  "data": {"train": "$work/data/train_*.bin"},
  "batch": {"global_tokens": 1024, "micro_batch": 2},
  "checkpoint": {"every": 0}, "eval": {"every": 0}, "sample": {"every": 0} }
JSON
"$tree/build/cpu/train_gpt" "$work/config.json" run.dir="$work/trained" run.steps=1 > "$work/log" 2>&1 || { tail -n 3 "$work/log"; exit 1; }

# Functions NAME_ms TREE ... print the milliseconds that the program built in folder TREE needs. step: a training step
# (the median without the first three). start: a whole run of one step. tokenize: 8 MiB of text. sample: a text of 400
# tokens.
step_ms() { # TREE RANKS KEY=VALUE...
    local program=$1/build/cpu/train_gpt ranks=$2; shift 2
    rm -rf "$work/run"
    { if [ "$ranks" = 1 ]; then "$program" "$work/config.json" "$@"; else run_ranks "$ranks" "$program" "$work/config.json" "$@"; fi; } > "$work/log" 2>&1 || return 1
    sed -nE 's/.*"kind":"train".*"ms":([0-9.]+).*/\1/p' "$work/run/metrics.jsonl" | tail -n +4 | sort -n | awk '{ ms[NR] = $1 } END { if (!NR) exit 1; print ms[int((NR + 1) / 2)] }'
}
command_ms() { # command_ms PROGRAM ARGUMENT...: prints the elapsed time of the whole process
    local begin=$EPOCHREALTIME
    rm -rf "$work/run" "$work/tokens"
    "$@" > "$work/log" 2>&1 || return 1
    awk "BEGIN { print ($EPOCHREALTIME - $begin) * 1000 }"
}
start_ms() { command_ms "$1/build/cpu/train_gpt" "$work/config.json" run.steps=1; }
tokenize_ms() { command_ms "$1/build/cpu/train_gpt" tokenize "$work/long.txt" out="$work/tokens" tokenizer="$work/bpe"; }
sample_ms() { command_ms "$1/build/cpu/train_gpt" sample "$work/trained" prompt=a tokens=400 eot=false; }

bad=0
# compare NAME RATE UNIT FUNCTION ARGUMENT...: measures FUNCTION for both trees and prints RATE / ms in UNIT;
# with UNIT ms, it prints the time itself
compare() {
    local name=$1 rate=$2 unit=$3 measure=$4 pair a b; shift 4
    case $name in *"$wanted"*) ;; *) return ;; esac
    : > "$work/ratios"
    for ((pair = 0; pair < pairs; pair++)); do
        if ((pair % 2)); then a=$($measure "$tree" "$@") && b=$($measure . "$@"); else b=$($measure . "$@") && a=$($measure "$tree" "$@"); fi ||
            { tail -n 3 "$work/log" >&2; exit 1; }
        awk "BEGIN { print $b / $a }" >> "$work/ratios"
    done
    sort -n "$work/ratios" | awk -v name="$name" -v last="$b" -v rate="$rate" -v unit="$unit" '{ r[NR] = $1 }
        END { k = NR > 5 ? 2 : 1; m = r[int((NR + 1) / 2)]
              printf "%-30s %.3f of the time before  [%.3f, %.3f]  (%d pairs; %.1f %s)\n", name, m, r[k], r[NR + 1 - k], NR, unit == "ms" ? last : rate / last, unit
              exit m > 1.02 }' || bad=1
}
echo "this tree over $base"
compare "step, fp32, 1 rank" 0 ms step_ms 1 precision=fp32
compare "step, bf16, 1 rank" 0 ms step_ms 1 precision=bf16
compare "step, fp32, 2 ranks, ZeRO-1" 0 ms step_ms 2 precision=fp32
compare "step, fp32, 2 ranks, in order" 0 ms step_ms 2 precision=fp32 parallel.deterministic=true
compare "step, llama with Muon" 0 ms step_ms 1 precision=fp32 model.arch=llama model.n_inner=704 optimizer.name=muon
compare "start, a run of one step" 0 ms start_ms
compare "tokenize" "$(awk "BEGIN { print $(stat -c %s "$work/long.txt") / 1000 }")" MB/s tokenize_ms
compare "sample" 400000 tokens/s sample_ms
exit $bad
