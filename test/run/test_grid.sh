# Grids of ranks: ZeRO 0 to 3 and copies of the state compute the step of one rank, and resume each other's checkpoints.
. "$(dirname "$0")/lib/tiny.sh"
GRID="model.n_layer=5 run.steps=8 checkpoint.every=4 eval.every=4 sample.every=4 sample.tokens=3"

for precision in fp32 bf16; do train $GRID run.dir="$WORK/$precision" precision=$precision > /dev/null; done
# A step's loss is a mean over 480 tokens; the order of sums moves it by some 1e-8, with bf16's rounding of weights by 1e-5.
allowed() { [ "$1" = fp32 ] && echo "${2:-2e-6}" || echo 2e-3; }
grid() { # NAME RANKS PRECISION KEY=VALUE...
    local name=$1 ranks=$2 precision=$3; shift 3
    expect "$name" quiet train_ranks $ranks $GRID run.dir="$WORK/$name" precision=$precision "$@"
    expect "$name: the losses of one rank" same_losses "$WORK/$name" "$WORK/$precision" "$(allowed $precision)"
    expect "$name: its gradient norms" same_norms "$WORK/$name" "$WORK/$precision" "$(allowed $precision 5e-6)"
    expect "$name: its held-out losses" same_evals "$WORK/$name" "$WORK/$precision" "$(allowed $precision)"
}
# Bytes that a rank sends in a step, as the metrics count them, are the plan's.
sent_as_planned() { # NAME RANKS KEY=VALUE...
    local name=$1 ranks=$2 planned; shift 2
    planned=$("$TRAIN" plan "$WORK/tiny.json" $GRID ranks=$ranks "$@" | sed -nE 's/^exchange .*: shard ([0-9]+) bytes, replica ([0-9]+)$/"shard":\1,"replica":\2/p')
    [ -n "$planned" ] && [ "$(grep -c "\"sent\":{\"tensor\":0,\"context\":0,$planned,\"stage\":0}" "$WORK/$name/metrics.jsonl")" -eq 8 ] || {
        echo "planned $planned"; grep -o '"sent".*' "$WORK/$name/metrics.jsonl"; return 1; }
}
grid zero2    3 fp32 parallel.zero_stage=2
grid zero3    3 fp32 parallel.zero_stage=3
expect "ZeRO-3 has the bits of ZeRO-2" same_weights "$WORK/zero2" "$WORK/zero3" step_00000008
grid zero3_bf16 2 bf16 parallel.zero_stage=3
grid copies   4 fp32 parallel.zero_stage=1 parallel.replicas=2
grid copies0  4 fp32 parallel.zero_stage=0 parallel.replicas=2
expect "ZeRO-0 with copies has the bits of ZeRO-1 with copies" same_weights "$WORK/copies" "$WORK/copies0" step_00000008
grid hybrid   4 bf16 parallel.zero_stage=3 parallel.replicas=2
grid all_copies 4 fp32 parallel.zero_stage=2 parallel.replicas=4
grid mpi      4 fp32 parallel.zero_stage=3 parallel.replicas=2 parallel.comm=mpi
grid light    2 fp32 parallel.zero_stage=3 memory.recompute=block

expect "zero2: bytes as planned" sent_as_planned zero2 3 precision=fp32 parallel.zero_stage=2
expect "zero3: bytes as planned" sent_as_planned zero3 3 precision=fp32 parallel.zero_stage=3
expect "copies: bytes as planned" sent_as_planned copies 4 precision=fp32 parallel.zero_stage=1 parallel.replicas=2
expect "copies0: bytes as planned" sent_as_planned copies0 4 precision=fp32 parallel.zero_stage=0 parallel.replicas=2
expect "hybrid: bytes as planned" sent_as_planned hybrid 4 precision=bf16 parallel.zero_stage=3 parallel.replicas=2
expect "all_copies: bytes as planned" sent_as_planned all_copies 4 precision=fp32 parallel.zero_stage=2 parallel.replicas=4
expect "a plain run's lines have no bytes" [ "$(grep -c sent "$WORK/fp32/metrics.jsonl")" -eq 0 ]

# With one micro-batch on each rank the stages add the same numbers in the same order.
one() { train_ranks 3 $GRID run.dir="$WORK/one$1" batch.micro_batch=4 parallel.zero_stage=$1 > /dev/null; }
for stage in 1 2 3; do one $stage; done
expect "one micro-batch: ZeRO-2 has the bits of ZeRO-1" same_weights "$WORK/one1" "$WORK/one2" step_00000008
expect "one micro-batch: ZeRO-3 too" same_weights "$WORK/one1" "$WORK/one3" step_00000008

# One run, resumed on another grid every two steps: the losses of the unbroken one.
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

# Same grid, same bits, across a resume.
rm -r "$WORK/hybrid/checkpoints/step_00000008"; cp -r "$WORK/hybrid" "$WORK/again"
for name in hybrid again; do train_ranks 4 $GRID run.dir="$WORK/$name" precision=bf16 parallel.zero_stage=3 parallel.replicas=2 > /dev/null; done
expect "the same grid: the same bits" same_weights "$WORK/hybrid" "$WORK/again" step_00000008

# A flipped bit in a moment, or with ZeRO-3 in a weight's piece: the other copy differs, and nothing is saved.
for what in guard.m guard.v; do
    TRAIN=$PWD/$B/test/train_gpt-failpoints TRAIN_GPT_FAIL="$what@2:flip,rank=1" expect "$what flips in one of two copies: exit 76, both ranks are named" \
        exits 76 "moments of step 4 .*: .*rank 1 \(.* and rank 3 \(.* differ" train_ranks 4 $GRID run.dir="$WORK/$what" parallel.zero_stage=3 parallel.replicas=2
    expect "$what: nothing is saved" [ -z "$(ls "$WORK/$what/checkpoints" | grep -v tmp)" ]
done

refused() { local name=$1 pattern=$2; shift 2; expect "$name" exits 64 "$pattern" "$@"; }
refused "ranks that are no multiple of the copies" "4 ranks are no multiple of parallel.replicas \(3\): start 3 or 6" train_ranks 4 parallel.replicas=3 run.dir="$WORK/x"
refused "one rank, two copies" "1 rank is no multiple of parallel.replicas \(2\): start 2 or 4" train parallel.replicas=2 run.dir="$WORK/x"
refused "ordered sums with ZeRO-2" "parallel.deterministic .*parallel.zero_stage = 2" train parallel.deterministic=true parallel.zero_stage=2 run.dir="$WORK/x"
refused "ordered sums with copies" "parallel.deterministic .*parallel.replicas = 2" train_ranks 2 parallel.deterministic=true parallel.replicas=2 run.dir="$WORK/x"
exit $STATUS
