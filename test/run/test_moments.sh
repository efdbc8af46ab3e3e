#!/usr/bin/env bash
# outer.moments=peer: an island that joins late continues exactly like the one whose moments it has. Also transfers that
# go wrong, with islands without a model (test/run/outer/fake_island.c).
. "$(dirname "$0")/lib/tiny.sh"
FAKE=$PWD/$B/test/run/outer/fake_island
PORT=$((20000 + $$ % 12000))
cd "$WORK" || exit 1
trap 'kill -9 $(jobs -p) 2> /dev/null; rm -rf "$WORK"' EXIT

# Every lease has the same samples: 1920 tokens, repeated. So islands with equal moments compute the same.
for _ in $(seq 30); do head -c 1920 text.txt; done > again.txt
"$TRAIN" tokenize again.txt out=again val=0.1 > /dev/null || exit 1
sed -i "s#$WORK/data/#$WORK/again/#g; s/\"n_head\": 3/\"n_head\": 2/; s/\"steps\": 12/\"steps\": 24/; s/\"eval\": {\"every\": 6/\"eval\": {\"every\": 0/; s/\"checkpoint\": {\"every\": 6/\"checkpoint\": {\"every\": 0/" tiny.json
OUTER="data.shuffle=false outer.every=4 outer.learning_rate=1 outer.momentum=0"

# says FILE PATTERN: waits until the file has a matching line, at most 60 s.
says() { for _ in $(seq 1200); do grep -qsE "$2" "$1" && return; sleep 0.05; done; echo "$1 has no line like '$2'"; tail -n 5 "$1"; return 1; }
ends() { wait "$1"; local code=$?; [ $code -eq "$2" ] || { echo "exit $code, not $2"; return 1; }; }
serves() {
    local dir=$1; shift
    for _ in 1 2 3 4 5; do # another program may have the port
        PORT=$((PORT + 1))
        "$TRAIN" serve tiny.json run.dir="$dir" outer.server=127.0.0.1:$PORT $OUTER "$@" > "$dir.out" 2>&1 & server=$!
        says "$dir.out" "serving $dir|the port is in use" || return
        grep -q "serving $dir" "$dir.out" && return
    done
}
# island RANKS DIR WORDS...: starts a job in the background, $job.
island() {
    local ranks=$1 dir=$2; shift 2
    set -- "$WORK/tiny.json" run.dir="$dir" outer.server=127.0.0.1:$PORT $OUTER "$@"
    (if [ "$ranks" -eq 1 ]; then exec "$TRAIN" "$@"; else run_ranks "$ranks" "$TRAIN" "$@"; fi > "$dir.out" 2>&1) & job=$!
}
# fake NAME ID WORDS...: starts an island without a model; its output is in NAME.out.
fake() { local name=$1 id=$2; shift 2; "$FAKE" tiny.json outer.server=127.0.0.1:$PORT $OUTER "id=00000000000000$id" "$@" > "$name.out" 2>&1 & job=$!; }

cat > losses.py <<'PY'
"""losses ISLAND PLAIN: the greatest relative difference of its losses from the plain run's of the same steps."""
import json, sys

def losses(run):
    lines = [json.loads(line) for line in open(f"{run}/metrics.jsonl")]
    return {l["step"]: l["loss"] for l in lines if l["kind"] == "train"}
island, plain = losses(sys.argv[1]), losses(sys.argv[2])
assert len(island) == 20 and min(island) == 5, sorted(island)
print(max(abs(island[s] / plain[s] - 1) for s in island))
PY
differs() { python3 losses.py "$1" plain > differs.txt && awk -v least="$2" -v most="$3" '{ exit !($1 >= least && $1 <= most) }' differs.txt || { cat differs.txt; return 1; }; }

# joins_late NAME RANKS WORDS RANKS WORDS: one island trains from the start to step 12, another from step 4 to the end.
# A third holds the first round until the second is there.
joins_late() {
    local name=$1 first=$3 second=$5
    serves "$name" outer.least_islands=2 || return
    # shellcheck disable=SC2086
    island "$2" "${name}_a" run.stop_step=12 $first; local a=$job
    fake "${name}_hold" cc hold; local hold=$job
    says "${name}_hold.out" '^open 0 .* islands 2' || return
    # shellcheck disable=SC2086
    island "$4" "${name}_b" $second; local b=$job
    says "$name.out" "island 2 .* has joined with $4 rank" || return
    strike KILL "$hold"; wait "$hold" 2> /dev/null
    ends "$a" 75 && ends "$b" 0 && ends "$server" 0
}
train run.dir=plain data.shuffle=false > plain.out 2>&1; ok $? "a plain run of the same samples"

joins_late whole 1 "" 2 "outer.moments=peer parallel.tensor=2"; ok $? "an island of two tensor ranks comes late, and the first leaves"
expect "it says whose moments it has" grep -q 'round 1 begins at step 4, with 2 islands; its moments are another island.s, of 4 updates' whole_b.out
expect "the server says who gives them, and the memory they take" grep -qE 'island 1 .* gives its moments to 1 other: they take 0.4 MiB here' whole.out
expect "it computes what the plain run computes" differs whole_b 0 1e-6
joins_late shared 2 "parallel.zero_stage=2" 1 outer.moments=peer; ok $? "one process comes late to an island of two ranks that share their moments"
expect "it computes the same" differs shared_b 0 1e-6
joins_late own 1 "" 1 ""; ok $? "an island that begins with moments of its own"
expect "it computes something else" differs own_b 1e-4 1

# --- gifts that go wrong: a first island that gives, and a second that wants ---------------------------------------------
# gift NAME ISLANDS WORDS_OF_THE_FIRST: once it has been asked.
gift() {
    serves "$1" outer.least_islands="$2" outer.patience_seconds="${patience:-60}" || return
    # shellcheck disable=SC2086
    fake "$1_a" aa updates=7 $3; a=$job
    says "$1.out" 'island 0 .* has joined' && fake "$1_b" bb wants rounds=2 && b=$job
}
gift good 2 rounds=1
ends "$a" 0 && says good_b.out '^x 0'; ok $? "moments are asked for, and handed on"
expect "as they were given" diff <(sed -n '/^open 0/,/^x/s/ first.*islands 2//p' good_b.out; grep -E '^(moments|M|V) ' good_b.out) \
    <(printf '%s\n' "open 0 step 0 steps 4 takes" "moments 7 later 0" "M 0 0.5 0.5" "V 0 0.25 0.25")
ends "$b" 0 && says good.out 'round 2/'; ok $? "the round goes on with both"
kill "$server"; wait "$server"

gift lost 3 gift=half
fake lost_c cc updates=9 rounds=2; c=$job
says lost_a.out '^open 0 .* gives' && strike KILL "$a"; wait "$a" 2> /dev/null
ends "$b" 0 && ends "$c" 0; ok $? "an island that is killed while it gives holds nobody up"
expect "another is asked in the next round" diff <(grep ^moments lost_b.out) <(printf '%s\n' "moments 0 later 1" "moments 9 later 0")
expect "the server says so" grep -qE 'island 0 .* is gone, and has not given its moments: island [12] .* waits for the next round' lost.out
kill "$server"; wait "$server"

# put_off: the same for an island with a model, of two ranks.
put_off() {
    serves late outer.least_islands=3
    fake late_a aa updates=7 gift=half; a=$job
    says late.out 'island 0 .* has joined' || return
    fake late_c cc updates=9 rounds=2; c=$job
    island 2 late_b outer.moments=peer run.stop_step=4; b=$job
    says late_a.out '^open 0 .* gives' && strike KILL "$a"; wait "$a" 2> /dev/null
    ends "$b" 75 && ends "$c" 0 && grep -q 'round 1 begins at step 4, .*; its moments are another island.s, of 9 updates' late_b.out
}
expect "an island that is put off takes the next round's" put_off
kill "$server"; wait "$server"

# zeros NAME CODE PATTERN WORDS...: if no other island has moments, the second begins with zeros. The first ends with
# the code.
zeros() {
    local name=$1 code=$2 pattern=$3; shift 3
    gift "$name" 2 "$*" && says "$name.out" "$pattern" && says "${name}_b.out" '^moments 0 later 0' || return
    if [ "$code" -gt 0 ]; then ends "$a" "$code" || return; else strike KILL "$a"; wait "$a" 2> /dev/null; fi
    ends "$b" 0 && kill "$server" && ends "$server" 75
}
expect "moments that are not finite are refused" zeros nan 76 'island 0 .* is refused: the moments of the island are not finite' gift=nan
expect "a v below zero is refused" zeros negative 76 'its v is negative' gift=negative
expect "half a gift is refused" zeros short 77 'sent [0-9]+ and [0-9]+ of the [0-9]+ elements of its moments' gift=short
patience=1
expect "nobody waits for a giver that gives nothing" zeros never 0 'none of its moments for outer.patience_seconds: island 1 .* begins with zero' gift=never

refused() { fake "$1" cc "bad=$1"; ends $! 77 && grep -qE "refused 77 .*$2" "$1.out" || { cat "$1.out"; return 1; }; }
serves odd outer.patience_seconds=5
expect "moments that nobody asked for are refused" refused moments 'moments that nobody asked it for'
expect "so is the word that they are given" refused given 'GIVEN that nobody asked it for'
expect "moments that an island was not given are kept" refused get 'GET_M for moments that it was not given'
expect "a change of x where none is kept" refused change "asked for the change of .* weights from 0 on in round 0, and the last is of round -1"
expect "the server is still there" kill -0 "$server"
kill "$server"; wait "$server"

for words in "outer.send=gradients outer.every=1" outer.wait=none outer.server=a:1,b:2; do
    # shellcheck disable=SC2086
    expect "outer.moments=peer is refused with $words" exits 64 'outer.moments "peer".* with outer' "$TRAIN" tiny.json outer.moments=peer $words
done
exit $STATUS
