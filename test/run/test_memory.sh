#!/usr/bin/env bash
# Memory that runs out: allocations of the program's own code fail, one at a time, in a start and in a resume; limits of the system; one rank of two.
#   test/run/test_memory.sh [EVERY]     every EVERY-th of them, 9 if not given; `make soak` tries all
every=${1:-9}
case ${B:-build/cpu} in *-asan | *-tsan*) echo "skip memory: a sanitizer has its own malloc"; exit 0 ;; esac
. "$(dirname "${BASH_SOURCE[0]}")/tiny.sh"
PRELOAD=$WORK/memory.so
gcc -O1 -shared -fPIC -o "$PRELOAD" test/preload/memory.c || { echo "not ok the preloaded library"; exit 1; }
args="run.steps=4 checkpoint.every=2 eval.every=2"

# allocations ARGS...: how many a run makes
allocations() { rm -f "$WORK/count"; LD_PRELOAD=$PRELOAD TRAIN_GPT_MALLOC_COUNT=$WORK/count train "$@" > /dev/null && cat "$WORK/count"; }
# without N ARGS...: a run whose Nth allocation fails ends with 71 (or 74, where it only costs the last checkpoint) and says that it is memory,
# or gets through without it.
without() {
    local n=$1; shift
    LD_PRELOAD=$PRELOAD TRAIN_GPT_MALLOC_FAIL=$n "$TRAIN" "$WORK/tiny.json" "$@" > "$WORK/out" 2> "$WORK/err"
    case $? in
        0) ;;
        71 | 74) grep -qE "^train_gpt: .*memory" "$WORK/err" ;;
        *) false ;;
    esac || { echo "not ok without allocation $n of train_gpt $*: $(head -3 "$WORK/err")"; return 1; }
}

train $args run.dir="$WORK/whole" > /dev/null
starts=$(allocations $args run.dir="$WORK/counted") bad=0
for n in $(seq $((RANDOM % every + 1)) "$every" "$starts"); do rm -rf "$WORK/run"; without "$n" $args || bad=$((bad + 1)); done
expect "of the $starts allocations of a start every ${every}th fails" [ "$bad" -eq 0 -a "$starts" -gt 50 ]

cp -r "$WORK/whole" "$WORK/half"; rm -r "$WORK/half/checkpoints/step_00000004"
cp -r "$WORK/half" "$WORK/counted2"
resumes=$(allocations $args run.dir="$WORK/counted2") bad=0
for n in $(seq $((RANDOM % every + 1)) "$every" "$resumes"); do
    rm -rf "$WORK/run"; cp -r "$WORK/half" "$WORK/run"
    without "$n" $args && quiet train $args 2> /dev/null && same_weights "$WORK/run" "$WORK/whole" step_00000004 || { echo "not ok allocation $n of a resume"; bad=$((bad + 1)); }
done
expect "of the $resumes allocations of a resume every ${every}th fails, and the next start goes on to the same weights" [ "$bad" -eq 0 -a "$resumes" -gt 50 ]

bad=0
for n in $(seq $((RANDOM % 20 + 1)) $((starts / 8)) "$starts"); do
    run_ranks 2 bash -c '[ "$OMPI_COMM_WORLD_RANK" != 1 ] || export LD_PRELOAD='"$PRELOAD"' TRAIN_GPT_MALLOC_FAIL='"$n"'; exec "$@"' _ "$TRAIN" "$WORK/tiny.json" $args run.dir="$WORK/two.$n" \
        > "$WORK/out" 2> "$WORK/err"
    case $? in 0) ;; 71 | 74) grep -q "memory" "$WORK/err" ;; *) false ;; esac || { echo "not ok 2 ranks, rank 1 without allocation $n: $(grep train_gpt: "$WORK/err" | head -2)"; bad=$((bad + 1)); }
done
expect "one rank without memory ends both" [ "$bad" -eq 0 ]

expect "a limit of the system is told, with what the run needs" \
    bash -c ". test/run/tiny.sh; ulimit -v 700000; exits 71 'train_gpt: no memory for' train model.n_embd=1536 model.n_head=12 model.n_layer=12 run.dir=$WORK/limit"
expect "before the first step" [ ! -s "$WORK/limit/metrics.jsonl" ]
exit $STATUS
