#!/usr/bin/env bash
# A fault on any rank ends the whole job, soon, with its exit code and one message. Ranks that cannot find each other do
# not start.
# Timed: a job must end within its time.
set -u
. "$(dirname "$0")/../../scripts/env.sh"
program=$B/test/comm/abort
out=$(mktemp); trap 'rm -f "$out"' EXIT

# expect NAME STATUS TEXT COMMAND...: checks that the command ends with STATUS and that exactly one line of its output
# has TEXT. It must end within a minute; a quiet machine takes a second or two.
expect() {
    local name=$1 status=$2 text=$3 got told begin=$EPOCHREALTIME; shift 3
    timeout 60 "$@" >"$out" 2>&1; got=$?
    told=$(grep -c -F -- "$text" "$out")
    if [ "$got" = "$status" ] && [ "$told" = $([ -n "$text" ] && echo 1 || grep -c '' "$out") ]; then
        echo "ok $name ($(awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN {printf "%.1f", b - a}') s)"
    else
        echo "not ok $name: status $got, not $status; \"$text\" in $told lines of:"; sed 's/^/    /' "$out"
    fi
}
# alone NAME STATUS TEXT [VARIABLE=VALUE...]: runs one process without a launcher, with these variables. It must end
# with STATUS, and exactly one line of its output has TEXT.
alone() { local name=$1 status=$2 text=$3; shift 3; expect "$name" "$status" "$text" env "$@" "$program" fine; }

if [[ $B == *nompi* ]]; then
    alone "a build without MPI" 69 "this build has no MPI" OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 PMIX_SERVER_URI4=here
    exit 0
fi
export -f run_ranks; export B
ranks() { expect "$1, $4 ranks" "$2" "$3" bash -c "run_ranks $4 $program $5"; }
for n in 2 3; do
    ranks "one rank's bad data ends all" 65 "a fault in the data" $n one
    ranks "a fault of all ranks: one message" 65 "train_gpt: a fault in the data" $n all
    ranks "an internal error ends all" 70 "internal error: a fault in the program" $n check
    ranks "a fault before the communicator: one message" 64 "train_gpt: a fault in the config" $n early
    ranks "one rank's fault before the communicator ends all" 64 "a fault in the config" $n early1
done
# The exit code of mpirun for a rank that ends by a signal without a message. MPICH uses the number of the signal.
crash=139; [[ $B == *mpich* ]] && crash=11
ASAN_OPTIONS=$ASAN_OPTIONS:handle_segv=0 ranks "a crash ends all" $crash "" 2 segv
ranks "a rank that leaves with 3 ends all" 3 "" 2 exit
[[ $B == *mpich* ]] || ranks "a rank that leaves with 0 while others wait ends all" 1 "" 2 exit0
case $B in
build/cpu*) ranks "a build without NCCL" 69 "this build has no NCCL" 2 nccl ;;
build/emu*)
    faulty() { export EMU_NCCL_FAULT=$1; shift; ranks "$@"; unset EMU_NCCL_FAULT; }
    ranks        "NCCL starts and ends"                 0  ""  2 nccl
    ranks        "NCCL ends after gathers in one group" 0  ""  2 nccl-gathers
    faulty setup "a communicator that cannot be made"   69 "NCCL: setting up failed on rank 0, host $(hostname), GPU-" 2 nccl
    faulty peer  "a lost peer is named"                 77 "NCCL: reduce-scatter 4 of 128 elements failed on rank 0, host $(hostname), GPU-" 2 nccl
    faulty memory "NCCL without memory"                 71 "NCCL: reduce-scatter 3 of 128 elements failed on rank 0, host $(hostname), GPU-" 2 nccl
    faulty order "ranks that call different collectives" 70 "NCCL: reduce-scatter 3 of 128 elements failed on rank 0" 2 nccl
    faulty in-group "a message that is \"in progress\" inside a group" 70 \
        "NCCL: a call inside a group, answered as in progress, failed on rank 0, host $(hostname), GPU-" 2 nccl
    faulty in-group "a gather that is \"in progress\" inside a group" 70 \
        "NCCL: a call inside a group, answered as in progress, failed on rank 0, host $(hostname), GPU-" 2 nccl-gathers
    ;;
esac
alone "srun without MPI names the option" 69 "start them with: srun --mpi=pm" SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2
alone "and mpirun" 69 "or, in a batch script, mpirun" SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2
alone "a task above 0 does not end in silence" 69 "SLURM_PROCID=1: srun started 2 tasks that cannot connect" SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2
case $B in *mpich*) other=mpirun ;; *) other=mpirun.mpich ;; esac
if command -v $other >/dev/null 2>&1; then
    # Open MPI 4 ends a process that fails to make this folder because another one makes it at the same time
    mkdir -p "${TMPDIR:-/tmp}/ompi.$(hostname).$(id -u)"
    expect "another MPI's mpirun is refused" 69 "cannot connect; use the mpirun of" env OMPI_MCA_rmaps_base_oversubscribe=1 $other -np 2 "$program" fine
else
    echo "skip another MPI's mpirun is refused (no $other)"
fi

# Open MPI 5.0 pairs IPv6 addresses that do not connect. So the program turns IPv6 off if the user has not set it and
# the host has an IPv4 address. With mpi_show_mca_params MPI_Init prints each setting and its origin.
family() { (export "$@" OMPI_MCA_mpi_show_mca_params=all; run_ranks 1 "$program" fine 2>&1 | grep -o -m1 'btl_tcp_disable_family=.*'); }
is() { if [ "$2" = "$3" ]; then echo "ok $1"; else echo "not ok $1: \"$2\", not \"$3\""; fi; }
version=$(mpirun --version 2>&1 | sed -n 's/^mpirun (Open MPI) //p')
if [[ $B == *mpich* ]]; then
    :
elif [[ $version != 5.0.* ]]; then
    is "Open MPI $version keeps IPv6" "$(family A=1)" "btl_tcp_disable_family=0 (default)"
elif ! hostname -I | grep -qE '(^| )[0-9]+\.'; then
    echo "skip IPv6 of Open MPI 5.0 (this host has no IPv4 address but its own)"
else
    is "Open MPI 5.0 leaves IPv6 out" "$(family A=1)" "btl_tcp_disable_family=6 (environment)"
    is "Open MPI 5.0 keeps what the user set" "$(family OMPI_MCA_btl_tcp_disable_family=4)" "btl_tcp_disable_family=4 (environment)"
    is "Open MPI 5.0 keeps IPv6 where only the loopback interface may be used" "$(family OMPI_MCA_btl_tcp_if_include=lo)" "btl_tcp_disable_family=0 (default)"
fi
