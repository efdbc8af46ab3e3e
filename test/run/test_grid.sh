# Grids of ranks. ZeRO 0 to 3 and replicas compute the same steps as one rank, and resume each other's checkpoints.
. "$(dirname "$0")/lib/tiny.sh"
GRID="model.n_layer=5 run.steps=8 checkpoint.every=4 eval.every=4 sample.every=4 sample.tokens=3"

for precision in fp32 bf16; do train $GRID run.dir="$WORK/$precision" precision=$precision > /dev/null; done
# allowed PRECISION [FP32]: prints the allowed relative difference of losses between grids: FP32 for fp32, 2e-3 for
# bf16. A loss is a mean over 480 tokens. Another order of sums changes it by some 1e-8 in fp32, and rounded weights by
# 1e-5 in bf16.
allowed() { [ "$1" = fp32 ] && echo "${2:-2e-6}" || echo 2e-3; }
grid() { # NAME RANKS PRECISION KEY=VALUE...
    local name=$1 ranks=$2 precision=$3; shift 3
    expect "$name" quiet train_ranks $ranks $GRID run.dir="$WORK/$name" precision=$precision "$@"
    expect "$name: the losses of one rank" same_losses "$WORK/$name" "$WORK/$precision" "$(allowed $precision)"
    expect "$name: its gradient norms" same_norms "$WORK/$name" "$WORK/$precision" "$(allowed $precision 5e-6)"
    expect "$name: its held-out losses" same_evals "$WORK/$name" "$WORK/$precision" "$(allowed $precision)"
}
# sent_as_planned NAME RANKS KEY=VALUE...: checks that in each step of run NAME a rank sent as many bytes as plan
# computes, by axis of the grid.
sent_as_planned() { # NAME RANKS KEY=VALUE...
    local name=$1 ranks=$2 planned; shift 2
    planned=$("$TRAIN" plan "$WORK/tiny.json" $GRID ranks=$ranks "$@" | sed -nE 's/^exchange .*: shard ([0-9]+) bytes, replica ([0-9]+)$/"shard":\1,"replica":\2/p')
    [ -n "$planned" ] && [ "$(grep -c "\"sent\":{\"tensor\":0,\"context\":0,$planned,\"stage\":0}" "$WORK/$name/metrics.jsonl")" -eq 8 ] || {
        echo "planned $planned"; grep -o '"sent".*' "$WORK/$name/metrics.jsonl"; return 1; }
}
grid zero2    3 fp32 parallel.zero_stage=2
grid zero3    3 fp32 parallel.zero_stage=3
expect "ZeRO-3 has the bits of ZeRO-2" same_weights "$WORK/zero2" "$WORK/zero3" step_00000008
grid copies   4 fp32 parallel.zero_stage=1 parallel.replicas=2
grid copies0  4 fp32 parallel.zero_stage=0 parallel.replicas=2
expect "ZeRO-0 with copies has the bits of ZeRO-1 with copies" same_weights "$WORK/copies" "$WORK/copies0" step_00000008
grid hybrid   4 bf16 parallel.zero_stage=3 parallel.replicas=2
grid all_copies 4 fp32 parallel.zero_stage=2 parallel.replicas=4
grid mpi      4 fp32 parallel.zero_stage=3 parallel.replicas=2 parallel.comm=mpi

expect "zero2: bytes as planned" sent_as_planned zero2 3 precision=fp32 parallel.zero_stage=2
expect "zero3: bytes as planned" sent_as_planned zero3 3 precision=fp32 parallel.zero_stage=3
expect "copies: bytes as planned" sent_as_planned copies 4 precision=fp32 parallel.zero_stage=1 parallel.replicas=2
expect "copies0: bytes as planned" sent_as_planned copies0 4 precision=fp32 parallel.zero_stage=0 parallel.replicas=2
expect "hybrid: bytes as planned" sent_as_planned hybrid 4 precision=bf16 parallel.zero_stage=3 parallel.replicas=2
expect "all_copies: bytes as planned" sent_as_planned all_copies 4 precision=fp32 parallel.zero_stage=2 parallel.replicas=4
expect "a plain run's lines have no bytes" [ "$(grep -c sent "$WORK/fp32/metrics.jsonl")" -eq 0 ]

# With one micro-batch on each rank, ZeRO 1 to 3 add the same numbers in the same order, so the weights have equal bits.
one() { train_ranks 3 $GRID run.dir="$WORK/one$1" batch.micro_batch=4 parallel.zero_stage=$1 > /dev/null; }
for stage in 1 2 3; do one $stage; done
expect "one micro-batch: ZeRO-2 has the bits of ZeRO-1" same_weights "$WORK/one1" "$WORK/one2" step_00000008
expect "one micro-batch: ZeRO-3 too" same_weights "$WORK/one1" "$WORK/one3" step_00000008

# One run, resumed on another grid of ranks every two steps, has the losses of the unbroken run.
step=0
for next in "1" "4 parallel.zero_stage=3 parallel.replicas=2" "2 parallel.zero_stage=2" "3 parallel.zero_stage=3" "4 parallel.zero_stage=0 parallel.replicas=4"; do
    set -- $next; ranks=$1; shift; step=$((step + 2))
    train_ranks $ranks model.n_layer=5 run.steps=12 run.dir="$WORK/chain" checkpoint.every=2 checkpoint.keep=9 eval.every=0 run.max_minutes=0 "$@" > "$WORK/out" 2>&1 &
    until [ -d "$WORK/chain/checkpoints/step_0000000$step" ] || [ -d "$WORK/chain/checkpoints/step_000000$step" ] || ! kill -0 $! 2> /dev/null; do sleep 0.05; done
    touch "$WORK/chain/STOP"; wait
done
train model.n_layer=5 run.steps=12 run.dir="$WORK/chain" checkpoint.every=2 eval.every=0 > /dev/null
train model.n_layer=5 run.steps=12 run.dir="$WORK/unbroken" eval.every=0 > /dev/null
expect "resumed on any grid: the losses of an unbroken run" same_losses "$WORK/chain" "$WORK/unbroken" 2e-6

# A resume on an equal grid of ranks continues with equal bits.
rm -r "$WORK/hybrid/checkpoints/step_00000008"; cp -r "$WORK/hybrid" "$WORK/again"
for name in hybrid again; do train_ranks 4 $GRID run.dir="$WORK/$name" precision=bf16 parallel.zero_stage=3 parallel.replicas=2 > /dev/null; done
expect "the same grid: the same bits" same_weights "$WORK/hybrid" "$WORK/again" step_00000008

# Flips a bit of an optimizer moment in one of two replicas. Replicas must be equal, so the save fails, and the message
# names the ranks that differ.
for what in guard.m guard.v; do
    TRAIN=$FAILING TRAIN_GPT_FAIL="$what@2:flip,rank=1" expect "$what flips in one of two copies: exit 76, both ranks are named" \
        exits 76 "moments of step 4 .*: .*rank 1 \(.* and rank 3 \(.* differ" train_ranks 4 $GRID run.dir="$WORK/$what" parallel.zero_stage=3 parallel.replicas=2
    expect "$what: nothing is saved" [ -z "$(ls "$WORK/$what/checkpoints" | grep -v tmp)" ]
done

# Trains on each axis of the grid, and on some axes together, with at most 8 ranks. test/model/ranks_grid.c tests all
# pairs of axes. SHORT has sequences of 24 tokens, LONG of 512, which context ranks can divide.
SHAPE="model.n_layer=6 model.n_head=4 model.n_embd=32 run.steps=4 checkpoint.every=2 eval.every=2 sample.every=4 sample.tokens=3"
SHORT="$SHAPE model.n_positions=24 batch.seq_len=24 batch.micro_batch=2 batch.global_tokens=384 eval.tokens=96"
LONG="$SHAPE model.n_positions=512 batch.seq_len=512 batch.global_tokens=2048 eval.tokens=1024 model.n_layer=4"
for precision in fp32 bf16; do
    train $SHORT run.dir="$WORK/short_$precision" precision=$precision > "$WORK/short_$precision.out"
    train $LONG run.dir="$WORK/long_$precision" precision=$precision > /dev/null
done
# of_grid SIZE RANKS PRECISION KEY=VALUE...: starts a run on a grid of ranks in the background, at most two at a time.
# SIZE is short or long, the length of its sequences. check_grids later checks the run.
GRIDS=()
name_of() { echo "$*" | sed 's/parallel\.//g; s/memory\.//g; s/ /./g'; }
of_grid() {
    local size=$1 ranks=$2 precision=$3 name=$(name_of "$@") shape=$LONG; GRIDS+=("$*"); shift 3
    [ $size = short ] && shape=$SHORT
    while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n; done
    # a folder for temporary files of this mpirun: two that start at once in one folder can fail
    mkdir "$WORK/t${#GRIDS[@]}"
    { TMPDIR=$WORK/t${#GRIDS[@]} train_ranks $ranks $shape run.dir="$WORK/$name" precision=$precision "$@" > "$WORK/$name.out" 2>&1; echo $? > "$WORK/$name.status"; } &
}
# check_grids: waits for all runs that of_grid has started. Checks that each has the losses and norms of the same run on
# one rank, and that its ranks sent as many bytes as `plan` computes.
check_grids() {
    local grid name size ranks precision shape
    wait
    for grid in "${GRIDS[@]}"; do
        set -- $grid; size=$1 ranks=$2 precision=$3 name=$(name_of "$@") shape=$LONG; shift 3
        [ $size = short ] && shape=$SHORT
        expect "$name" [ "$(cat "$WORK/$name.status")" -eq 0 ] || tail -20 "$WORK/$name.out"
        expect "$name: losses, norms and held-out losses of one rank" same_numbers "$WORK/$name" "$WORK/${size}_$precision" $precision
        expect "$name: bytes as planned" sent_by_axis "$WORK/$name" $ranks $shape precision=$precision "$@"
    done
}
same_numbers() { same_losses "$1" "$2" "$(allowed $3)" && same_norms "$1" "$2" "$(allowed $3 5e-6)" && same_evals "$1" "$2" "$(allowed $3)"; }
# sent_by_axis DIR RANKS KEY=VALUE...: checks that the bytes a rank sent in each step, by "sent":{"tensor":1,...} in the
# metrics, equal those in the line "exchange ..." of plan.
sent_by_axis() {
    local dir=$1 ranks=$2; shift 2
    "$TRAIN" plan "$WORK/tiny.json" ranks=$ranks "$@" | sed -nE 's/^exchange [^:]*: //p' | sed 's/ bytes//; s/, /\n/g' | awk '$2 > 0' | sort > "$WORK/.planned"
    values "$dir" train sent > /dev/null
    grep -o '"sent":{[^}]*}' "$dir/metrics.jsonl" | sort -u | sed -E 's/"sent":\{(.*)\}/\1/; s/"//g; s/:/ /g' | tr ',' '\n' | awk '$2 > 0' | sort > "$WORK/.sent"
    [ -s "$WORK/.sent" ] && cmp "$WORK/.planned" "$WORK/.sent" || { paste "$WORK/.planned" "$WORK/.sent"; return 1; }
}
of_grid short 2 fp32 parallel.tensor=2
of_grid short 3 fp32 parallel.pipeline=3
of_grid long 2 fp32 parallel.context=2 memory.recompute=block
of_grid short 2 bf16 parallel.pipeline=2 parallel.interleave=3 memory.recompute=block
of_grid short 4 bf16 parallel.tensor=2 parallel.zero_stage=3 memory.recompute=light
of_grid short 4 fp32 parallel.pipeline=2 parallel.interleave=2 parallel.zero_stage=3
of_grid short 4 bf16 parallel.pipeline=2 parallel.zero_stage=2 parallel.comm=mpi
of_grid short 8 fp32 parallel.tensor=2 parallel.pipeline=2 parallel.replicas=2 parallel.zero_stage=2
of_grid long 8 bf16 parallel.context=2 parallel.tensor=2 parallel.pipeline=2 parallel.interleave=2
if [ -n "${ALL_GRIDS:-}" ]; then # set by `make soak`
    of_grid short 4 fp32 parallel.tensor=4 parallel.zero_stage=0
    of_grid long 4 bf16 parallel.context=4 parallel.zero_stage=2
    of_grid long 4 fp32 parallel.context=2 parallel.tensor=2 parallel.zero_stage=3
    of_grid long 4 fp32 parallel.context=2 parallel.replicas=2 memory.recompute=light
    of_grid short 4 fp32 parallel.tensor=2 parallel.replicas=2 memory.recompute=block
    of_grid short 2 fp32 parallel.pipeline=2 parallel.zero_stage=0
    of_grid short 4 fp32 parallel.tensor=2 parallel.pipeline=2 parallel.interleave=2
    of_grid short 8 fp32 parallel.tensor=2 parallel.pipeline=4
    of_grid long 4 fp32 parallel.context=2 parallel.pipeline=2 parallel.zero_stage=1
fi
check_grids

# Results that have equal bits on any grid. The first weights depend only on the order of the parameters in files. A
# pipeline changes only the order of sums in the gradient of the tied embedding, so the loss of the first step is equal.
# All grids sample an equal text.
first_weights() { local name=$1 ranks=$2; shift 2; train_ranks $ranks $SHORT run.dir="$WORK/first.$name" run.steps=1 optimizer.learning_rate=0 checkpoint.every=1 eval.every=0 sample.every=0 precision=fp32 "$@" > /dev/null; }
first_weights one 1
for grid in "t2p2 4 parallel.tensor=2 parallel.pipeline=2" "t4z3 8 parallel.tensor=4 parallel.zero_stage=3" "p3v2 3 parallel.pipeline=3 parallel.interleave=2 batch.global_tokens=432"; do
    first_weights $grid
    name=${grid%% *}
    expect "$name: first weights with the bytes of one rank's" cmp "$WORK/first.one/checkpoints/step_00000001/model.safetensors" "$WORK/first.$name/checkpoints/step_00000001/model.safetensors"
done
first_loss() { values "$1" train loss | head -1; }
expect "pipeline: the first loss has the bits of one stage" [ "$(first_loss "$WORK/short.3.fp32.pipeline=3")" = "$(first_loss "$WORK/short_fp32")" ]
train_ranks 4 $SHORT run.dir="$WORK/text" precision=fp32 parallel.tensor=2 parallel.pipeline=2 > "$WORK/text.out"
expect "tensor and stages draw the text of one rank" cmp <(sed -n '/^sample/,$p' "$WORK/text.out" | head -2) <(sed -n '/^sample/,$p' "$WORK/short_fp32.out" | head -2)

# Resumes on one grid after another, two steps each. Each run continues where the previous one saved.
steps=2
CHAIN="$SHAPE $SHORT run.dir=$WORK/any checkpoint.every=2 checkpoint.keep=20 eval.every=0 sample.every=0 schedule.name=constant precision=fp32 run.allow_change=run.steps"
for next in "1" "4 parallel.tensor=2 parallel.pipeline=2" "4 parallel.tensor=4 parallel.zero_stage=0" "2 parallel.pipeline=2 parallel.interleave=2" "4 parallel.tensor=2 parallel.replicas=2" \
            "3 parallel.pipeline=3" "8 parallel.tensor=2 parallel.pipeline=2 parallel.zero_stage=3" "1"; do
    set -- $next; ranks=$1; shift
    expect "on to step $steps on $ranks ranks $*" quiet train_ranks $ranks $CHAIN run.steps=$steps "$@"
    steps=$((steps + 2))
done
train $CHAIN run.dir="$WORK/any1" run.steps=$((steps - 2)) > /dev/null
expect "from any grid to any: the losses of an unbroken run" same_losses "$WORK/any" "$WORK/any1" 2e-6
expect "from any grid to any: its norms" same_norms "$WORK/any" "$WORK/any1" 1e-5

# parallel.deterministic gives equal bits for two and more pipeline stages, with any number of data ranks.
ordered() { local name=$1 ranks=$2; shift 2; train_ranks $ranks $SHORT run.dir="$WORK/ordered.$name" precision=fp32 parallel.deterministic=true eval.every=0 sample.every=0 "$@" > /dev/null; }
ordered p2 2 parallel.pipeline=2; ordered p2d2 4 parallel.pipeline=2; ordered p3 3 parallel.pipeline=3
for name in p2d2 p3; do expect "ordered sums: $name has the bits of two stages" same_weights "$WORK/ordered.p2" "$WORK/ordered.$name" step_00000004; done

# A model that was trained on a grid of ranks can also be sampled on a grid.
sampled() { local ranks=$1; shift; run_ranks $ranks "$TRAIN" sample "$WORK/long_fp32" prompt="the quick" tokens=20 "$@"; }
one=$("$TRAIN" sample "$WORK/long_fp32" prompt="the quick" tokens=20)
for grid in "2 parallel.tensor=2" "4 parallel.tensor=2 parallel.pipeline=2" "4 parallel.context=2 parallel.pipeline=2"; do
    expect "sample on $grid: the text of one rank" [ "$(sampled $grid)" = "$one" -a -n "$one" ]
done
expect "sample out=: the text of one rank" eval 'quiet sampled 2 parallel.tensor=2 out="$WORK/sampled.txt" && [ "$(cat "$WORK/sampled.txt")" = "$one" ]'
expect "sample on more ranks than its grid has" exits 64 "mpirun -np 4" sampled 2 parallel.tensor=4
expect "sample on a grid that the model does not allow" exits 64 "parallel.tensor = 3 must divide model.n_head = 4: 2 or 4" sampled 3 parallel.tensor=3

refused() { local name=$1 pattern=$2; shift 2; expect "$name" exits 64 "$pattern" "$@"; }
refused "ranks that are no multiple of the copies" "4 ranks are no multiple of parallel.replicas \(3\): start 3 or 6" train_ranks 4 parallel.replicas=3 run.dir="$WORK/x"
refused "one rank, two copies" "1 rank is no multiple of parallel.replicas \(2\): start 2 or 4" train parallel.replicas=2 run.dir="$WORK/x"
refused "ordered sums with ZeRO-2" "parallel.deterministic .*parallel.zero_stage = 2" train parallel.deterministic=true parallel.zero_stage=2 run.dir="$WORK/x"
refused "ordered sums with copies" "parallel.deterministic .*parallel.replicas = 2" train_ranks 2 parallel.deterministic=true parallel.replicas=2 run.dir="$WORK/x"
refused "tensor ranks that no head divides" "parallel.tensor = 5 must divide model.n_head = 4: 4" train $SHORT parallel.tensor=5 run.dir="$WORK/x"
refused "ranks that are no multiple of the grid" "8 ranks are no multiple of parallel.tensor \(3\) x context \(1\) x pipeline \(1\) x replicas \(2\): start 6 or 12 ranks, or tensor = 2 or 4" "$TRAIN" plan "$WORK/tiny.json" ranks=8 parallel.tensor=3 parallel.replicas=2 model.n_head=12 model.n_embd=48 batch.seq_len=36 model.n_positions=36 batch.global_tokens=72
refused "context ranks and a length they cannot share" "batch.seq_len = 24 with parallel.context = 2 must be a multiple of 256: 256" train $SHORT parallel.context=2 run.dir="$WORK/x"
refused "more parts than layers" "parallel.pipeline \(4\) x interleave \(4\) = 16 parts of 6 layers: at most 6; interleave = 1$" train $SHORT parallel.pipeline=4 parallel.interleave=4 run.dir="$WORK/x"
refused "parts without stages" "parallel.interleave = 2 needs stages" train $SHORT parallel.interleave=2 run.dir="$WORK/x"
refused "micro-batches that stages cannot take in turn" "3 micro-batches a step with parallel.interleave = 2 must be a multiple of parallel.pipeline = 2: batch.global_tokens = 96 or 192" \
    train_ranks 2 $SHORT parallel.pipeline=2 parallel.interleave=2 batch.global_tokens=144 run.dir="$WORK/x"
refused "ordered sums with tensor ranks" "parallel.deterministic .*parallel.tensor = 2" train_ranks 2 $SHORT parallel.deterministic=true parallel.tensor=2 run.dir="$WORK/x"
refused "ordered sums with parts in turn" "parallel.deterministic .*parallel.interleave = 2" train_ranks 2 $SHORT parallel.deterministic=true parallel.pipeline=2 parallel.interleave=2 run.dir="$WORK/x"
exit $STATUS
