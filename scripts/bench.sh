#!/usr/bin/env bash
# Measures the speed of whole training steps, the time to the first step, and peak memory against the plan. It prints
# the results and appends them to test/results/.
#   scripts/bench.sh [train|kinds|documents|ops|muon|start|memory|deterministic|checkpoint]      one part only
#   scripts/bench.sh peer      training compared with PyTorch (make bench-peer). Installs PyTorch from PyPI in
#                              build/venv-torch, unless PYTHON=... names a Python that has it
set -u
. "$(dirname "$0")/env.sh"
case $B in build/cuda*) exec scripts/bench_gpu.sh "$@" ;; esac
wanted=${1:-train kinds documents ops muon start memory deterministic checkpoint}
program=$PWD/$B/train_gpt
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT

# bench_train: training steps of GPT-2 124M with T 256 and 4 sequences, optimizer included. They are compared with
# oneDNN's product at M=N=K=1024. Up to three tries wait for a quiet machine.
bench_train() {
    local dtype try line rate
    for dtype in fp32 bf16; do
        for try in 1 2 3; do
            line=$("$B/test/bench/bench_train" "$dtype") || exit 1
            case $line in *quiet=yes*) break ;; *) echo "busy machine: the rates before and after are over 5 % apart, measuring again" ;; esac
        done
        echo "$line"
        [[ $line == *quiet=yes* ]] || { echo "a busy machine to the end: $dtype is not written down"; continue; }
        rate=$(echo "$line" | sed -E 's/.*matmul_before=([0-9.]+) matmul_after=([0-9.]+).*/\1 \2/' | awk '{printf "%.1f", ($1 + $2) / 2}')
        case $line in
        *bf16_by=bf16* | dtype=fp32*) is="oneDNN $dtype at 1024" ;;
        *) is="oneDNN fp32 at 1024; its bf16 on this processor gives $(TRAIN_GPT_BF16=onednn "$B/test/bench/bench_train" rate bf16)" ;;
        esac
        # shellcheck disable=SC2086
        json_result bench_train.jsonl what="GPT-2 124M, T=256, 4 sequences" command="make bench" $line matmul="$rate" matmul_is="$is"
        json_result bench_values.jsonl what="the gradient norm of GPT-2 124M, an exact sum, $dtype" command="make bench" \
            value="$(echo "$line" | sed -E 's/.*norm_of_step=([0-9.]+).*/\1/' | awk '{ printf "%.1f", 100 * $1 }') % of a step" note="the same bits in every run may cost 2 %"
    done
}

# bench_peer: the training of bench_train, compared with PyTorch. This program, compiled and eager PyTorch run
# alternately, three times each; the results are medians.
bench_peer() {
    local python=${PYTHON:-build/venv-torch/bin/python} dtype how round options line
    if [ -z "${PYTHON:-}" ] && ! "$python" -c 'import torch' 2> /dev/null; then
        python3 -m venv build/venv-torch && "$python" -m pip install -q torch numpy || { echo "PyTorch cannot be installed: see above"; exit 69; }
    fi
    for dtype in ${DTYPES:-fp32 bf16}; do
        for round in 1 2 3; do
            for how in ours compiled eager; do
                options=(--device cpu --dtype "$dtype" --length 256 --micro-batches 4 --attention default --steps 6)
                [ $how != eager ] || options+=(--no-compile)
                if [ $how = ours ]; then line=$("$B/test/bench/bench_train" $dtype); else line=$("$python" test/bench/peer_torch.py "${options[@]}"); fi || exit 1
                echo "$how, round $round: $line" | tee -a "$work/peer.$dtype"
            done
        done
        # shellcheck disable=SC2046
        json_result bench_peer.jsonl what="GPT-2 124M, T=256, 4 sequences" command="make bench-peer" dtype=$dtype rounds=3 \
            $(grep -oE '\b(torch|isa|threads)=[^ ]+' "$work/peer.$dtype" | sort -u) \
            $(for how in ours compiled eager; do
                echo "$how=$(sed -nE "s/^$how, .* tokens_per_s=([0-9.]+).*/\1/p" "$work/peer.$dtype" | sort -n | sed -n 2p)"
            done)
    done
}

# bench_kinds: training steps of Llama and Qwen3 models of GPT-2 124M's size, compared with GPT-2 124M. On a busy
# machine set OMP_NUM_THREADS=1; then only the processor time counts.
bench_kinds() {
    local dtype kind line
    for dtype in fp32 bf16; do
        for kind in llama qwen3; do
            line=$("$B/test/bench/bench_kinds" "$dtype" $kind) || exit 1
            echo "$line"
            # shellcheck disable=SC2086
            json_result bench_kinds.jsonl command="scripts/bench.sh kinds" $line
        done
    done
}

# bench_documents: how much time data.document_mask costs and saves, for whole steps and for attention alone.
bench_documents() {
    local line
    line=$("$B/test/bench/bench_documents" fp32) || exit 1
    echo "$line"
    # shellcheck disable=SC2086
    json_result bench_documents.jsonl command="scripts/bench.sh documents" $line
}

# bench_ops: operations that only move bytes, with 1024 rows of 768 channels on one core, compared with copies of as
# many bytes. The variable WORDS selects other operations by parts of their names.
bench_ops() {
    local dtype word line kind
    for dtype in fp32 bf16; do
        for word in ${WORDS:-rmsnorm head_norm swiglu}; do
            while read -r line; do
                case $line in dtype=*) kind=${line%% B=*} ;; op=*) echo "$kind $line"
                # shellcheck disable=SC2086
                json_result bench_ops.jsonl command="scripts/bench.sh ops" $kind $line ;; esac
            done < <(OMP_NUM_THREADS=1 "$B/test/bench/bench_kernels" "$dtype" 4 256 768 12 1000 1 "$word")
        done
    done
}

# bench_muon: the time of an update of Muon compared with AdamW's, in a step of 524,288 tokens.
bench_muon() {
    local line
    line=$("$B/test/bench/bench_muon" fp32) || exit 1
    echo "$line"
    json_result bench_values.jsonl what="Muon adds to a step of GPT-2 124M, 524,288 tokens, fp32" command="scripts/bench.sh muon" \
        value="$(echo "$line" | sed -E 's/.*adds=([-0-9.]+).*/\1/' | awk '{ printf "%.2f %%", 100 * $1 }')" \
        note="$(echo "$line" | sed -E 's/.*adamw_ms=([0-9.]+) muon_ms=([0-9.]+).*/update \2 ms, AdamW'"'"'s \1 ms; limit 3 %/')"
}

make_text() { # make_text N: writes a text of N bytes that is the same on every machine
    awk -v n="$1" 'BEGIN { srand(1); while (bytes < n) { w = int(rand() * 5000); s = sprintf("%d ", w * w); bytes += length(s); printf "%s", s } }'
}

# bench_start: the time from exec to the output of step 1, for the demo's model without an evaluation at step 0. The
# result is the median of five runs.
bench_start() {
    make_text 600000 > "$work/text.txt"
    "$program" tokenize "$work/text.txt" out="$work/data" > /dev/null || exit 1
    python3 - "$program" "$work" <<'PY' > "$work/start"
import statistics, subprocess, sys, time
program, work = sys.argv[1:]
seconds = []
for i in range(5):
    begin = time.monotonic()
    run = subprocess.Popen([program, "configs/demo.json", f"run.dir={work}/run{i}", f"data.train={work}/data/train_*.bin", 'data.val=[]', "run.steps=3",
                            "schedule.warmup_steps=1"], stdout=subprocess.PIPE, text=True)
    for line in run.stdout:
        if line.startswith("step 1/") or line.strip().startswith("step") and " 1/" in line:
            seconds.append(time.monotonic() - begin)
            break
    run.stdout.read(); run.wait()
assert len(seconds) == 5, "no line of step 1"
print(f"{statistics.median(seconds):.3f}")
PY
    echo "exec to the demo's step 1: $(cat "$work/start") s (median of 5)"
    json_result bench_values.jsonl what="exec to the demo's step 1, without evaluation" command="make bench" value="$(cat "$work/start") s" note="median of 5; limit 1 s"
}

# bench_memory: the largest resident set of a 124M run, compared with the total that plan prints.
bench_memory() {
    [ -d "$work/data" ] || { make_text 600000 > "$work/text.txt"; "$program" tokenize "$work/text.txt" out="$work/data" > /dev/null; }
    cat > "$work/memory.json" <<JSON
{ "run": {"steps": 3, "dir": "$work/memory"}, "model": {"preset": "gpt2-124m"}, "data": {"train": "$work/data/train_*.bin"},
  "batch": {"global_tokens": 1024, "micro_batch": 4, "seq_len": 256}, "precision": "fp32" }
JSON
    python3 - "$program" "$work/memory.json" <<'PY' > "$work/memory.out" || { cat "$work/memory.out"; exit 1; }
import re, resource, subprocess, sys
program, config = sys.argv[1:]
plan = subprocess.run([program, "plan", config], capture_output=True, text=True, check=True).stdout
planned = float(re.search(r"^ *total +([0-9.]+) MiB", plan, re.M).group(1))
before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
subprocess.run([program, config], stdout=subprocess.DEVNULL, check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
print(f"{used:.0f} {planned:.0f} {100 * (used / planned - 1):+.1f}")
PY
    read -r used planned off < "$work/memory.out"
    echo "peak memory of 124M training: $used MiB, plan says $planned MiB: $off %"
    json_result bench_values.jsonl what="peak memory of 124M training, fp32" command="make bench" value="$used MiB" note="plan says $planned MiB: $off %"
}

# bench_deterministic: the cost of parallel.deterministic. Runs with and without it alternate, and the medians of their
# steps are compared. A step has 4 micro-batches of 512 tokens.
bench_deterministic() {
    local ranks ratio
    [ -d "$work/data" ] || { make_text 600000 > "$work/text.txt"; "$program" tokenize "$work/text.txt" out="$work/data" > /dev/null; }
    cat > "$work/order.json" <<JSON
{ "run": {"steps": 12}, "model": {"n_layer": 6, "n_head": 6, "n_embd": 384, "n_positions": 256, "vocab_size": 4096},
  "data": {"train": "$work/data/train_*.bin"}, "batch": {"global_tokens": 2048, "micro_batch": 2}, "precision": "fp32",
  "checkpoint": {"every": 0} }
JSON
    for ranks in 1 2; do
        for turn in 1 2 3 4; do
            for mode in false true; do
                run_ranks $ranks "$program" "$work/order.json" parallel.deterministic=$mode run.dir="$work/order.$ranks.$mode.$turn" > /dev/null || exit 1
            done
        done
        ratio=$(python3 - "$work/order.$ranks" <<'PY'
import glob, json, statistics, sys
def median_ms(mode):
    steps = [json.loads(line) for path in glob.glob(f"{sys.argv[1]}.{mode}.*/metrics.jsonl") for line in open(path)]
    return statistics.median(step["ms"] for step in steps if step["kind"] == "train" and step["step"] > 2)
print(f"{median_ms('true') / median_ms('false'):.3f}")
PY
)
        echo "parallel.deterministic, $ranks rank(s): $ratio times the time of a step"
        json_result bench_values.jsonl what="a step with parallel.deterministic, 10 M parameters, 4 micro-batches of 512 tokens, ranks: $ranks" command="make bench" \
            value="$ratio x" note="the same step without it"
    done
}

# bench_checkpoint: how long training waits for a checkpoint, compared with a plain copy of as many bytes in memory.
bench_checkpoint() {
    local stall copy mib
    read -r _ stall copy mib < <("$B/test/bench/bench_checkpoint" 101)
    echo "training waits $stall ms for a checkpoint of $mib MiB, whose bare copy takes $copy ms (the least of 101)"
    json_result bench_values.jsonl what="training waits for a checkpoint of $mib MiB" command="make bench" \
        value="$stall ms, $(awk -v s="$stall" -v c="$copy" 'BEGIN { printf "%.2f", s / c }') x its copy" note="limit 1.2 x the time of the copy"
}

for part in $wanted; do
    declare -F "bench_$part" > /dev/null || { sed -n 's/^#   //p' "$0" >&2; exit 64; }
    "bench_$part"
done
