# struck.sh - small trainings that a fault strikes in mid-run (core/failpoints.h), and their expected end: all gone in
# time, the first cause's exit code, nobody left. Sourced; build and words are tiny.sh's.
. "$(dirname "${BASH_SOURCE[0]}")/tiny.sh"
FAILABLE=$PWD/$B/test/train_gpt-failpoints
CALM="eval.every=0 checkpoint.every=0 batch.global_tokens=960" # 24 samples a step: 8 ranks divide it, too

# every_collective RANKS STEP: the points "comm.reduce_scatter@9" that one rank of so many passes within that step, a line each, in $POINTS.
# How long this took is a measure of the machine: $LIMIT becomes seconds that a watchdog may safely wait, $PATIENCE how much slower than quiet.
every_collective() {
    local log=$WORK/points
    rm -f "$log"
    PATIENCE=$(TRAIN_GPT_FAIL="comm@1+:note,rank=0" TRAIN_GPT_FAIL_LOG=$log slowness "$1" "$2")
    LIMIT=$(awk -v p="$PATIENCE" 'BEGIN { printf "%.1f", 2 * p }')
    # A step begins with its first reduce-scatter after gathers.
    POINTS=$(sed 's/:.*//' "$log" | awk -v step="$2" '/reduce_scatter/ && last !~ /reduce_scatter/ { n++ } { last = $0 } n == step')
}

# slowness RANKS STEP: how many times longer a short job takes now than on a quiet machine, 1 at least.
slowness() {
    local at=$EPOCHREALTIME dir
    dir=$(mktemp -d "$WORK/slowness.XXXXXX")
    run_ranks "$1" "$FAILABLE" "$WORK/tiny.json" run.dir="$dir" run.steps=$(($2 + 1)) $CALM > /dev/null
    rm -rf "$dir"
    awk -v a="$at" -v b="$EPOCHREALTIME" 'BEGIN { p = (b - a) / 0.8; printf "%.2f", (p > 1 ? p : 1) }'
}
# soon SECONDS LIMIT: within so many seconds of a quiet machine. Where it was later the machine is measured anew: others may have begun to use it.
soon() {
    in_time() { awk -v t="$1" -v s="$2" -v p="$3" 'BEGIN { exit !(t <= s * p) }'; }
    in_time "$1" "$2" "$PATIENCE" || in_time "$1" "$2" "$(slowness 2 3)"
}

# struck NAME RULE RANKS STATUS SECONDS PATTERN [OPTION...]: under the rule ("" when SIGNAL is to strike, sent to one of the ranks) a run
# without end ends with this status, all ranks gone within so many seconds (of a quiet machine), the pattern on stderr
# (several: one a line). Prints ok or not ok.
struck() {
    local name=$1 rule=$2 ranks=$3 status=$4 seconds=$5 pattern=$6 got took dir says=yes one; shift 6
    dir=$(mktemp -d "$WORK/struck.XXXXXX")
    # A folder of its own: jobs of mpirun that begin and end in one can fail to start (scripts/test.sh).
    TMPDIR=$dir TRAIN_GPT_FAIL=$rule TRAIN_GPT_FAIL_LOG=$dir/at run_ranks "$ranks" "$FAILABLE" "$WORK/tiny.json" run.dir="$dir/run" run.steps=1000000 \
        run.watchdog_seconds="$LIMIT" $CALM "$@" > "$dir/out" 2> "$dir/err" &
    local job=$!
    if [ -z "$rule" ]; then
        while kill -0 $job 2> /dev/null && [ ! -s "$dir/run/metrics.jsonl" ]; do sleep 0.1; done
        touch "$dir/at"
        # shellcheck disable=SC2046
        strike "$SIGNAL" $(pgrep -f "^$FAILABLE $WORK/tiny.json run.dir=$dir/run" | shuf -n 1) || rm "$dir/at"
    fi
    wait $job; got=$?
    for _ in $(seq 100); do pgrep -f "^$FAILABLE $WORK/tiny.json run.dir=$dir/run" > /dev/null || break; sleep 0.1; done
    took=$(awk -v a="$(stat -c %.3Y "$dir/at" 2> /dev/null || echo 0)" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
    while read -r one; do grep -qE "$one" "$dir/err" || says=no; done <<< "$pattern"
    # Without the file the fault did not happen, however the job ended.
    if [ -e "$dir/at" ] && [ $got = "$status" ] && [ $says = yes ] && soon "$took" "$seconds"; then
        echo "ok $name: exit $got after $took s"
    else
        echo "not ok $name: exit $got, not $status; gone after $took s, not $seconds; like \"$pattern\"? $(grep -E 'train_gpt:' "$dir/err" | grep -v 'stack of' | head -4)"
        [ -e "$dir/at" ] || sed 's/^/# the launcher says: /' "$dir/err" | tail -n 5 # the program never came so far
        STATUS=1
    fi
    rm -rf "$dir"
}
