# struck.sh - small trainings in which a fault occurs in the middle (core/failpoints.h). Checks how they end: all ranks
# gone in time, the exit code of the first cause, no process left. Sourced by tests; it sources tiny.sh.
. "$(dirname "${BASH_SOURCE[0]}")/tiny.sh"
CALM="eval.every=0 checkpoint.every=0 batch.global_tokens=960" # 24 samples a step: 8 ranks divide it, too

# every_collective RANKS STEP: runs a training to measure this machine. $POINTS are then the failpoints that a rank
# passes in step STEP, one a line, such as "comm.reduce_scatter@9". $LIMIT is the time limit of the watchdog in seconds,
# long enough for this machine. $PATIENCE is how many times slower the machine is than when quiet.
every_collective() {
    local log=$WORK/points
    rm -f "$log"
    PATIENCE=$(TRAIN_GPT_FAIL="comm@1+:note,rank=0" TRAIN_GPT_FAIL_LOG=$log slowness "$1" "$2")
    LIMIT=$(awk -v p="$PATIENCE" 'BEGIN { printf "%.1f", 2 * p }')
    # a step begins at a reduce-scatter that follows another collective
    POINTS=$(sed 's/:.*//' "$log" | awk -v step="$2" '/reduce_scatter/ && last !~ /reduce_scatter/ { n++ } { last = $0 } n == step')
}

# slowness RANKS STEP: prints how many times longer a short job takes now than on a quiet machine, at least 1.
slowness() {
    local at=$EPOCHREALTIME dir
    dir=$(mktemp -d "$WORK/slowness.XXXXXX")
    run_ranks "$1" "$FAILING" "$WORK/tiny.json" run.dir="$dir" run.steps=$(($2 + 1)) $CALM > /dev/null
    rm -rf "$dir"
    awk -v a="$at" -v b="$EPOCHREALTIME" 'BEGIN { p = (b - a) / 0.8; printf "%.2f", (p > 1 ? p : 1) }'
}
# soon SECONDS LIMIT: succeeds if SECONDS is at most what LIMIT seconds of a quiet machine take here. If not, measures
# the machine again, because other programs may have begun to use it.
soon() {
    in_time() { awk -v t="$1" -v s="$2" -v p="$3" 'BEGIN { exit !(t <= s * p) }'; }
    in_time "$1" "$2" "$PATIENCE" || in_time "$1" "$2" "$(slowness 2 3)"
}

# struck NAME RULE RANKS STATUS SECONDS PATTERN [OPTION...]: trains until the fault that RULE describes
# (core/failpoints.h) occurs. If RULE is empty, sends $SIGNAL to one rank instead. The job must end with STATUS. All
# ranks must be gone within SECONDS of a quiet machine. Each line of PATTERN must match on stderr. Prints ok or not ok.
struck() {
    local name=$1 rule=$2 ranks=$3 status=$4 seconds=$5 pattern=$6 got took dir says=yes one; shift 6
    dir=$(mktemp -d "$WORK/struck.XXXXXX")
    # Uses its own TMPDIR, because jobs of mpirun that begin and end in the same folder can fail to start
    # (scripts/test.sh).
    TMPDIR=$dir TRAIN_GPT_FAIL=$rule TRAIN_GPT_FAIL_LOG=$dir/at run_ranks "$ranks" "$FAILING" "$WORK/tiny.json" run.dir="$dir/run" run.steps=1000000 \
        run.watchdog_seconds="$LIMIT" $CALM "$@" > "$dir/out" 2> "$dir/err" &
    local job=$!
    if [ -z "$rule" ]; then
        while kill -0 $job 2> /dev/null && [ ! -s "$dir/run/metrics.jsonl" ]; do sleep 0.1; done
        touch "$dir/at"
        # shellcheck disable=SC2046
        strike "$SIGNAL" $(pgrep -f "^$FAILING $WORK/tiny.json run.dir=$dir/run" | shuf -n 1) || rm "$dir/at"
    fi
    wait $job; got=$?
    for _ in $(seq 100); do pgrep -f "^$FAILING $WORK/tiny.json run.dir=$dir/run" > /dev/null || break; sleep 0.1; done
    took=$(awk -v a="$(stat -c %.3Y "$dir/at" 2> /dev/null || echo 0)" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
    while read -r one; do grep -qE "$one" "$dir/err" || says=no; done <<< "$pattern"
    # the file `at` exists only if the fault has occurred
    if [ -e "$dir/at" ] && [ $got = "$status" ] && [ $says = yes ] && soon "$took" "$seconds"; then
        echo "ok $name: exit $got after $took s"
    else
        echo "not ok $name: exit $got, not $status; gone after $took s, not $seconds; like \"$pattern\"? $(grep -E 'train_gpt:' "$dir/err" | grep -v 'stack of' | head -4)"
        # without the file `at` the fault did not occur, so mpirun's own messages matter
        [ -e "$dir/at" ] || sed 's/^/# the launcher says: /' "$dir/err" | tail -n 5
        STATUS=1
    fi
    rm -rf "$dir"
}
