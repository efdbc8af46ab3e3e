# struck.sh - small trainings in which a fault occurs in mid-run (core/failpoints.h), and the expected end: all ranks
# gone in time, the first cause's exit code, no process left. Sourced after build and words of tiny.sh.
. "$(dirname "${BASH_SOURCE[0]}")/tiny.sh"
CALM="eval.every=0 checkpoint.every=0 batch.global_tokens=960" # 24 samples a step: 8 ranks divide it, too

# every_collective RANKS STEP: writes the failpoints "comm.reduce_scatter@9" that one of RANKS ranks passes within that
# step to $POINTS, a line each. The time that this takes measures the machine: $LIMIT becomes seconds that a watchdog
# may safely wait, $PATIENCE how much slower the machine is than when quiet.
every_collective() {
    local log=$WORK/points
    rm -f "$log"
    PATIENCE=$(TRAIN_GPT_FAIL="comm@1+:note,rank=0" TRAIN_GPT_FAIL_LOG=$log slowness "$1" "$2")
    LIMIT=$(awk -v p="$PATIENCE" 'BEGIN { printf "%.1f", 2 * p }')
    # A step begins with its first reduce-scatter after gathers.
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
# soon SECONDS LIMIT: succeeds if the time is within SECONDS on a quiet machine. If it is later, the machine is measured
# again, because other programs may have begun to use it.
soon() {
    in_time() { awk -v t="$1" -v s="$2" -v p="$3" 'BEGIN { exit !(t <= s * p) }'; }
    in_time "$1" "$2" "$PATIENCE" || in_time "$1" "$2" "$(slowness 2 3)"
}

# struck NAME RULE RANKS STATUS SECONDS PATTERN [OPTION...]: runs an endless training under the rule ("" if SIGNAL is
# sent to one of the ranks instead). It must end with this status, all ranks gone within SECONDS (on a quiet machine),
# with the pattern on stderr (several: one a line). Prints ok or not ok.
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
    # Without this file the fault did not happen, however the job ended.
    if [ -e "$dir/at" ] && [ $got = "$status" ] && [ $says = yes ] && soon "$took" "$seconds"; then
        echo "ok $name: exit $got after $took s"
    else
        echo "not ok $name: exit $got, not $status; gone after $took s, not $seconds; like \"$pattern\"? $(grep -E 'train_gpt:' "$dir/err" | grep -v 'stack of' | head -4)"
        [ -e "$dir/at" ] || sed 's/^/# the launcher says: /' "$dir/err" | tail -n 5 # the program never came so far
        STATUS=1
    fi
    rm -rf "$dir"
}
