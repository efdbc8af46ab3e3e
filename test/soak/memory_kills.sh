#!/usr/bin/env bash
# A host and its memory are lost at a random instant, or a single rank is killed. Runs test/run/lib/memory_kills.sh over
# and over, 10 losses each.
# goal: 200 lost hosts
. "$(dirname "$0")/part.sh"
EXPERTS="model.arch=qwen3-moe model.n_embd=64 model.n_head=2 model.n_kv_head=1 model.head_dim=22"
EXPERTS+=" moe.experts=4 moe.top_k=2 moe.n_inner=24 moe.balance=bias parallel.expert=2"
while more; do
    for words in "4" "1" "4 $EXPERTS"; do
        read -r ranks words <<< "$words"
        told=$(test/run/lib/memory_kills.sh 10 $ranks $RANDOM $words)
        grep '^not ok' <<< "$told"
        hosts=$(sed -nE 's/^([0-9]+) kills, .*/\1/p' <<< "$told"); [ "$ranks" -eq 4 ] || hosts=0
        tally "${hosts:-0}" "$(grep -c '^not ok' <<< "$told")"
    done
done
