#!/usr/bin/env bash
# Measures what a thin link costs. Two hosts (network namespaces, for root) train configs/demo-gpt2.json with one thread
# each. Their link has 20 Mbit/s and 10 ms each way (test/hosts/thin_link.c). The step rate of two islands, or of one
# job of two ranks, is compared with that of two jobs that exchange nothing. The server is on one of the hosts. Needs
# the text of `make demo`, and a quiet machine; a row takes three minutes at most.
#   test/bench/bench_islands.sh [parallel|diloco|bf16|int8|ends...]     none: all; a line each in test/results/islands.jsonl
#   RECORD=0: prints, keeps nothing; MBIT=7: a link of so many Mbit/s, for a machine whose steps take longer;
#   ROUNDS=2, ALONE=200: so many rounds, and steps without exchange, for a shorter row
. "$(dirname "$0")/../hosts/hosts.sh"
export CONFIG=$PWD/configs/demo-gpt2.json
[ -e datasets/demo/val_000000.bin ] || { echo "bench_islands: no datasets/demo: make demo prepares its text" >&2; exit 64; }
QUIET="eval.every=0 sample.every=0 checkpoint.every=0 log.tensorboard=false"
AT=10.77.0.1:4300 SCALE="${MBIT:+MBIT=$MBIT }${ROUNDS:+ROUNDS=$ROUNDS }${ALONE:+ALONE=$ALONE }" MBIT=${MBIT:-20} ALONE=${ALONE:-400}

# rate KIND FIRST RUN: prints the steps a second from the first line of that kind at step FIRST or later to the last
# line. waited RUN: prints the share of the rounds' time that training waited.
rate() {
    python3 - "$@" <<'PY'
import json, sys
kind, first, run = sys.argv[1:]
lines = [json.loads(line) for line in open(f"{run}/metrics.jsonl")]
lines = [line for line in lines if line["kind"] == kind and line["step"] >= int(first)]
print((lines[-1]["step"] - lines[0]["step"]) / (lines[-1]["time"] - lines[0]["time"]))
PY
}
waited() {
    python3 - "$@" <<'PY'
import json, sys
lines = [json.loads(line) for line in open(f"{sys.argv[1]}/metrics.jsonl") if '"outer"' in line][1:]
print("%.4f" % (sum(line["waited_ms"] for line in lines) / sum(line["ms"] for line in lines)))
PY
}
# on_both NAME WORDS...: runs a job on each host at the same time, to the end. The runs are NAME.hostA and NAME.hostB.
on_both() {
    local name=$1 host jobs="" job; shift
    for host in hostA hostB; do
        (on_host $host "$TRAIN" "$CONFIG" run.dir="$WORK/$name.$host" $QUIET "$@" > "$WORK/$name.$host.out" 2>&1) & jobs+=" $!"
    done
    for job in $jobs; do wait "$job" || { tail -n 3 "$WORK/$name".host?.out >&2; return 1; }; done
}
# islands NAME H ROUNDS WORDS...: trains two islands (jobs of one model) with H steps a round. Prints their steps a
# second, from the end of the first round to the end of the last.
islands() {
    local name=$1 every=$2 words server; shift 2
    words="run.steps=$(($1 * every)) outer.server=$AT outer.key=$WORK/outer.key outer.every=$every ${*:2}"
    (on_host hostA "$TRAIN" serve "$CONFIG" run.dir="$WORK/$name" outer.least_islands=2 outer.linger_minutes=0 $QUIET $words > "$WORK/$name.out" 2>&1) & server=$!
    until grep -qs "^serving " "$WORK/$name.out"; do kill -0 $server 2> /dev/null || { cat "$WORK/$name.out" >&2; return 1; }; sleep 0.1; done
    on_both "$name" $words && wait $server && rate outer 1 "$WORK/$name.hostB" && waited "$WORK/$name.hostB" > "$WORK/waited"
}
# alone NAME: prints the steps a second of two jobs that exchange nothing.
alone() { on_both "$1" run.steps=$ALONE && rate train 50 "$WORK/$1.hostB"; }
# row NAME WHAT RATE: prints and records RATE, in steps a second, divided by the rate of two jobs that exchange nothing.
# The latter is measured just before and just after; the mean counts.
row() {
    local ratio alone waited; waited=$(cat "$WORK/waited" 2> /dev/null)
    alone=$(alone "$1.after") || return 1
    alone=$(awk -v a="$first" -v b="$alone" 'BEGIN { print (a + b) / 2 }')
    ratio=$(awk -v a="$3" -v b="$alone" 'BEGIN { printf "%.4f", a / b }')
    printf '%s: %.2f steps/s, %.2f without exchange: %.1f %%; waited %s of the time\n' "$2" "$3" "$alone" "$(awk -v r="$ratio" 'BEGIN { print 100 * r }')" "${waited:--}"
    [ "${RECORD:-1}" = 0 ] || json_result islands.jsonl command="${SCALE}test/bench/bench_islands.sh $1" what="$2" link="$MBIT Mbit/s, 10 ms each way (relay and server on the same two cores)" \
        steps_per_s="$(printf %.4f "$3")" alone_steps_per_s="$(printf %.4f "$alone")" ratio="$ratio" ${waited:+waited="$waited"} load_before="$before"
}
# ends NAME COMPRESS: prints how long training waits at the end of a round for the exchange, the median of five rounds.
# The wait depends little on the steps of a round and on the speed of the processors.
ends() {
    local ms
    islands "$1" 20 6 outer.compress="$2" > "$WORK/rate" || return 1
    ms=$(python3 - "$WORK/$1.hostB" <<'PY'
import json, statistics, sys
print(round(statistics.median([line["waited_ms"] for line in map(json.loads, open(f"{sys.argv[1]}/metrics.jsonl")) if line["kind"] == "outer"][1:])))
PY
    )
    printf 'a round of DiLoCo ends, outer.compress=%s: training waits %s ms\n' "$2" "$ms"
    [ "${RECORD:-1}" = 0 ] || json_result islands.jsonl command="test/bench/bench_islands.sh ends" what="outer.compress=$2" link="$MBIT Mbit/s, 10 ms each way (relay and server on the same two cores)" \
        wait_ms="$ms" load_before="$before"
}
parallel() { # trains one job of two ranks, each with the batch of an island (training job); prints steps a second
    two_hosts 1 $QUIET run.dir="$WORK/parallel" run.steps=${1:-20} batch.global_tokens=3072 > "$WORK/parallel.out" 2>&1 || { tail -n 3 "$WORK/parallel.out" >&2; return 1; }
    rate train 4 "$WORK/parallel"
}

thin_cable "$MBIT" 10 || exit 1
[ $# -gt 0 ] || set -- diloco bf16 int8 parallel ends
for name in "$@"; do
    read -r before _ < /proc/loadavg
    if [ "$name" = ends ]; then
        for each in none bf16 int8; do ends "ends.$each" $each || STATUS=1; done
        continue
    fi
    first=$(alone "$name.before") || { STATUS=1; continue; }
    rm -f "$WORK/waited"
    case $name in
    diloco)    what="two islands, DiLoCo, H=500";              got=$(islands $name 500 "${ROUNDS:-3}") ;;
    bf16)      what="two islands, DiLoCo, H=500, bf16 deltas"; got=$(islands $name 500 "${ROUNDS:-3}" outer.compress=bf16) ;;
    int8)      what="two islands, DiLoCo, H=500, int8 deltas"; got=$(islands $name 500 "${ROUNDS:-3}" outer.compress=int8) ;;
    parallel)  what="one job of two ranks, data parallel";     got=$(parallel) ;;
    short)     what="two islands, H=20, a short trial";        got=$(islands $name 20 4) ;;
    *)         echo "bench_islands: no row $name" >&2; exit 64 ;;
    esac || { echo "not ok $name"; STATUS=1; continue; }
    [ "$MBIT" = 20 ] || what+=", $MBIT Mbit/s"
    row $name "$what" "$got" || STATUS=1
done
exit $STATUS
