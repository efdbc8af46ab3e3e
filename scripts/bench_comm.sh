#!/usr/bin/env bash
# make bench-comm: the ring against MPI's own collectives at 2 and 4 ranks of one thread; one line per figure in test/results/bench_comm.jsonl.
#   scripts/bench_comm.sh [MEGABYTES_AT_MOST]
set -eu
. "$(dirname "$0")/env.sh"
unset OMPI_MCA_btl_vader_single_copy_mechanism # env.sh's setting for quiet tests; a user's run has none
export OMP_NUM_THREADS=1
most=${1:-64}
log=$(mktemp); trap 'rm -f "$log"' EXIT
case $B in *mpich*) launch="mpirun.mpich" ;; *) launch="mpirun --oversubscribe" ;; esac

for ranks in 2 4; do
    command="$launch -np $ranks $B/test/bench/bench_comm $most"
    read -r before _ < /proc/loadavg
    $command | tee "$log"
    library=$(sed -n '1s/^# //p' "$log")
    while read -r operation n bytes ring mpi ratio samples; do
        json_result bench_comm.jsonl "command=$command" "library=$library" "op=$operation" "ranks=$n" "bytes=$bytes" \
            "ring_gbs=$ring" "mpi_gbs=$mpi" "ratio=$ratio" "samples=$samples" "load_before=$before"
    done < <(grep -v '^#' "$log")
done
