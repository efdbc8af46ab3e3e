#!/usr/bin/env bash
# Checks that this tree computes the same bits as commit BASE. It builds BASE in build/same/ and trains the same small
# runs with both programs. It compares every number of metrics.jsonl except times, and the files of the last checkpoint.
# It prints "same", or the runs that differ.
#   scripts/same.sh BASE [FILTER]     FILTER: only runs whose names contain it. FULL=1: every combination of options,
#                                     which takes an hour; otherwise each pair of options at least once. NO_EMU=1: no
#                                     runs on the emulator
# BASE's results are kept in build/same/ for the next comparison on this machine.
set -u
. "$(dirname "$0")/env.sh"
base=$(git rev-parse --short "${1:?usage: scripts/same.sh BASE [FILTER]}") || exit 1
filter=${2:-} work=$(mktemp -d) kept=$PWD/build/same
trap 'rm -rf "$work"' EXIT
mkdir -p "$kept/tables"
export OMP_NUM_THREADS=1

tree=$kept/$base
[ -d "$tree" ] || git worktree add -q --detach "$tree" "$base" || exit 1
for at in "$tree" .; do
    make -s -C "$at" BACKEND=cpu build/cpu/train_gpt > "$kept/build.log" 2>&1 || { tail -n 20 "$kept/build.log"; exit 1; }
    if [ -z "${NO_EMU:-}" ]; then make -s -C "$at" BACKEND=emu SAN=-plain all > "$kept/build.log" 2>&1 || { tail -n 20 "$kept/build.log"; exit 1; }; fi
done

awk 'BEGIN { srand(11); split("the quick brown fox jumps over a lazy dog while rain falls on old stones and rivers run to sea", w, " ");
             for (i = 0; i < 8000; i++) printf "%s%s", w[1 + int((i * 7 + int(i / 5) * 3) % 20)], i % 11 == 10 ? ".\n" : " " }' > "$work/text.txt"
"$tree/build/cpu/train_gpt" tokenize "$work/text.txt" out="$work/data" val=0.1 > /dev/null || exit 1
# Makes documents of one to nine words, for attention masks. Most sequences then hold several documents, and some
# documents are in two sequences.
sed 's/\.$//' "$work/text.txt" | awk '{ for (i = 1; i <= NF; i += n) { n = 1 + (NR * 5 + i * 3) % 9; line = ""; for (k = i; k < i + n && k <= NF; k++) line = line $k " "; print "{\"text\": \"" line "\"}" } }' > "$work/texts.jsonl"
{ "$tree/build/cpu/train_gpt" train-tokenizer "$work/text.txt" out="$work/bpe" vocab_size=280 &&
    "$tree/build/cpu/train_gpt" tokenize "$work/texts.jsonl" out="$work/documents" tokenizer="$work/bpe" val=0.1; } > /dev/null || exit 1
cat > "$work/tiny.json" <<JSON
{ "run": {"steps": 8, "dir": "$work/run", "verify_every": 3},
  "model": {"n_layer": 2, "n_head": 3, "n_embd": 42, "n_positions": 40, "vocab_size": 256},
  "data": {"train": "$work/data/train_*.bin", "val": "$work/data/val_*.bin"},
  "batch": {"global_tokens": 480, "micro_batch": 1},
  "optimizer": {"learning_rate": 1e-3}, "schedule": {"name": "constant", "warmup_steps": 3},
  "checkpoint": {"every": 4}, "eval": {"every": 4, "tokens": 400}, "sample": {"every": 4, "tokens": 8} }
JSON

# digest RUN: prints one hash of the reproducible part of a run: metrics without times and events, then weights, moments
# and the model's description.
digest() {
    { sed -E '/"kind":"event"/d; s/,"(tokens_per_s|mfu|[a-z_]*ms|time|hours|epoch|bpb|memory_bytes|gpu_[a-z_]*)":[^,}]*//g' "$1/metrics.jsonl"
      cd "$1/checkpoints" && cat "$(ls | grep -E '^step_[0-9]+$' | tail -1)"/{model.safetensors,optimizer.safetensors,config.json}; } 2>&1 | sha256sum | cut -c1-16
}
# run TREE NAME BACKEND RANKS RESUME KEY=VALUE...: trains with the program built in folder TREE and prints "NAME:
# digest". With RESUME=1 the run is stopped and resumed.
run() {
    local at=$1 name=$2 backend=$3 ranks=$4 resume=$5; shift 5
    local program=$at/build/$backend/train_gpt log=$work/log
    case $name in *"$filter"*) ;; *) return ;; esac
    rm -rf "$work/run"; mkdir -p "$work/run"
    local table="$kept/tables/$base-$name.json" # algorithms are chosen by timing: both programs take the table that BASE's first run chose
    [ ! -e "$table" ] || cp "$table" "$work/run/gemm.json"
    train() { if [ "$ranks" = 1 ]; then "$program" "$work/tiny.json" "$@"; else run_ranks "$ranks" "$program" "$work/tiny.json" "$@"; fi; }
    if [ "$resume" = 1 ]; then train run.steps=4 "$@" > "$log" 2>&1 && train "$@" >> "$log" 2>&1; else train "$@" > "$log" 2>&1; fi
    local status=$?
    [ -e "$table" ] || [ ! -e "$work/run/gemm.json" ] || cp "$work/run/gemm.json" "$table"
    [ $status = 0 ] && echo "$name: $(digest "$work/run")" || { echo "$name: exit $status"; tail -n 3 "$log" >&2; }
}

cases() { # TREE
    local n=0 precision ranks zero det recompute resume vocabulary
    for precision in fp32 bf16; do for ranks in 1 2 4; do for zero in 0 1; do for det in false true; do for recompute in none light block; do
    for resume in 0 1; do for vocabulary in 256 389; do
        n=$((n + 1)) # of the combinations of the last three, two for each of the others, other ones each time
        [ -n "${FULL:-}" ] || [ $((n % 7)) = 1 ] || continue
        run "$1" "$precision $ranks ranks zero $zero det $det recompute $recompute resume $resume vocabulary $vocabulary" cpu $ranks $resume \
            precision=$precision parallel.zero_stage=$zero parallel.deterministic=$det memory.recompute=$recompute model.vocab_size=$vocabulary
    done; done; done; done; done; done; done
    run "$1" "one rank, larger micro-batches, MPI" cpu 2 0 precision=fp32 batch.micro_batch=3 parallel.comm=mpi
    kinds "$1" cpu 1 "" 4
    [ -z "${NO_EMU:-}" ] || return
    local short="run.steps=3 checkpoint.every=0 eval.every=0 sample.every=0 batch.global_tokens=160 run.verify_every=2"
    run "$1" "emu fp32 1 rank" emu-plain 1 0 precision=fp32 $short
    run "$1" "emu bf16 2 ranks, NCCL" emu-plain 2 0 precision=bf16 parallel.comm=nccl model.vocab_size=389 $short
    run "$1" "emu fp16 1 rank, zero 0" emu-plain 1 0 precision=fp16 parallel.zero_stage=0 $short
    run "$1" "emu fp32 2 ranks, ring, det" emu-plain 2 0 precision=fp32 parallel.deterministic=true memory.recompute=block $short
    kinds "$1" emu-plain 0 "$short" 2
}

# kinds TREE BACKEND RESUME KEYS RANKS: runs each kind of model, optimizer and layout, in fp32 and in bf16 (both with
# FULL=1, otherwise alternately). RANKS: data ranks of the grids with ZeRO. RESUME=1: runs that are stopped and resumed.
kinds() {
    local wide="model.n_embd=64 model.n_head=4" precisions=(fp32 bf16) n=0 kind model precision layout
    local gpt2="$wide" llama="$wide model.arch=llama model.n_kv_head=2 model.n_inner=96"
    local qwen3="$wide model.arch=qwen3 model.n_kv_head=2 model.head_dim=32 model.n_inner=96"
    local moe="$wide model.arch=qwen3-moe model.n_kv_head=2 moe.experts=4 moe.top_k=2 moe.n_inner=48 moe.balance=bias moe.balance_rate=0.01"
    local documents="model.vocab_size=280 data.document_mask=true data.train=$work/documents/train_*.bin data.val=$work/documents/val_*.bin"
    local long="model.n_positions=256 batch.seq_len=256 batch.global_tokens=512"
    for kind in gpt2 llama qwen3 moe; do
        model=${!kind}
        for precision in fp32 bf16; do
            one() { # LAYOUT RANKS KEY=VALUE...
                local name=$1 ranks=$2; shift 2
                n=$((n + 1))
                [ -n "${FULL:-}" ] || [ ${precisions[n % 2]} = $precision ] || return
                # shellcheck disable=SC2086
                run "$tree_of_kinds" "$backend_of_kinds $kind $precision, $name" "$backend_of_kinds" "$ranks" "$resumed" $model precision=$precision $keys "$@"
            }
            local tree_of_kinds=$1 backend_of_kinds=$2 resumed=$3 keys=$4
            one "adamw" 1
            one "muon" 1 optimizer.name=muon
            one "normuon, 2 ranks, ZeRO 2" 2 optimizer.name=muon optimizer.normuon=true optimizer.newton_schulz=polar_express parallel.zero_stage=2
            one "documents" 1 $documents
            one "stages, documents" 2 $documents parallel.pipeline=2
            one "context" 2 $long parallel.context=2
            one "ZeRO 2" "$5" parallel.zero_stage=2
            one "ZeRO 3" "$5" parallel.zero_stage=3
            if [ $kind = moe ]; then
                one "experts divided" 2 parallel.expert=2
            else
                one "tensor" 2 parallel.tensor=2
                one "muon, tensor, ZeRO 3" "$5" parallel.tensor=2 parallel.zero_stage=3 optimizer.name=muon
            fi
        done
        [ $kind = moe ] || one_fp8 "$1" "$2" "$3" "$4" $kind "$model"
    done
}
one_fp8() { # TREE BACKEND RESUME KEYS KIND MODEL
    # shellcheck disable=SC2086
    run "$1" "$2 $5 fp8" "$2" 1 "$3" $6 precision=fp8 $4 batch.seq_len=32 batch.global_tokens=64
    # shellcheck disable=SC2086
    run "$1" "$2 $5 fp8, muon, 2 ranks" "$2" 2 "$3" $6 precision=fp8 $4 batch.seq_len=32 batch.global_tokens=128 optimizer.name=muon
}

key=$base-$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1 | tr -cd 'A-Za-z0-9')-${FULL:-0}${NO_EMU:-}-$(cksum < scripts/same.sh | cut -d' ' -f1)
if [ -n "$filter" ]; then cases "$tree" > "$work/base"
elif [ -s "$kept/$key" ]; then cp "$kept/$key" "$work/base"
else cases "$tree" > "$work/base"; cp "$work/base" "$kept/$key"; fi
cases . > "$work/now"
grep -q ': exit ' "$work/base" && { echo "$base itself fails:"; grep ': exit ' "$work/base"; exit 1; }
if diff "$work/base" "$work/now"; then echo "same: $(wc -l < "$work/now") runs, bits of $base"; else echo "DIFFERENT from $base"; exit 1; fi
