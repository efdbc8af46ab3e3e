#!/usr/bin/env bash
# Runs the commands of docs/islands.md, "Three islands": three islands train configs/demo-gpt2.json. One joins late, and
# one is killed. Each sample must count once. The held-out loss must be within 3 % of one job's after as many tokens. It
# needs the text of `make demo`.
#   test/bench/three_islands.sh [STEPS]     with STEPS it is short, and no result is kept
. "$(dirname "$0")/../../scripts/env.sh"
steps_asked=${1:+run.steps=$1} all=${1:-2300}
[ -e datasets/demo/val_000000.bin ] || { echo "three_islands: no datasets/demo: make demo prepares its text" >&2; exit 64; }
work=$(mktemp -d) tree=$PWD status=0
trap 'kill $(jobs -p) 2> /dev/null; wait; rm -rf "$work"' EXIT
ln -s "$tree/configs" "$tree/datasets" "$work"; ln -s "$tree/$B/train_gpt" "$work"
export OMP_NUM_THREADS=1
expect() { local name=$1; shift; if "$@"; then echo "ok $name"; else echo "not ok $name"; status=1; fi; }

# Takes the commands of the section "Three islands" of docs/islands.md, one per line.
sed -n '/^## Three islands/,/^## [^T]/p' docs/islands.md | sed -n 's/^    //p' | sed -e ':a' -e '/\\$/N; s/ *\\\n */ /; ta' > "$work/commands"
cd "$work" || exit 1
# shown PATTERN: prints the one command of docs/islands.md that matches. If this script got a number of steps, a
# training command gets it, too.
shown() {
    [ "$(grep -c -- "$1" commands)" -eq 1 ] || { echo "docs/islands.md has not one command like '$1'" >&2; exit 1; }
    grep -- "$1" commands | sed -E "s|^(\./train_gpt .*outer\.server.*)|\1 $steps_asked|"
}
begin() { local command; command=$(shown "run.dir=runs/$1") || exit 1; eval "exec $command" > "$1.out" 2>&1 & job=$!; }
round() { grep -s '"outer"' runs/served/metrics.jsonl | tail -n 1 | sed -E 's/.*"round":([0-9]+).*/\1/'; }
# reach ROUND: waits until the server has finished round ROUND. Ends the script if the server ends before.
reach() { until [ "$(round | grep . || echo 0)" -ge "$1" ]; do kill -0 $server 2> /dev/null || { tail -n 3 ./*.out; exit 1; }; sleep 0.1; done; }

begin served; server=$job
until grep -qs "^serving " served.out; do kill -0 $server 2> /dev/null || { cat served.out; exit 1; }; sleep 0.1; done
begin one-third; first=$job
begin killed
reach $((all / 8)); begin late; late=$job
reach $((all / 2)); eval "$(shown '^kill -9')"
wait $first; expect "the island that was there all the time reaches the end" [ $? -eq 0 ]
wait $late; expect "the one that joined late, too" [ $? -eq 0 ]
kill -TERM $server; wait $server; expect "and the server, which waits for late ones" [ $? -eq 0 ]
expect "the late one has joined in mid-run" grep -q '"event":"join"' runs/late/metrics.jsonl
expect "the killed one is missed" grep -qE "^island [01] .* is lost" served.out
used=$(python3 "$tree/test/run/lib/leases.py" runs/served); expect "each sample counts once: $used" [ $? -eq 0 ]
expect "none is left out" grep -q " 0 before the last" <<< "$used"

eval "$(shown '^steps=')"
eval "$(shown 'run.dir=runs/alone')" > alone.out 2>&1; expect "one job of $steps steps" [ $? -eq 0 ]
eval "$(shown 'train_gpt eval')" > losses
islands=$(awk '$1 == "loss" { print $2; exit }' losses) alone=$(awk '$1 == "loss" { loss = $2 } END { print loss }' losses)
above=$(awk -v a="$islands" -v b="$alone" 'BEGIN { printf "%.2f", 100 * (a / b - 1) }')
expect "held-out loss $islands, one job's $alone: $above %, at most 3" awk -v a="$above" 'BEGIN { exit !(a < 3 && a > -3) }'
cd "$tree" || exit 1
[ -n "$steps_asked" ] || json_result islands_loss.jsonl command="test/bench/three_islands.sh" name="three islands, one joins late, one is killed" islands=3 send=gradients wait=all H=1 \
    tokens=$((steps * 1536)) loss="$islands" alone="$alone" above_percent="$above"
exit $status
