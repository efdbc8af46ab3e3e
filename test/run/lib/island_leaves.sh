#!/usr/bin/env bash
# Training jobs (islands) join a server and leave it over and over, at random instants. They leave by TERM (exit 75) or
# are killed; one island stays all the time. A leave must cost the others nothing: rounds go on. At the end each sample
# must count once. The seed decides outer.wait.
#   test/run/lib/island_leaves.sh LEAVES [SEED]     prints "ok ..." or "not ok ...", then "LEAVES joins and leaves, FAILED failures"
leaves=$1 RANDOM=${2:-1}
[ $((RANDOM % 2)) -eq 0 ] && wait_for=all || wait_for=none
. "$(dirname "${BASH_SOURCE[0]}")/tiny.sh"
words="outer.server=127.0.0.1:$PORT outer.key=$WORK/outer.key outer.every=4 outer.wait=$wait_for run.steps=100000000 schedule.name=constant
       eval.every=0 checkpoint.every=400 log.tensorboard=false"
begin() { (exec "$TRAIN" "$WORK/tiny.json" run.dir="$WORK/$1" $words > "$WORK/$1.out" 2>&1) & job=$!; }
# says NAME PATTERN PROCESS [TIMES]: waits until the output of NAME has TIMES matching lines. Fails if the process ends,
# or after two minutes.
says() {
    for _ in $(seq 2400); do
        [ "$(grep -csE "$2" "$WORK/$1.out")" -lt "${4:-1}" ] || return 0
        kill -0 "$3" 2> /dev/null || return 1
        sleep 0.05
    done
    return 1
}
complain() { failed=$((failed + 1)); echo "not ok leave $left, island $name: $*"; tail -n 3 "$WORK/$name.out" "$WORK/served.out"; }
rounds() { local n; n=$(grep -cs '"kind":"outer"' "$WORK/$1/metrics.jsonl"); echo "${n:-0}"; }
# rounds_go_on: waits until the server and the island (training job) that stays have done two more rounds.
rounds_go_on() {
    local n=$(($(rounds stays) + 2)) m=$(($(rounds served) + 2))
    for _ in $(seq 1200); do [ "$(rounds stays)" -lt $n ] || [ "$(rounds served)" -lt $m ] || return 0; kill -0 $server $stays 2> /dev/null || return 1; sleep 0.05; done
    return 1
}

("$TRAIN" serve "$WORK/tiny.json" run.dir="$WORK/served" $words > "$WORK/served.out" 2>&1) & server=$!
says served "^serving " $server || { echo "not ok serve"; cat "$WORK/served.out"; exit 1; }
begin stays; stays=$job
says stays "^joined " $stays
left=0 failed=0 stopped=0
while [ "$left" -lt "$leaves" ] && [ "$failed" -le 5 ]; do
    name=island$((RANDOM % 4)) # a run that has been here before, or a new one
    [ $((RANDOM % 3)) -gt 0 ] || rm -rf "${WORK:?}/$name"
    rm -f "$WORK/$name.out"; begin "$name"; a=$job
    if [ $((RANDOM % 2)) -eq 0 ]; then
        says "$name" "^joined " $a || complain "has not joined"
        says "$name" "^round [0-9]+ " $a $((RANDOM % 5)) || complain "has no rounds"
        sleep "$(awk -v r=$RANDOM 'BEGIN { printf "%.3f", r / 32768 * 0.2 }')"
        kill -TERM $a; wait $a; status=$?
        [ $status -eq 75 ] || complain "TERM: exit $status"
        stopped=$((stopped + 1))
    else # kills the island (training job) at a random time: at once, before it is connected, or after some rounds
        sleep "$(awk -v r=$RANDOM 'BEGIN { printf "%.3f", r / 32768 * 0.8 }')"
        kill -9 $a; wait $a 2> /dev/null
    fi
    left=$((left + 1))
    rounds_go_on || complain "the others do not go on"
done
name=stays
kill -TERM $stays; wait $stays; status=$?; [ $status -eq 75 ] || complain "the one that stays ends with $status"
kill -TERM $server; wait $server; status=$?; [ $status -eq 75 ] || complain "the server ends with $status"
used=$(python3 test/run/lib/leases.py "$WORK/served"); expect "$left joins and leaves, $stopped by TERM, outer.wait=$wait_for: each sample counts once: $used" [ $? -eq 0 ]
expect "each island leaves as it was told, and the others go on" [ "$failed" -eq 0 ]
expect "all $leaves have come and gone" [ "$left" -eq "$leaves" ]
echo "$left joins and leaves, $failed failures"
exit $STATUS
