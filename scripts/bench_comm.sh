#!/usr/bin/env bash
# make bench-comm: compares the program's ring with MPI's own collectives at 2 and 4 ranks of one thread. It writes one
# line per figure to test/results/bench_comm.jsonl. Then it compares the simulator with measured steps.
#   scripts/bench_comm.sh [MEGABYTES_AT_MOST]
set -eu
. "$(dirname "$0")/env.sh"
# Removed, because env.sh sets it only to silence a warning in tests, and a training of a user does not have it.
unset OMPI_MCA_btl_vader_single_copy_mechanism
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

# Describes this machine as a cluster in configs/clusters/here.json, and compares runs on its grids of two ranks with
# the output of `plan cluster=here`.
python3 test/bench/bench_here.py "$B" "$launch" | tee "$log"
while read -r grid measured simulated ratio; do
    json_result bench_grids.jsonl "command=make bench-comm" "grid=${grid//,/ }" "measured_ms=$measured" "simulated_ms=$simulated" "ratio=$ratio"
done < <(python3 -c '
import json, sys
for line in open(sys.argv[1]): o = json.loads(line); print(o["grid"].replace(" ", ","), o["measured_ms"], o["simulated_ms"], o["ratio"])' "$log")
