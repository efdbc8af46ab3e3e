# The CUDA build's program on the emulated GPU, whole: it trains as the CPU build does, alone and on two ranks, in every precision.
. "$(dirname "${BASH_SOURCE[0]}")/../run/tiny.sh"
if ! reason=$(env -u MAKEFLAGS -u MAKELEVEL make -n BACKEND=emu help 2>&1); then
    echo "skip training: ${reason##*\*\*\* }"
    exit 0
fi
env -u MAKEFLAGS -u MAKELEVEL make -s -j2 BACKEND=cpu all && env -u MAKEFLAGS -u MAKELEVEL make -s -j2 BACKEND=emu all || { echo "not ok build"; exit 1; }
export ASAN_OPTIONS=detect_leaks=0
CPU=$PWD/build/cpu/train_gpt
# Two layers, ten steps, two ranks' worth of sequences; an even width, as tensor cores have it, and an odd vocabulary in the tests of ops.
SMALL="run.steps=10 model.n_head=2 model.n_embd=32 batch.global_tokens=160 checkpoint.every=5 eval.every=10 eval.tokens=80"

TRAIN=$CPU train $SMALL run.dir="$WORK/cpu_fp32" > /dev/null
TRAIN=$CPU train $SMALL run.dir="$WORK/cpu_bf16" precision=bf16 > /dev/null
TRAIN=$PWD/build/emu/train_gpt
# fp32 differs by the order of sums. 16 bits: each rounding is u = 2^-8 (bf16) or 2^-11 (fp16) relative; a loss of some 300 positions averages
# them, and both builds round at the same places but for attention's probabilities: u / 4 bounds what was derived for one position.
allowed() { case $1 in fp32) echo 1e-5 ;; bf16) echo 1e-3 ;; fp16) echo 1.3e-4 ;; esac; }
for precision in fp32 bf16 fp16; do
    reference=$WORK/cpu_${precision/fp16/fp32}
    expect "$precision trains" quiet train $SMALL run.dir="$WORK/$precision" precision=$precision
    expect "$precision: the CPU build's losses within $(allowed $precision)" same_losses "$WORK/$precision" "$reference" "$(allowed $precision)"
    for comm in nccl ring; do
        expect "$precision, 2 ranks, $comm" quiet train_ranks 2 $SMALL run.dir="$WORK/$precision.$comm" precision=$precision parallel.comm=$comm
        expect "$precision, 2 ranks, $comm: losses within $(allowed $precision)" same_losses "$WORK/$precision.$comm" "$reference" "$(allowed $precision)"
    done
done
expect "fp32: the CPU build's held-out loss" same_evals "$WORK/fp32" "$WORK/cpu_fp32" 1e-5
mkdir -p "$WORK/again" && cp "$WORK/bf16/gemm.json" "$WORK/again/" # the products' algorithms are chosen by timing: the table is part of a run
expect "the same bits again" quiet train $SMALL run.dir="$WORK/again" precision=bf16
expect "the same bits again: equal" same_weights "$WORK/again" "$WORK/bf16" step_00000010
rm -r "$WORK/bf16/checkpoints/step_00000010"
expect "resume" quiet train $SMALL run.dir="$WORK/bf16" precision=bf16
expect "resume: the same bits" same_weights "$WORK/again" "$WORK/bf16" step_00000010
rm -r "$WORK/bf16/checkpoints/step_00000010"
TRAIN=$CPU
expect "the CPU build goes on from there" quiet train $SMALL run.dir="$WORK/bf16" precision=bf16
expect "the CPU build goes on from there: losses" same_losses "$WORK/bf16" "$WORK/again" 1e-3
exit $STATUS
