# Runs the emulated program with the work of different streams in other legal orders (EMU_STREAMS). Losses, norms and
# checkpoints must keep their bits. ORDERS="random:7 random:8" sets other orders; `make soak` uses new ones each time
# (test/soak/streams.sh).
. "$(dirname "${BASH_SOURCE[0]}")/../run/lib/emu.sh"
needs BACKEND=cpu SAN= build/cpu/train_gpt
needs BACKEND=emu all
. test/run/lib/tiny.sh
TRAIN=$PWD/build/emu/train_gpt
SMALL="run.steps=4 model.n_head=2 model.n_embd=32 batch.global_tokens=160 checkpoint.every=2 eval.every=0"

# The run with ORDER=order chooses the algorithms of matrix products by timing. Runs in other orders read its table,
# gemm.json.
run() { # NAME ORDER RANKS KEY=VALUE...
    local name=$1 order=$2 ranks=$3; shift 3
    mkdir -p "$WORK/$name.$order"
    [ "$order" = order ] || cp "$WORK/$name.order/gemm.json" "$WORK/$name.$order/"
    if [ "$ranks" -eq 1 ]; then EMU_STREAMS=$order train $SMALL "$@" run.dir="$WORK/$name.$order"
    else EMU_STREAMS=$order train_ranks "$ranks" $SMALL "$@" run.dir="$WORK/$name.$order"; fi > /dev/null
}
same() { # NAME ORDER
    diff <(values "$WORK/$1.order" train loss; values "$WORK/$1.order" train grad_norm) <(values "$WORK/$1.$2" train loss; values "$WORK/$1.$2" train grad_norm) &&
        same_weights "$WORK/$1.order" "$WORK/$1.$2" step_00000002 && same_weights "$WORK/$1.order" "$WORK/$1.$2" step_00000004
}
look_at() { # NAME RANKS KEY=VALUE...
    local name=$1 order; shift
    expect "$name, in order" run $name order "$@"
    for order in ${ORDERS:-random:1}; do
        expect "$name, $order" run $name $order "$@"
        expect "$name, $order: the same bits" same $name $order
    done
}
# Runs two cases at a time. all_of prints their output in order.
CASES=()
case_of() {
    CASES+=("$1")
    while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n; done
    look_at "$@" > "$WORK/$1.said" 2>&1 &
}
all_of() {
    local name
    wait
    for name in "${CASES[@]}"; do cat "$WORK/$name.said"; ! grep -q "^not ok" "$WORK/$name.said" || STATUS=1; done
}
case_of alone   1 precision=bf16
case_of nccl    2 precision=bf16 parallel.comm=nccl
case_of ring    2 precision=fp32 parallel.comm=ring
case_of slots   4 precision=bf16 parallel.comm=nccl parallel.zero_stage=3 parallel.replicas=2 model.n_layer=5
case_of offload 1 precision=bf16 memory.offload=optimizer
case_of ordered 2 precision=fp32 parallel.comm=nccl parallel.deterministic=true
case_of tensor  2 precision=bf16 parallel.comm=nccl parallel.tensor=2
case_of stages  2 precision=bf16 parallel.comm=nccl parallel.pipeline=2 parallel.interleave=2 model.n_layer=4
all_of
mkdir -p "$WORK/kept.order" && cp "$WORK/offload.order/gemm.json" "$WORK/kept.order/"
expect "an optimizer on the GPU" run kept order 1 precision=bf16
expect "one in host memory: its losses" same_losses "$WORK/offload.order" "$WORK/kept.order" 1e-6
exit $STATUS
