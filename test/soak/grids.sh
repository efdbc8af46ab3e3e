#!/usr/bin/env bash
# Trains on random grids of up to 8 ranks, which combine every axis with every other. Losses and gradient norms must
# equal those of one rank.
# goal: 400 grids
. "$(dirname "$0")/part.sh"
. test/run/lib/tiny.sh
trap 'rm -rf "$WORK"; tell' EXIT
SHAPE="model.n_layer=6 model.n_head=4 model.n_embd=32 run.steps=3 checkpoint.every=3 eval.every=0 schedule.name=constant"
declare -A SIZE=([short]="$SHAPE model.n_positions=24 batch.seq_len=24 batch.micro_batch=2 batch.global_tokens=384"
                 [long]="$SHAPE model.n_positions=1024 batch.seq_len=1024 batch.global_tokens=8192")
for size in short long; do
    for precision in fp32 bf16; do train ${SIZE[$size]} run.dir="$WORK/$size.$precision" precision=$precision > /dev/null; done
done
one_of() { shift $((RANDOM % $#)); echo "$1"; }
while more; do
    tensor=$(one_of 1 1 2 4) context=$(one_of 1 1 2 4) stages=$(one_of 1 1 2 3 4) parts=$(one_of 1 1 2 3) copies=$(one_of 1 1 2) precision=$(one_of fp32 bf16)
    [ $context = 1 ] && size=short || size=long
    [ $stages = 1 ] && parts=1
    ranks=$((tensor * context * stages * copies * $(one_of 1 2)))
    grid="parallel.tensor=$tensor parallel.context=$context parallel.pipeline=$stages parallel.interleave=$parts parallel.replicas=$copies"
    grid+=" parallel.zero_stage=$(one_of 0 1 2 3) memory.recompute=$(one_of none light block) precision=$precision"
    [ $ranks -le 8 ] && "$TRAIN" plan "$WORK/tiny.json" ${SIZE[$size]} $grid ranks=$ranks > /dev/null 2>&1 || continue # a rule refuses it
    rm -rf "$WORK/grid"
    allowed=$([ $precision = fp32 ] && echo 5e-6 || echo 4e-3)
    if train_ranks $ranks ${SIZE[$size]} $grid run.dir="$WORK/grid" > "$WORK/out" 2>&1 && same_losses "$WORK/grid" "$WORK/$size.$precision" $allowed &&
        same_norms "$WORK/grid" "$WORK/$size.$precision" $allowed; then tally 1 0
    else
        echo "not ok $ranks ranks, $grid"; tail -5 "$WORK/out"
        tally 1 1
    fi
done
