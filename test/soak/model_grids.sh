#!/usr/bin/env bash
# Trains on every grid of 1, 2, 3, 4 and 8 ranks that test/model/ranks_grid.c lists, one after another, and compares
# twenty steps with PyTorch's in float64.
# goal: 5184 grids
. "$(dirname "$0")/part.sh"
export OMP_NUM_THREADS=1 SHOW_GRIDS=
declare -A ALL=([1]=96 [2]=576 [3]=96 [4]=1632 [8]=2784)
at=$(so_far model_grids)
while more; do
    first=$((at % 5184)) ranks=0
    for n in 8 4 3 2 1; do
        if [ $first -lt ${ALL[$n]} ]; then ranks=$n; break; fi
        first=$((first - ALL[$n]))
    done
    count=$((ALL[$ranks] - first < 8 ? ALL[$ranks] - first : 8))
    if said=$(ALL_GRIDS=$first run_ranks $ranks $B/test/model/ranks_grid 2>&1); then tally $count 0; else
        echo "not ok grids $first to $((first + count - 1)) of $ranks ranks"; grep -E '^tensor|is false' <<< "$said" | head -5
        tally $count 1
    fi
    at=$((at + count))
done
