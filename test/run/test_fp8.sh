# precision=fp8: scales are equal on any number of ranks and after a resume, and when a step is computed again or
# skipped. Also each axis of the grid, and what is refused.
. "$(dirname "$0")/lib/tiny.sh"
# The dimensions of matrices are multiples of 16, also when two tensor ranks divide them.
SMALL="precision=fp8 model.n_head=2 model.n_embd=32"
fp8() { train $SMALL "$@"; }
fp8_ranks() { local n=$1; shift; train_ranks "$n" $SMALL "$@"; }
steps_known() { grep -o '"fp8":\[[^]]*\]' "$1/checkpoints/$2/state.json" | grep -o '"[0-9a-f]*"' | grep -vc fp8; }
differ() { ! same_weights "$@" > /dev/null; }
counts() { values "$1" train fp8_saturated; values "$1" train fp8_vanished; }

fp8 run.dir="$WORK/1" parallel.deterministic=true > "$WORK/out"
expect "one process trains, and its banner says fp8" grep -qE '^model .*; fp8' "$WORK/out"
train $SMALL precision=bf16 run.dir="$WORK/bf16" parallel.deterministic=true > /dev/null
expect "not with bf16's bits" differ "$WORK/1" "$WORK/bf16" step_00000012
expect "but bf16's losses within 1 %" same_losses "$WORK/1" "$WORK/bf16" 1e-2
expect "bf16's metrics have no counts of fp8" [ "$(grep -c fp8_ "$WORK/bf16/metrics.jsonl")" -eq 0 ]
expect "some elements vanish, in every step; with the margin few are saturated" \
    awk 'NR <= 12 && $1 > 100 { bad = 1 } NR > 12 && $1 < 1 { bad = 1 } END { exit bad || NR != 24 }' <(counts "$WORK/1")
expect "a checkpoint knows the maxima of its steps" [ "$(steps_known "$WORK/1" step_00000006) $(steps_known "$WORK/1" step_00000012)" = "6 12" ]

# Other numbers of ranks give equal bits. So does memory.recompute=block, which computes activations again.
for n in 2 3; do
    fp8_ranks $n run.dir="$WORK/$n" parallel.deterministic=true > /dev/null
    expect "$n ranks: the same bits" same_weights "$WORK/$n" "$WORK/1" step_00000012
    expect "$n ranks: the same counts" cmp <(counts "$WORK/$n") <(counts "$WORK/1")
done
fp8 run.dir="$WORK/block" parallel.deterministic=true memory.recompute=block > /dev/null
expect "block recompute: the same bits" same_weights "$WORK/block" "$WORK/1" step_00000012
expect "block recompute: the same counts" cmp <(counts "$WORK/block") <(counts "$WORK/1")
# With 32 rows (tokens of a micro-batch) the operation before a matrix product writes fp8 directly. With 40 rows it
# writes bf16, which is then converted. With memory.recompute the fp8 values are computed again.
ROWS="batch.seq_len=32 batch.global_tokens=192 eval.tokens=320 run.steps=6 parallel.deterministic=true"
for arch in gpt2 llama; do
    [ $arch = llama ] && ROWS+=" model.arch=llama model.n_inner=96"
    fp8 $ROWS run.dir="$WORK/rows.$arch" > /dev/null
    for recompute in light block; do
        rm -rf "$WORK/again"
        fp8 $ROWS run.dir="$WORK/again" memory.recompute=$recompute > /dev/null
        expect "whole tiles of rows, $arch, $recompute recompute: the same bits" same_weights "$WORK/again" "$WORK/rows.$arch" step_00000006
        expect "whole tiles of rows, $arch, $recompute recompute: the same counts" cmp <(counts "$WORK/again") <(counts "$WORK/rows.$arch")
    done
done
fp8 run.dir="$WORK/twice" parallel.deterministic=true run.verify_every=1 > /dev/null
expect "each step computed twice: the same bits" same_weights "$WORK/twice" "$WORK/1" step_00000012
rm -r "$WORK/2/checkpoints/step_00000012"
fp8 run.dir="$WORK/2" parallel.deterministic=true > /dev/null
expect "one process goes on from two: the same bits" same_weights "$WORK/2" "$WORK/1" step_00000012
rm -r "$WORK/2/checkpoints/step_00000012"
fp8_ranks 3 run.dir="$WORK/2" parallel.deterministic=true > /dev/null
expect "three processes do: the same bits" same_weights "$WORK/2" "$WORK/1" step_00000012

# Scales of fp8 follow from the largest values of earlier steps. A step that is skipped must not add its own to this
# history.
TRAIN_GPT_FAIL="guard.gradient@3:nan;guard.gradient@4:nan" "$FAILING" "$WORK/tiny.json" $SMALL run.dir="$WORK/skip" run.on_nonfinite=skip > /dev/null 2>&1
expect "a step that is left out" [ "$(steps_known "$WORK/skip" step_00000006)" = 5 ]
# fp8 computes its scales from the largest values of earlier steps. A run that continues from a bf16 checkpoint begins
# with an empty history of them.
train $SMALL precision=bf16 run.dir="$WORK/from" run.steps=6 > /dev/null
fp8 run.dir="$WORK/from" > /dev/null 2>&1
expect "on from bf16's checkpoint" [ "$(steps_known "$WORK/from" step_00000012)" = 6 ]

# Every axis of the grid, such as tensor ranks, gives nearly the losses of one rank. Sums in fp32 have another order, so
# an element is sometimes rounded to a neighbouring fp8 value, which differs by 1/16 to 1/8.
fp8 run.dir="$WORK/free" > /dev/null
for axes in "2 parallel.zero_stage=2" "2 parallel.zero_stage=3" "2 parallel.tensor=2" "2 parallel.pipeline=2" "4 parallel.tensor=2 parallel.pipeline=2 parallel.comm=mpi"; do
    n=${axes%% *}; rm -rf "$WORK/axes"
    expect "${axes#* }: trains" quiet fp8_ranks "$n" ${axes#* } run.dir="$WORK/axes"
    expect "${axes#* }: the same losses" same_losses "$WORK/axes" "$WORK/free" 2e-3
done
LONG="model.n_positions=256 batch.seq_len=256 batch.global_tokens=512 eval.tokens=256 run.steps=3"
fp8 $LONG run.dir="$WORK/long" > /dev/null
fp8_ranks 2 $LONG parallel.context=2 run.dir="$WORK/context" > /dev/null
expect "parallel.context=2: the same losses" same_losses "$WORK/context" "$WORK/long" 2e-3
LLAMA="model.arch=llama model.n_head=4 model.n_embd=64 model.n_kv_head=2 model.n_inner=96"
train precision=bf16 $LLAMA run.dir="$WORK/llama16" > /dev/null
expect "llama trains" quiet train precision=fp8 $LLAMA run.dir="$WORK/llama"
expect "llama: bf16's losses within 1 %" same_losses "$WORK/llama" "$WORK/llama16" 1e-2

# plan names fp8 in its output, and configs that fp8 does not support are refused.
expect "plan says fp8" grep -q '^memory per rank (bf16, with products in fp8)' <("$TRAIN" plan "$WORK/tiny.json" $SMALL)
expect "plan for H100s says fp8" grep -q 'H100 80GB SXM, fp8' <("$TRAIN" plan "$WORK/tiny.json" $SMALL ranks=1 cluster=dgx-h100)
expect "a cluster without fp8" exits 64 'dgx-a100 has no speed of fp8 matrix products: add gpu.flops.fp8' "$TRAIN" plan "$WORK/tiny.json" $SMALL ranks=1 cluster=dgx-a100
expect "a width that is no multiple of 16" exits 64 'precision = "fp8" .*multiples of 16, and model.n_embd is 42' train precision=fp8
expect "nor one of a tensor rank" exits 64 'multiples of 16, and the width of the queries, .* over parallel.tensor = 2 is 24' \
    train_ranks 2 precision=fp8 model.n_embd=48 model.n_head=2 parallel.tensor=2
expect "experts" exits 64 'precision = "fp8" is not built for model.arch = "qwen3-moe"' train $SMALL model.arch=qwen3-moe moe.experts=4 moe.top_k=2 moe.n_inner=48
expect "islands" exits 64 'precision = "fp8" is not built for outer.server' train $SMALL outer.server=localhost:4300
exit $STATUS
