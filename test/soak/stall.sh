#!/usr/bin/env bash
# Measures how long training waits for a checkpoint, with the demo's model on generated text, small steps and a save
# after every 4. With one checkpoint a minute the wait may be 0.1 % of the time. The ratio to a plain copy of as many
# bytes is only printed, because a busy machine changes it.
# goal: 100 checkpoints
. "$(dirname "$0")/part.sh"
. test/run/lib/tiny.sh
trap 'tell; rm -rf "$WORK"' EXIT
shape="model.n_layer=4 model.n_head=6 model.n_embd=192 model.n_positions=256 batch.global_tokens=1024 batch.micro_batch=4 batch.seq_len=256"
unset OMP_NUM_THREADS
"$B/test/bench/bench_checkpoint" | awk '{ printf "training waits %.2f ms for a checkpoint of %.1f MiB in one process, %.2f x the time of the copy alone\n", $2, $4, $2 / $3 }'
while more; do
    rm -rf "$WORK/run"
    train $shape run.steps=40 checkpoint.every=4 eval.every=0 > "$WORK/out" 2>&1 || { echo "not ok the run: $(tail -n 1 "$WORK/out")"; tally 0 1; break; }
    grep -oE 'training waited [0-9.]+' "$WORK/out" | awk '{ print $3 }' > "$WORK/waits"
    awk '{ n++; sum += $1; if ($1 > most) most = $1 } END { printf "training waited %.2f ms for a checkpoint, %.2f at most: %.4f %% of a minute\n", sum / n, most, 0.1 * sum / n / 60 }' "$WORK/waits"
    over=$(awk '{ n++; sum += $1 } END { print (n == 0 || sum / n > 60) }' "$WORK/waits")
    [ "$over" -eq 0 ] || echo "not ok more than 0.1 % of a minute"
    tally "$(wc -l < "$WORK/waits")" "$over"
done
