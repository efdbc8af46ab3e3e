#!/usr/bin/env bash
# Measures how long training waits for a copy of its state in memory (checkpoint.memory_every), compared with one memcpy
# of as many bytes on this machine. Appends a line to test/results/memory_copies.jsonl. The copy contains masters and
# moments: 12 bytes a parameter. Needs a quiet machine. test/bench/bench_memory_copies.sh RECORD=0: prints, keeps
# nothing
. "$(dirname "$0")/../run/lib/tiny.sh"
MODEL="model.n_layer=6 model.n_head=8 model.n_embd=512 model.n_positions=64 batch.seq_len=64 batch.global_tokens=256"
train run.dir="$WORK/run" $MODEL run.steps=44 checkpoint.memory_every=4 checkpoint.memory_dir="$WORK/shm" checkpoint.every=0 eval.every=0 \
    log.tensorboard=false > "$WORK/out" 2>&1 || { tail -n 3 "$WORK/out"; exit 1; }
bytes=$(($("$TRAIN" plan "$WORK/tiny.json" $MODEL | awk '$1 == "parameters" { print $2; exit }') * 12))
read -r waited copied <<< "$(python3 - "$bytes" "$WORK/run/metrics.jsonl" <<'PY'
import ctypes, json, statistics, sys, time
bytes_, path = int(sys.argv[1]), sys.argv[2]
waits = [line["wait_ms"] for line in map(json.loads, open(path)) if line.get("event") == "memory"][1:]
here, there = ctypes.create_string_buffer(bytes_), ctypes.create_string_buffer(bytes_)
ctypes.memset(here, 1, bytes_), ctypes.memset(there, 1, bytes_)
times = []
for _ in range(11):
    began = time.perf_counter()
    ctypes.memmove(there, here, bytes_)
    times.append(1e3 * (time.perf_counter() - began))
print(round(statistics.median(waits), 3), round(statistics.median(times), 3))
PY
)"
ratio=$(awk -v a="$waited" -v b="$copied" 'BEGIN { printf "%.3f", a / b }')
echo "a copy of $((bytes / 1000000)) MB: training waits $waited ms, memcpy takes $copied ms: $ratio"
[ "${RECORD:-1}" = 0 ] || json_result memory_copies.jsonl command=test/bench/bench_memory_copies.sh mbytes=$((bytes / 1000000)) wait_ms="$waited" \
    memcpy_ms="$copied" ratio="$ratio"
