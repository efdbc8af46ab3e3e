#!/usr/bin/env bash
# make bench on a GPU: measures training steps of GPT-2 at four sizes, whole runs of the program, every kernel, and
# PyTorch on the same GPU in the same session. It prints the results and appends them to test/results/bench_gpu.jsonl.
# Sizes that do not fit the GPU's memory are left out.
#   scripts/bench_gpu.sh [train|program|kernels|peers|124m|355m|774m|1558m ...]      only these parts, only these sizes
set -u
. "$(dirname "$0")/env.sh"
. scripts/gpu_env.sh
parts="" sizes=""
for word in "$@"; do case $word in [0-9]*) sizes="$sizes $word" ;; *) parts="$parts $word" ;; esac; done
parts=${parts:-train program kernels peers} sizes=${sizes:-124m 355m 774m 1558m}
T=1024 vocabulary=50257
has_gpu || { echo "bench: BACKEND=$BACKEND needs an NVIDIA GPU and its driver, and nvidia-smi shows none here; make bench BACKEND=cpu measures the processor" >&2; exit 69; }
make -s "$B/train_gpt" "$B/test/bench/bench_train" "$B/test/bench/bench_kernels" || exit
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT

smi() { nvidia-smi -i 0 --query-gpu="$1" --format=csv,noheader,nounits; }
gpu=$(smi name) driver=$(smi driver_version)
echo "$gpu, driver $driver, SM clock at most $(smi clocks.max.sm) MHz, power limit $(smi power.limit) W"
case $gpu in # dense bf16, NVIDIA's data sheets; other GPUs get no MFU against the data sheet
*H100*PCIe*) peak_tflops=756 ;;
*NVL*) peak_tflops=0 ;;
*H100* | *H200*) peak_tflops=989.4 ;;
*A100*) peak_tflops=312 ;;
*) peak_tflops=0 ;;
esac

# shape_of SIZE: prints layers, heads and width of a GPT-2 size; batches_of SIZE: the micro-batches to try
shape_of() { case $1 in 124m) echo 12 12 768 ;; 355m) echo 24 16 1024 ;; 774m) echo 36 20 1280 ;; 1558m) echo 48 25 1600 ;; esac; }
batches_of() { case $1 in 124m) echo 64 128 32 ;; 355m) echo 32 64 16 ;; 774m) echo 16 32 8 ;; 1558m) echo 16 8 4 ;; esac; }
field() { echo "$2" | tr ' ' '\n' | sed -n "s/^$1=//p" | tail -n 1; } # KEY LINE

# watched COMMAND...: prints the command's output. Sets $watch to the clock, power and memory that nvidia-smi reported
# when the load was highest.
watched() {
    nvidia-smi -i 0 --query-gpu=clocks.sm,power.draw,memory.used,temperature.gpu --format=csv,noheader,nounits -lms 100 > "$work/smi" 2>/dev/null &
    local watcher=$! status
    "$@" > "$work/out"; status=$?
    kill $watcher 2>/dev/null; wait $watcher 2>/dev/null
    watch=$(awk -F', *' '{clock[NR] = $1; power[NR] = $2 + 0; if (power[NR] > most) most = power[NR]; if ($3 + 0 > memory) memory = $3; if ($4 + 0 > hot) hot = $4}
        END {for (i = 1; i <= NR; i++) if (power[i] > 0.8 * most) {sum += clock[i]; watts += power[i]; n++}
             if (n) printf "sm_mhz=%.0f power_w=%.0f smi_memory_mib=%d celsius=%d", sum / n, watts / n, memory, hot}' "$work/smi")
    return $status
}
# rates LINE LAYERS WIDTH: prints model TFLOP/s, counted as 6P+6LCT FLOPs per token (causal) and as 6P+12LCT, with P
# parameters, L layers, C channels, T positions. Compares them with the data sheet's peak and with a measured 8192 x
# 8192 x 8192 product.
rates() {
    awk -v p="$(field parameters "$1")" -v rate="$(field tokens_per_s "$1")" -v gemm="$(field matmul_8192 "$1")" -v l="$2" -v c="$3" -v t=$T -v peak="$peak_tflops" 'BEGIN {
        causal = rate * (6 * p + 6 * l * c * t) * 1e-12; full = rate * (6 * p + 12 * l * c * t) * 1e-12
        printf "tflops_causal=%.1f tflops_full=%.1f", causal, full
        if (gemm > 0) printf " of_gemm_causal=%.4f of_gemm_full=%.4f", causal / gemm * 1e3, full / gemm * 1e3
        if (peak > 0) printf " peak_tflops=%.1f mfu_causal=%.4f mfu_full=%.4f", peak, causal / peak, full / peak }'
}
record() { json_result bench_gpu.jsonl command="make bench" gpu="$gpu" driver="$driver" "$@"; }

bench_train() {
    local size B_ line best best_line best_watch
    for size in $sizes; do
        best=0 best_line=
        for B_ in $(batches_of "$size"); do
            # shellcheck disable=SC2046
            watched timeout 200 "$B/test/bench/bench_train" bf16 $(shape_of "$size") $vocabulary $T "$B_" 2> "$work/err" || { echo "GPT-2 $size, B=$B_: exit $?: $(tail -n 1 "$work/err" | cut -c 1-200)"; continue; }
            line=$(tail -n 1 "$work/out")
            echo "GPT-2 $size: $line $watch"
            if awk -v a="$(field tokens_per_s "$line")" -v b="$best" 'BEGIN {exit !(a > b)}'; then best=$(field tokens_per_s "$line") best_line=$line best_watch=$watch; fi
        done
        [ -n "$best_line" ] || continue
        # shellcheck disable=SC2046,SC2086
        record what="GPT-2 $size, T=$T, bf16" program=train_gpt size="$size" $best_line $best_watch $(rates "$best_line" $(shape_of "$size" | cut -d' ' -f 1,3))
        field B "$best_line" > "$work/batch.$size"
    done
}

# make_shard: writes a data file in llm.c's format with 20 million tokens, the same each time. Token k is about as
# frequent as in text (Zipf).
make_shard() {
    python3 - "$1" <<'PY'
import array, random, struct, sys
random.seed(1)
n, block = 20_000_000, 1_000_000
ids = list(range(50257)); random.shuffle(ids)
weights = [1.0 / (k + 3) for k in range(50257)]
tokens = array.array("H", random.choices(ids, weights, k=block))
with open(sys.argv[1], "wb") as f:
    f.write(struct.pack("<3i", 20240520, 1, n).ljust(1024, b"\0"))
    for i in range(n // block):
        cut = random.randrange(block)
        (tokens[cut:] + tokens[:cut]).tofile(f)
PY
}
# bench_program: measures the program as a user runs it, without gradient accumulation. It reports the numbers of
# metrics.jsonl and the time from exec to the first step.
bench_program() {
    local batch size=124m
    case " $sizes " in *" $size "*) ;; *) return ;; esac
    batch=$(cat "$work/batch.$size" 2>/dev/null || echo 64)
    make_shard "$work/train_000000.bin" || return
    cat > "$work/program.json" <<JSON
{ "run": {"steps": 60, "dir": "$work/program"}, "model": {"preset": "gpt2-$size"}, "data": {"train": "$work/train_*.bin"}, "precision": "bf16",
  "batch": {"global_tokens": $((batch * T)), "micro_batch": $batch, "seq_len": $T}, "schedule": {"warmup_steps": 20}, "checkpoint": {"every": 0} }
JSON
    "$B/train_gpt" plan "$work/program.json" > "$work/plan" || { cat "$work/plan"; return; }
    watched timeout 200 "$B/train_gpt" "$work/program.json" || { tail "$work/out"; return; }
    python3 - "$work" <<'PY' > "$work/line" || return
import json, re, statistics, sys
work = sys.argv[1]
steps = [json.loads(line) for line in open(f"{work}/program/metrics.jsonl")]
steps = [s for s in steps if s["kind"] == "train"][10:]
plan = open(f"{work}/plan").read()
rows = [re.search(pattern, plan, re.M) for pattern in (r"^ *total, GPU memory +([0-9.]+) MiB", r"^ *not ours, an estimate.* ([0-9.]+) MiB")]
# the total that `plan` prints without its estimate for libraries, because a run's own number does not contain that
planned = float(rows[0].group(1)) - float(rows[1].group(1)) if all(rows) else 0
used = re.findall(r"\| *([0-9.]+) GiB \|", open(f"{work}/out").read())
median = lambda key: statistics.median(s[key] for s in steps if s[key] is not None)
print(f"step_ms={median('ms'):.2f} tokens_per_s={median('tokens_per_s'):.1f} mfu_in_metrics={median('mfu'):.4f}"
      + (f" planned_mib={planned:.0f}" if planned else "") + (f" memory_mib={float(used[-1]) * 1024:.0f}" if used else ""))
PY
    echo "train_gpt $size, B=$batch: $(cat "$work/line") $watch"
    # shellcheck disable=SC2046,SC2086
    record what="GPT-2 $size, T=$T, bf16, the whole program" program=run size=$size B="$batch" T=$T $(cat "$work/line") $watch
}

bench_kernels() {
    local line
    watched timeout 300 "$B/test/bench/bench_kernels" bf16 || { cat "$work/out"; return; }
    cat "$work/out"
    while read -r line; do
        # shellcheck disable=SC2086
        case $line in op=*) record what="kernel of GPT-2 124m, B=64, T=$T" program=bench_kernels dtype=bf16 $line ;; probe=*) record what=probe program=bench_kernels $line $watch ;; esac
    done < "$work/out"
}

bench_peers() {
    local size line
    with_plain_python -c 'import torch' 2>/dev/null || { echo "PyTorch is not installed: no peers"; return; }
    line=$(with_plain_python test/bench/peer_torch.py --probes) && echo "PyTorch: $line"
    # shellcheck disable=SC2086
    [ -z "$line" ] || record what="PyTorch probes" program=PyTorch $line
    for size in $sizes; do
        watched timeout 400 env LD_LIBRARY_PATH="$LIBRARY_PATH_BEFORE" python3 test/bench/peer_torch.py --size "$size" --seconds 120 || { echo "PyTorch, GPT-2 $size: no figure"; continue; }
        line=$(tail -n 1 "$work/out")
        echo "PyTorch, GPT-2 $size: $line $watch"
        # shellcheck disable=SC2086
        record what="PyTorch, GPT-2 $size, T=$T" program=PyTorch $line $watch
    done
}

for part in $parts; do "bench_$part" || exit; done
