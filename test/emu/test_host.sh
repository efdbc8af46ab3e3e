#!/usr/bin/env bash
# Tests the host code of the CUDA build with emulated CUDA and NCCL. Cases: ranks that share a GPU, memory that NCCL
# takes, graphs made while a message is in flight, an aborted communicator, an old driver. SAN=-plain builds without
# sanitizers.
. "$(dirname "${BASH_SOURCE[0]}")/../run/lib/emu.sh"
needs BACKEND=cpu SAN= build/cpu/train_gpt
needs BACKEND=emu all
. test/run/lib/tiny.sh # tiny.sh is sourced after the build, because it tokenizes its text with the CPU's program
TRAIN=$PWD/build/emu${SAN:-}/train_gpt
SMALL="run.steps=2 model.n_head=2 model.n_embd=32 batch.global_tokens=80 checkpoint.every=2 eval.every=0 precision=bf16"
said() { grep -qE -- "$1" "$WORK/err" || { tail -n 5 "$WORK/err"; return 1; }; }
runs() { local name=$1 ranks=$2; shift 2; quiet train_ranks "$ranks" $SMALL run.dir="$WORK/$name" "$@" 2> "$WORK/err" || { tail -n 5 "$WORK/err"; return 1; }; }

# A rank of this model needs about 390 MiB, and NCCL some 20 MiB. So a GPU with 600 MiB has enough memory for one rank,
# but not for two.
expect "a GPU for each rank, of which it sees no other: the memory is its own" env EMU_MEMORY=600 bash -c "$(declare -f run_ranks); B=$B; run_ranks 2 '$TRAIN' '$WORK/tiny.json' $SMALL run.dir='$WORK/own' parallel.comm=nccl > /dev/null"
EMU_GPU=one EMU_MEMORY=600 exits 71 "has [0-9.]+ MiB free for each rank and this run takes" train_ranks 2 $SMALL run.dir="$WORK/half"
ok $? "two ranks on one GPU have half of its memory each"
EMU_GPU=one EMU_MEMORY=1200 runs shared 2
ok $? "  which is enough where it is" && expect "  and they are named" said "ranks 0 and 1 share GPU GPU-"

# The emulated NCCL takes memory for messages between two ranks once, and refuses to take it while a collective is in
# flight.
expect "the exchange of Muon's matrices takes no memory in a step" runs muon 2 parallel.comm=nccl optimizer.name=muon
expect "sums in the order of a tree take none" runs tree 2 parallel.comm=nccl parallel.deterministic=true

# Products and attention with persistent blocks must leave out the multiprocessors that NCCL holds, or they would wait.
expect "kernels whose blocks stay, beside NCCL" env TRAIN_GPT_GEMM=own TRAIN_GPT_ATTENTION=hopper bash -c "$(declare -f run_ranks); B=$B; run_ranks 2 '$TRAIN' '$WORK/tiny.json' $SMALL run.dir='$WORK/stay' parallel.comm=nccl model.n_embd=128 > /dev/null"

# The emulated driver refuses to make a graph while a message is in flight.
STAGES="model.n_layer=4 batch.global_tokens=160 parallel.comm=nccl parallel.pipeline=2"
expect "two stages, four micro-batches: all graphs are made before the first message" runs stages 2 $STAGES
expect "  two of each rank's, as two parts of the model" runs parts 2 $STAGES parallel.interleave=2
train $SMALL model.n_layer=4 batch.global_tokens=160 run.dir="$WORK/whole" > /dev/null
products() { grep -o '"product":[^,]*, m [0-9]* n [0-9]* k [0-9]*' "$WORK/$1/gemm.json" | sort -u; }
of_head() { products "$1" | grep -E ' n 256 | k 256$' | grep . ; }
expect "the last stage's rank times the head's products, as a rank alone does" diff <(of_head whole) <(of_head stages)
expect "  and every other product of the model" diff <(products whole) <(products stages)

# The kernels of a collective never end (fault "spin"). The watchdog's thread aborts NCCL while the main thread polls,
# and an abort frees the communicator.
EMU_NCCL_FAULT=spin train_ranks 2 $SMALL run.dir="$WORK/spin" parallel.comm=nccl run.watchdog_seconds=10 > /dev/null 2> "$WORK/err"
expect "a collective that never ends: exit 77" [ $? -eq 77 ]
expect "  by the watchdog" said "no progress for .* is in flight"
expect "  and no call of a communicator that was aborted" eval '! grep -q "EMU ERROR" "$WORK/err"'

expect "a driver for CUDA 12.2, whose graphs hold no early launches" quiet env EMU_DRIVER=12020 "$TRAIN" "$WORK/tiny.json" $SMALL run.dir="$WORK/driver"
mkdir -p "$WORK/early" && cp "$WORK/driver/gemm.json" "$WORK/early/"
train $SMALL run.dir="$WORK/early" > /dev/null
expect "  trains to the same bits as a newer one" same_weights "$WORK/driver" "$WORK/early" step_00000002

# Takes the algorithms of matrix products from an earlier run, so that nothing is timed. Timing would copy results to
# host memory that is not pinned.
mkdir -p "$WORK/copies" "$WORK/shm" && cp "$WORK/driver/gemm.json" "$WORK/copies/"
expect "copies in memory come from the GPU to pinned memory" quiet env EMU_PINNED=4096 "$TRAIN" "$WORK/tiny.json" $SMALL run.dir="$WORK/copies" \
    checkpoint.memory_every=1 checkpoint.memory_dir="$WORK/shm"
exit $STATUS
