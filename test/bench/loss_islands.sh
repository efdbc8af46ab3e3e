#!/usr/bin/env bash
# Measures what islands cost in loss. Islands are training jobs that train one model together and exchange weights
# through a server. A GPT-2 is trained on the demo's text by islands, and by one job with the same tokens in steps of the
# same size. Each appends a line to test/results/islands_loss.jsonl: the held-out loss of the
# server's weights at each quarter of the run, and how far it ends above the job's loss. Islands have one thread each,
# and one group of islands trains at a time. Needs the text of `make demo`.
#   test/bench/loss_islands.sh STEPS NAME...     names: of the cases at the end of this script, or all
#   STEPS: of each island and of the job, a multiple of 200; the config has 2300
#   RECORD=0: prints, keeps nothing
. "$(dirname "$0")/../../scripts/env.sh"
[ $# -gt 1 ] && [ $(($1 % 200)) -eq 0 ] || { sed -n 's/^#   //p' "$0" >&2; exit 64; }
[ -e datasets/demo/val_000000.bin ] || { echo "loss_islands: no datasets/demo: make demo prepares its text" >&2; exit 64; }
steps=$1 status=0; shift
work=$(mktemp -d); trap 'kill $(jobs -p) 2> /dev/null; wait; rm -rf "$work"' EXIT
TRAIN=$PWD/$B/train_gpt port=$((20000 + $$ % 12000)) batch=1536
export OMP_NUM_THREADS=1
QUIET="run.steps=$steps checkpoint.every=$((steps / 4)) checkpoint.keep=4 eval.every=0 sample.every=0 log.tensorboard=false"

# losses RUN: prints "STEP:LOSS ..." of the evaluations in RUN.
losses() {
    local folder
    for folder in "$1"/checkpoints/step_*; do
        echo "$((10#${folder##*_})):$("$TRAIN" eval "$folder" | awk '$1 == "loss" { print $2 }')"
    done | tr '\n' ' ' | sed 's/ $//'
}
# alone: prints the losses of one job, which is trained once and compared with all groups.
alone() {
    [ -e "$work/alone" ] ||
        OMP_NUM_THREADS=2 "$TRAIN" configs/demo-gpt2.json $QUIET run.dir="$work/alone" > "$work/alone.out" 2>&1 ||
        { tail -n 3 "$work/alone.out" >&2; return 1; }
    losses "$work/alone"
}
# group NAME ISLANDS H RATE MOMENTUM SEND WAIT: trains a group of islands (jobs of one model) with H steps a round, and
# records their losses.
group() {
    local name=$1 islands=$2 words server jobs="" i curve one tokens above
    port=$((port + 1))
    words="outer.server=127.0.0.1:$port outer.key=$work/outer.key outer.every=$3 outer.learning_rate=$4 outer.momentum=$5 outer.send=$6 outer.wait=$7
           batch.global_tokens=$((batch / islands))"
    "$TRAIN" serve configs/demo-gpt2.json $QUIET $words outer.least_islands="$islands" outer.linger_minutes=0 run.dir="$work/$name" \
        > "$work/$name.out" 2>&1 & server=$!
    until grep -qs "^serving " "$work/$name.out"; do kill -0 $server 2> /dev/null || { cat "$work/$name.out" >&2; return 1; }; sleep 0.1; done
    for i in $(seq "$islands"); do
        "$TRAIN" configs/demo-gpt2.json $QUIET $words run.dir="$work/$name.$i" > "$work/$name.$i.out" 2>&1 & jobs+=" $!"
    done
    for i in $jobs $server; do wait "$i" || { tail -n 3 "$work/$name".*out >&2; return 1; }; done
    curve=$(losses "$work/$name") one=$(alone) || return 1
    tokens=$(python3 test/run/lib/leases.py "$work/$name" | grep -oE '[0-9]+ tokens' | tr -dc 0-9)
    above=$(awk -v a="${curve##*:}" -v b="${one##*:}" 'BEGIN { printf "%.2f", 100 * (a / b - 1) }')
    echo "$name: $tokens tokens, $curve; one job: $((steps * batch)) tokens, $one; $above % above"
    [ "${RECORD:-1}" = 0 ] || json_result islands_loss.jsonl command="test/bench/loss_islands.sh $steps $name" name="$name" islands="$islands" send="$6" wait="$7" H="$3" \
        rate="$4" momentum="$5" tokens="$tokens" losses="$curve" alone_losses="$one" loss="${curve##*:}" alone="${one##*:}" above_percent="$above"
}

[ "$1" != all ] || set -- diloco2 diloco4 averaging2 async2 gradients2 async_gradients2
for name in "$@"; do
    case $name in
    diloco2)          group $name 2 50 0.7 0.9 deltas all ;;
    diloco4)          group $name 4 50 0.7 0.9 deltas all ;;
    averaging2)       group $name 2 50 1 0 deltas all ;;
    async2)           group $name 2 50 0.7 0.9 deltas none ;;
    gradients2)       group $name 2 1 0.7 0.9 gradients all ;;
    async_gradients2) group $name 2 1 0.7 0.9 gradients none ;;
    *)                echo "loss_islands: no group $name" >&2; exit 64 ;;
    esac || { echo "not ok $name"; status=1; }
done
exit $status
