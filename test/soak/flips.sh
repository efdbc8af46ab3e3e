#!/usr/bin/env bash
# Flips single bits of a checkpoint: every bit of its headers and small files, and bits anywhere in the large files.
# Also tries a share of all truncations of its files. Each damage must be noticed.
# goal: 100000 flips
. "$(dirname "$0")/part.sh"
from=$(so_far flips)
while more; do
    if told=$("$B/test/run/checkpoint/test_checkpoint_damage" "$from" 2500 2> /dev/null); then failures=0; else failures=1; echo "not ok flips from $from on: $(grep -m 1 ERROR <<< "$told")"; fi
    seen=$(grep -oE '^[0-9]+ flips' <<< "$told" | grep -oE '[0-9]+')
    tally "${seen:-0}" "$failures"
    from=$((from + ${seen:-2500}))
done
