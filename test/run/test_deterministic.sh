# parallel.deterministic: losses, norms and weights have the same bits for any number of ranks and threads, any kind of
# communication and any accumulation. Any number of ranks resumes what any other number saved, with the bits of the
# unbroken run.
. "$(dirname "$0")/lib/tiny.sh"
same() { # same A B: checks that two runs have equal metrics, except times, and equal files in the last checkpoint
    local kind key
    for kind in "train loss" "train grad_norm" "eval loss"; do
        key=${kind#* }
        values "$1" "${kind% *}" "$key" > "$WORK/.a"; values "$2" "${kind% *}" "$key" > "$WORK/.b"
        [ -s "$WORK/.a" ] && cmp "$WORK/.a" "$WORK/.b" || { echo "$kind differs"; return 1; }
    done
    same_weights "$1" "$2" step_00000012
}
differ() { ! same "$@" > /dev/null; }
alike() { # alike NAME RANKS THREADS [KEY=VALUE...]: trains, and compares with the run of one rank and one thread
    local name=$1 ranks=$2 threads=$3; shift 3
    OMP_NUM_THREADS=$threads train_ranks "$ranks" parallel.deterministic=true run.dir="$WORK/other" "$@" > /dev/null
    expect "$name" same "$WORK/1" "$WORK/other"
    rm -rf "$WORK/other"
}

# A step has 12 micro-batches, which is not a power of two. The last bucket of parameters has only 128 elements, so from
# rank 2 on the ranks own only padding of it.
train parallel.deterministic=true run.dir="$WORK/1" > /dev/null
alike "1 rank, 3 threads" 1 3
alike "2 ranks, 2 threads" 2 2
alike "3 ranks, light recompute, MPI" 3 1 memory.recompute=light parallel.comm=mpi
alike "4 ranks, three micro-batches each" 4 1
alike "6 ranks, block recompute" 6 1 memory.recompute=block
alike "12 ranks, one micro-batch each, without ZeRO" 12 1 parallel.zero_stage=0
train run.dir="$WORK/plain" > /dev/null
expect "without the mode other bits" differ "$WORK/1" "$WORK/plain"
expect "but the same losses" same_losses "$WORK/1" "$WORK/plain" 1e-6
rm -rf "$WORK/1"
train parallel.deterministic=true run.dir="$WORK/1" precision=bf16 batch.micro_batch=2 > /dev/null
alike "bf16, 3 ranks, 2 threads, two sequences a micro-batch" 3 2 precision=bf16 batch.micro_batch=2
expect "plan counts the buffers" grep -q "gradients, .*3 buffers" <("$TRAIN" plan "$WORK/tiny.json" parallel.deterministic=true)

# Tests pairs of a number of ranks that saves and one that resumes: 16 of the 64 pairs that `make soak` tests. Each
# number from 1 to 8 that divides the 24 micro-batches saves and resumes.
rm -rf "$WORK/1" "$WORK/plain"
PAIRS_LEAVES=24 # the number of micro-batches, which 1, 2, 3, 4, 6 and 8 divide
. test/run/lib/pairs.sh
pairs 1:8 2:3 3:6 4:1 6:2 8:4 1:2 2:1 3:8 4:3 6:4 8:6 1:4 4:8 8:2 2:6
exit $STATUS
