#!/usr/bin/env bash
# Flips bits in the working weights of one rank. All must be found, and the right rank named. Most are flipped in one
# job (test/run/guard/ranks_guard.c), others in whole runs.
# goal: 1000 flipped weight bits
. "$(dirname "$0")/part.sh"
. test/run/lib/tiny.sh
trap 'tell; rm -rf "$WORK"' EXIT
TRAIN=$PWD/$B/test/train_gpt-failpoints
while more; do
    for n in 3 4; do
        told=$(run_ranks $n "$B/test/run/guard/ranks_guard" 200 $RANDOM 2> /dev/null)
        if [[ $told =~ 200\ flips,\ 0\ missed,\ 0\ wrong ]]; then tally 200 0; else tally 200 1; echo "not ok $n ranks: $told"; fi
    done
    rank=$((RANDOM % 3)) step=$((10 * (1 + RANDOM % 3))) # weights are compared after every tenth of these short steps
    rm -rf "$WORK/run"
    if TRAIN_GPT_FAIL="guard.weight@$step:flip,rank=$rank" exits 76 "weights( or moments)? of step $((step - 1)) are not the same on all ranks: those of rank $rank \\([^()]*\\([^()]*\\)[^()]*\\([^()]*\\)[^()]*\\) differ" \
            train_ranks 3 run.dir="$WORK/run" run.steps=40 eval.every=0 checkpoint.every=1 checkpoint.keep=2 parallel.zero_stage=$((RANDOM % 2)) &&
        [ "$(ls "$WORK/run/checkpoints" | tail -1)" = "$(printf 'step_%08d' $((step - 1)))" ]; then tally 1 0; else tally 1 1; echo "not ok step $step, rank $rank"; fi
done
