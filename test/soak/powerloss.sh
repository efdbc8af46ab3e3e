#!/usr/bin/env bash
# The power fails while a checkpoint is written. Tries states in which the disk may be left, 200 different ones of each
# case at a time.
# goal: 1000 states
. "$(dirname "$0")/part.sh"
while more; do
    seed=$RANDOM
    if told=$("$B/test/run/checkpoint/test_checkpoint_power" 200 "$seed" 2>&1); then failures=0; else failures=1; echo "not ok power failures with seed $seed: $(grep -m 1 -E 'ERROR|train_gpt' <<< "$told")"; fi
    tally "$(grep -oE '[0-9]+ states' <<< "$told" | awk '{ n += $1 } END { print n + 0 }')" "$failures"
done
