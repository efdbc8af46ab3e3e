# Runs the CUDA build's program on the emulated GPU. It trains like the CPU build, with one rank and with two, in every
# precision.
. "$(dirname "${BASH_SOURCE[0]}")/../run/lib/emu.sh"
needs BACKEND=cpu SAN= build/cpu/train_gpt
needs BACKEND=emu all
. test/run/lib/tiny.sh # tiny.sh is sourced after the build, because it tokenizes its text with the CPU's program
CPU=$PWD/build/cpu/train_gpt
# SMALL: two layers, six steps, and enough sequences for two ranks. The width is even, because tensor cores need that.
# Odd vocabularies are covered by the tests of ops.
SMALL="run.steps=6 model.n_head=2 model.n_embd=32 batch.global_tokens=80 checkpoint.every=3 eval.every=6 eval.tokens=80"

# Four steps are enough where no run is resumed in the middle.
FOUR="run.steps=4 checkpoint.every=4 eval.every=4"

for precision in fp32 bf16; do
    TRAIN=$CPU train $SMALL run.dir="$WORK/cpu_$precision" precision=$precision > /dev/null
    TRAIN=$CPU train $SMALL $FOUR run.dir="$WORK/cpu_four.$precision" precision=$precision > /dev/null
done
# EIGHT: fp8 with micro-batches of 32 rows. Norms, activations and their gradients write 8 bits directly, except in the
# first step.
EIGHT="precision=fp8 batch.seq_len=32 batch.global_tokens=64 eval.tokens=64"
TRAIN=$CPU train $SMALL $EIGHT run.dir="$WORK/cpu_fp8" > /dev/null
TRAIN=$CPU train $SMALL $EIGHT $FOUR run.dir="$WORK/cpu_four.fp8" > /dev/null
# LLAMA has two heads of queries for each head of keys. QWEN3 has heads that together are wider than n_embd.
LLAMA="$SMALL $FOUR model.arch=llama model.n_embd=64 model.n_head=4 model.n_kv_head=2 model.n_inner=96 model.rope_factor=8 model.rope_original_positions=64"
QWEN3="$SMALL $FOUR model.arch=qwen3 model.n_embd=64 model.n_head=4 model.n_kv_head=2 model.head_dim=32 model.n_inner=96"
MOE="$SMALL $FOUR model.arch=qwen3-moe model.n_embd=64 model.n_head=4 model.n_kv_head=2 moe.experts=4 moe.top_k=2 moe.n_inner=48
     moe.balance=bias moe.balance_rate=0.01"
TRAIN=$CPU train $LLAMA $EIGHT run.dir="$WORK/cpu_llama.fp8" > /dev/null
for precision in fp32 bf16; do
    TRAIN=$CPU train $LLAMA run.dir="$WORK/cpu_llama.$precision" precision=$precision > /dev/null
    TRAIN=$CPU train $QWEN3 run.dir="$WORK/cpu_qwen3.$precision" precision=$precision > /dev/null
    TRAIN=$CPU train $MOE run.dir="$WORK/cpu_moe.$precision" precision=$precision > /dev/null
done
TRAIN=$CPU train $MOE run.dir="$WORK/cpu_moe4" precision=bf16 batch.global_tokens=160 run.steps=3 > /dev/null
# WIDE has heads of 64 channels. For them the epilogue of a matrix product computes attention's delta, the row sums of
# dy * y.
WIDE="$SMALL model.n_embd=128 run.steps=3 checkpoint.every=3 eval.every=3"
TRAIN=$CPU train $WIDE run.dir="$WORK/cpu_wide" precision=bf16 > /dev/null
# GRID is a model for grids of ranks. Its four layers and four heads can be divided by pipeline and tensor parallelism,
# its steps of 160 tokens by several ranks.
GRID="$SMALL model.n_layer=4 model.n_head=4 run.steps=4 checkpoint.every=4 eval.every=4 batch.global_tokens=160"
LONG="$GRID model.n_layer=1 model.n_positions=256 batch.seq_len=256 batch.global_tokens=512 eval.tokens=256 run.steps=2"
TRAIN=$CPU train $GRID run.dir="$WORK/cpu_grid" precision=bf16 > /dev/null
TRAIN=$CPU train $LONG run.dir="$WORK/cpu_long" precision=bf16 > /dev/null
# HEADS has heads of 64 channels and two tiles of keys. Each head has its own block in attention's backward pass.
HEADS="$LONG model.n_head=2 model.n_embd=128 batch.global_tokens=1024 precision=bf16"
TRAIN=$CPU train $HEADS run.dir="$WORK/cpu_heads" > /dev/null
EIGHT_HEADS="$SMALL $EIGHT model.n_layer=1 model.n_head=2 model.n_embd=128 run.steps=4 checkpoint.every=4 eval.every=4"
TRAIN=$CPU train $EIGHT_HEADS run.dir="$WORK/cpu_heads.fp8" > /dev/null
TRAIN=$PWD/build/emu/train_gpt
# Allowed relative differences between the losses of the emulated build and of the CPU build. fp32: the order of sums
# differs. bf16 and fp16: only the probabilities of attention are rounded differently. With u = 2^-8 (bf16) or 2^-11
# (fp16), the error derived for the loss of one position is at most u / 4. The mean over 80 positions is smaller. fp8:
# another order of sums can move a number across the middle between two codes. That changes it by up to 2^-3 of itself,
# but few numbers do. Measured with three seeds, for GPT-2 and Llama blocks: at most 2.4e-4. Twice that is allowed.
# Losses in bf16 are as close to those of the CPU. So another test checks by the kernels that a run is in fp8.
allowed() { case $1 in fp32) echo 1e-5 ;; bf16) echo 1e-3 ;; fp16) echo 1.3e-4 ;; fp8) echo 5e-4 ;; esac; }
# beside NAME RANKS KEY=VALUE... starts a run in its own folder. At most two runs go on at a time. After `wait` all have
# ended. `ended NAME [CODE]` checks the exit code.
beside() {
    local name=$1 ranks=$2; shift 2
    while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n; done
    { if [ "$ranks" -eq 1 ]; then train "$@" run.dir="$WORK/$name"; else train_ranks "$ranks" "$@" run.dir="$WORK/$name"; fi
      echo $? > "$WORK/$name.status"; } > /dev/null 2> "$WORK/$name.err" &
}
ended() { [ "$(cat "$WORK/$1.status")" -eq "${2:-0}" ] || { head -20 "$WORK/$1.err"; return 1; }; }

for precision in fp32 bf16; do
    beside llama.$precision 1 $LLAMA precision=$precision
    beside qwen3.$precision 1 $QWEN3 precision=$precision
    beside moe.$precision 1 $MOE precision=$precision
done
beside experts.ring 2 $MOE precision=bf16 parallel.expert=2 parallel.comm=ring memory.recompute=block
beside experts 4 $MOE precision=bf16 parallel.expert=2 moe.capacity=0.4 parallel.comm=nccl batch.global_tokens=160 run.steps=3
for precision in fp32 bf16 fp16; do beside $precision 1 $SMALL precision=$precision; done
EMU_KERNELS=$WORK/kernels beside fp8 1 $SMALL $EIGHT
EMU_KERNELS=$WORK/kernels beside llama.fp8 1 $LLAMA $EIGHT
beside fp8.nccl 2 $SMALL $EIGHT $FOUR parallel.comm=nccl
# Runs the program's own products for compute capability 9.0 instead of cuBLASLt's, where the sizes allow it.
for recompute in none block; do TRAIN_GPT_GEMM=own beside own.$recompute 1 $WIDE precision=bf16 memory.recompute=$recompute; done
TRAIN_GPT_GEMM=own beside llama.own 1 $LLAMA precision=bf16
TRAIN_GPT_GEMM=own beside stages.own 2 $GRID precision=bf16 parallel.pipeline=2 parallel.interleave=2 parallel.comm=ring
EMU_KERNELS=$WORK/heads.kernels TRAIN_GPT_ATTENTION=hopper-heads beside heads 1 $HEADS parallel.deterministic=true
# the attention kernel with one block for each head also writes the gradient as fp8 codes if the precision is fp8
TRAIN_GPT_ATTENTION=hopper-heads beside heads.fp8 1 $EIGHT_HEADS
beside tensor 2 $GRID precision=bf16 parallel.tensor=2 parallel.comm=nccl
beside stages 2 $GRID precision=bf16 parallel.pipeline=2 parallel.interleave=2 parallel.comm=nccl
beside stages.ring 2 $GRID precision=bf16 parallel.pipeline=2 parallel.comm=ring
beside tensor.stages 4 $GRID precision=bf16 parallel.tensor=2 parallel.pipeline=2 parallel.zero_stage=2 parallel.comm=nccl
beside tensor.slots 4 $GRID precision=bf16 parallel.tensor=2 parallel.zero_stage=3 parallel.comm=nccl
beside context 2 $LONG precision=bf16 parallel.context=2 parallel.comm=nccl
for run in fp32.nccl bf16.nccl fp16.nccl fp32.ring; do beside $run 2 $SMALL $FOUR precision=${run%.*} parallel.comm=${run#*.}; done
# With one table of algorithms and one order of additions, the number of ranks must change no bit. A step has four
# micro-batches.
ORDERED="$SMALL batch.global_tokens=160 run.steps=3 precision=bf16 parallel.deterministic=true"
# each of two ranks has one micro-batch a step
beside ordered.one 2 $SMALL $FOUR precision=bf16 parallel.deterministic=true parallel.comm=ring
beside ordered 1 $ORDERED
wait
# Algorithms of products are chosen by timing, so runs that must agree bit by bit get the same table, gemm.json.
same_table() { mkdir -p "$WORK/$1" && cp "$WORK/$2/gemm.json" "$WORK/$1/"; }
same_table again bf16 && beside again 1 $SMALL precision=bf16
same_table fp8.again fp8 && beside fp8.again 1 $SMALL $EIGHT
same_table heads.nccl heads && TRAIN_GPT_ATTENTION=hopper-heads beside heads.nccl 2 $HEADS parallel.deterministic=true parallel.comm=nccl
same_table heads.tiles heads && TRAIN_GPT_ATTENTION=hopper-tiles beside heads.tiles 1 $HEADS parallel.deterministic=true
for comm in nccl ring; do same_table ordered.$comm ordered && beside ordered.$comm 2 $ORDERED parallel.comm=$comm; done
# A stuck NCCL call blocks the main thread. The watchdog's thread aborts it, and does not wait for an abort that hangs.
for fault in stuck stuck-abort; do EMU_NCCL_FAULT=$fault beside $fault 2 $SMALL parallel.comm=nccl run.watchdog_seconds=10; done
wait

for run in fp32 fp32.nccl fp32.ring bf16 bf16.nccl fp16 fp16.nccl fp8 fp8.nccl; do
    precision=${run%.*} like=cpu_${run/fp16/fp32}
    case $run in *.*) like=cpu_four.${precision/fp16/fp32} ;; esac
    expect "$run trains" ended $run
    expect "$run: the CPU build's losses within $(allowed $precision)" same_losses "$WORK/$run" "$WORK/$like" "$(allowed $precision)"
done
for run in own.none own.block llama.own stages.own; do
    case $run in own.*) like=cpu_wide ;; llama.own) like=cpu_llama.bf16 ;; *) like=cpu_grid ;; esac
    expect "$run trains" ended $run
    expect "$run: the CPU build's losses" same_losses "$WORK/$run" "$WORK/$like" "$(allowed bf16)"
    algorithms() { grep algorithm.: "$WORK/$run/gemm.json"; }
    expect "$run: all of the step's products, and no other" [ "$(algorithms | wc -l)" -gt 10 -a -z "$(algorithms | grep -vE '\[-[23],')" ]
    own_joins() { [ "$(grep -A 1 ' residual, ' "$WORK/$run/gemm.json" | grep -cF '[-3,')" -eq 2 ]; }
    expect "$run: both branches join the stream in an epilogue" own_joins
done
expect "own.block: the same bits" same_weights "$WORK/own.block" "$WORK/own.none" step_00000003
own_delta() { grep -A 1 ' delta, ' "$WORK/own.none/gemm.json" | quiet grep -F '[-3,'; }
expect "own products: attention's delta in an epilogue" own_delta
expect "a block a head in attention's backward: it ran" grep -q attention_heads_hopper "$WORK/heads.kernels"
for run in heads heads.nccl heads.tiles; do
    expect "$run trains" ended $run
    expect "$run: the CPU build's losses" same_losses "$WORK/$run" "$WORK/cpu_heads" "$(allowed bf16)"
done
expect "a block a head in fp8 trains" ended heads.fp8
expect "a block a head in fp8: the CPU build's losses" same_losses "$WORK/heads.fp8" "$WORK/cpu_heads.fp8" "$(allowed fp8)"
expect "a block a head: the same bits on two ranks" same_weights "$WORK/heads.nccl" "$WORK/heads" step_00000002
expect "by tiles: only qkv's bias is summed in another order" same_losses "$WORK/heads.tiles" "$WORK/heads" 1e-5
for run in llama.fp32 llama.bf16 llama.fp8 qwen3.fp32 qwen3.bf16 moe.fp32 moe.bf16; do
    expect "$run trains" ended $run
    expect "$run: the CPU build's losses" same_losses "$WORK/$run" "$WORK/cpu_$run" "$(allowed ${run#*.})"
done
for run in experts experts.ring; do
    [ $run = experts ] && like=cpu_moe4 || like=cpu_moe.bf16
    expect "$run trains" ended $run
    expect "$run: the CPU build's losses" same_losses "$WORK/$run" "$WORK/$like" "$(allowed bf16)"
done
for run in tensor stages stages.ring tensor.stages tensor.slots context; do
    [ $run = context ] && like=cpu_long || like=cpu_grid
    expect "$run trains" ended $run
    expect "$run: the CPU build's losses" same_losses "$WORK/$run" "$WORK/$like" "$(allowed bf16)"
    expect "$run: its held-out losses" same_evals "$WORK/$run" "$WORK/$like" "$(allowed bf16)"
done
expect "fp32: the CPU build's held-out loss" same_evals "$WORK/fp32" "$WORK/cpu_fp32" 1e-5
expect "the same bits again" ended again
expect "the same bits again: equal" same_weights "$WORK/again" "$WORK/bf16" step_00000006
# sets prints the timed matrix products with fp32 output: the gradients of weights. A step has two micro-batches. The
# first one sets the gradients of the blocks, the second one adds to them. Rank 0 must have timed both kinds before the
# first step.
sets() { grep -oE '"bf16 to fp32, [^"]*"' "$WORK/bf16/gemm.json"; }
timed_both() { [ "$(sets | wc -l)" -ge 4 ] && ! sets | sed 's/fp32,/fp32 added,/' | grep -vxF -f <(grep -oE '"bf16 to fp32 added, [^"]*"' "$WORK/bf16/gemm.json"); }
expect "products that set gradients are timed, and the same that add" timed_both
expect "fp8: the same bits again" ended fp8.again
expect "fp8: the same bits again: equal" same_weights "$WORK/fp8.again" "$WORK/fp8" step_00000006
writers() { grep -oE '^\(?fp8_(activation|swiglu|norm)_(for|back)ward_kernel' "$WORK/kernels" | sort -u | wc -l; }
expect "fp8: norms, activations and gradients write 8 bits at once" [ "$(writers)" -eq 5 ]
expect "parallel.deterministic, 1 rank" ended ordered
expect "parallel.deterministic, one micro-batch a rank" ended ordered.one
for comm in nccl ring; do
    expect "parallel.deterministic, 2 ranks, $comm" ended ordered.$comm
    expect "parallel.deterministic, 2 ranks, $comm: the same bits" same_weights "$WORK/ordered.$comm" "$WORK/ordered" step_00000003
done
for fault in stuck stuck-abort; do
    expect "NCCL, $fault: exit 77" ended $fault 77
    expect "NCCL, $fault: the message has rank, host and collective" grep -qE "train_gpt: rank [01] of 2 on $(hostname): no progress .*; collective all-gather [0-9]+ is in flight" "$WORK/$fault.err"
done
rm -r "$WORK/bf16/checkpoints/step_00000006"
expect "resume" quiet train $SMALL run.dir="$WORK/bf16" precision=bf16
expect "resume: the same bits" same_weights "$WORK/again" "$WORK/bf16" step_00000006
# A run that is too large for this GPU prints the plan and changes that take less memory: before any allocation, and
# when NCCL fails later.
LARGE="model.n_layer=48 model.n_embd=1600 model.n_head=25 batch.micro_batch=6 run.dir=$WORK/large"
expect "a run too large for the GPU" exits 71 "has [0-9.]+ GiB free and this run takes [0-9.]+ GiB: batch.micro_batch = [0-9]+ (is the largest|does not fit)" train $LARGE
expect "a run too large for the GPU: the plan and changes that take less" [ "$(grep -cE 'total, GPU memory|^less memory: batch.micro_batch = 3 takes' "$WORK/err")" -eq 2 ]
export EMU_NCCL_FAULT=memory
expect "NCCL without memory" exits 71 "NCCL: .* failed on rank 0.*malloc" train_ranks 2 $SMALL run.dir="$WORK/lack" parallel.comm=nccl
expect "NCCL without memory: the plan and changes that take less" [ "$(grep -cE 'total, GPU memory|^less memory: ' "$WORK/err")" -eq 2 ]
unset EMU_NCCL_FAULT
for verb in check plan; do
    expect "$verb: heads over 128 are the CPU's alone" exits 64 "more than 128 run on the CPU only \(make BACKEND=cpu\)" "$TRAIN" $verb "$WORK/tiny.json" model.n_head=1 model.n_embd=136
done

expect "an unknown way to launch" exits 64 'TRAIN_GPT_LAUNCH is "late": it must be early or serial' \
    env TRAIN_GPT_LAUNCH=late "$TRAIN" "$WORK/tiny.json" $SMALL run.dir="$WORK/late"
for count in 1 4x ""; do
    expect "TRAIN_GPT_MULTIPROCESSORS=$count" exits 64 'TRAIN_GPT_MULTIPROCESSORS is ".*": it must be a whole number of at least 2' \
        env TRAIN_GPT_MULTIPROCESSORS=$count "$TRAIN" "$WORK/tiny.json" $SMALL run.dir="$WORK/few"
done

# Names another GPU in the table of the chosen algorithms of matrix products. The algorithms of another GPU must not be
# used, neither from the file nor from the checkpoint.
sed -i 's/"gpu":.*/"gpu": "another GPU",/' "$WORK/fp32/gemm.json"
heard() { "$@" > /dev/null 2> "$WORK/err"; }
expect "another GPU's algorithms" heard train $SMALL run.dir="$WORK/fp32" run.steps=7
expect "another GPU's algorithms: both are named" grep -q "gemm.json: .* chosen on GPU another GPU, and this is emulated GPU" "$WORK/err"
expect "another GPU's algorithms: the file is this one's now" grep -q '"gpu":.*"emulated GPU"' "$WORK/fp32/gemm.json"
say() { "$TRAIN" sample "$WORK/fp32" tokens=50 prompt="the quick" seed=3; }
sampled() { "$1" sample "$WORK/$2.fp32" tokens=12 prompt="the quick" seed=3; }
for kind in llama qwen3 moe; do
    said=$(sampled "$TRAIN" $kind)
    expect "$kind: the CPU build samples the same text" [ -n "$said" -a "$said" = "$(sampled "$CPU" $kind)" ]
done
said=$(say)
expect "sample prints the same each time" [ -n "$said" -a "$said" = "$(say)" ]
rm -r "$WORK/bf16/checkpoints/step_00000006"
TRAIN=$CPU
expect "the CPU build samples the same text" [ "$said" = "$(say)" ]
expect "the CPU build goes on from there" quiet train $SMALL run.dir="$WORK/bf16" precision=bf16
expect "the CPU build goes on from there: losses" same_losses "$WORK/bf16" "$WORK/again" 1e-3
exit $STATUS
