#!/usr/bin/env bash
# test_serve.sh - a real server with simulated islands (training jobs) that have no model (test/run/outer/fake_island.c):
# rounds, joins, kills, refusals, and that each sample is given out once.
# Timed: peers that are silent are dropped after a second.
. "$(dirname "$0")/lib/tiny.sh"
FAKE=$PWD/$B/test/run/outer/fake_island
A=00000000000000aa; B_=00000000000000bb; C=00000000000000cc
cd "$WORK" || exit 1

# serve DIR PORT KEYS...: starts a server in the background and waits until it listens. Its output is in DIR.out, its
# process id in $server.
serve() {
    local dir=$1 port=$2; shift 2
    "$TRAIN" serve tiny.json "run.dir=$dir" "outer.server=127.0.0.1:$port" outer.every=2 "$@" >> "$dir.out" 2>&1 & server=$!
    said "$dir.out" "serving $dir on 127.0.0.1:$port" "${starts:-1}"  || { ok 1 "serve $dir"; exit 1; }
}
# said FILE PATTERN [TIMES]: waits until FILE has TIMES matching lines (1 if not given), at most 20 s.
said() { for _ in $(seq 400); do [ "$(grep -cE "$2" "$1" 2> /dev/null)" -ge "${3:-1}" ] && return; sleep 0.05; done; echo "no '$2' in $1:"; tail -n 5 "$1"; return 1; }
# island NAME PORT ID WORDS...: starts an island (training job) in the background. Its output is in NAME.island.
island() { local name=$1 port=$2 id=$3; shift 3; "$FAKE" tiny.json "outer.server=127.0.0.1:$port" outer.every=2 "id=$id" "$@" > "$name.island" 2>&1 & }

# leased DIR COUNT: checks leases.jsonl of a server. A lease is a range of samples given to an island. No sample is
# given again while it counts, each sample up to the last was given, and COUNT samples count at the end.
leased() {
    python3 - "$1/leases.jsonl" "$2" <<'PY'
import json, sys
given, counts, highest = {}, {}, 0
for line in open(sys.argv[1]):
    l = json.loads(line)
    span = range(l["first"], l["first"] + l["samples"])
    highest = max(highest, span.stop)
    if l["is"] == "given":
        assert not any(counts.get(s) for s in span), line
        given[l["lease"]] = span
        for s in span: counts[s] = 1
    elif l["is"] == "returned":
        for s in span: counts[s] = 0
    else:
        for s in span[l["used"]:]: counts[s] = 0
once = sum(counts.values())
assert highest == len(counts) and once == int(sys.argv[2]), (highest, once)
PY
}

expect "a server needs an address" exits 64 'outer.server is ""' "$TRAIN" serve tiny.json
expect "a server does not stop at run.stop_step" exits 64 'run.stop_step=0' "$TRAIN" serve tiny.json outer.server=127.0.0.1:1 outer.every=2 run.stop_step=4
expect "a server needs a config" exits 64 'serve: it needs a config file' "$TRAIN" serve

# --- two islands, six rounds; x as Nesterov has it ---------------------------------------------------------------------
serve whole $PORT outer.least_islands=2
expect "the key is made, for its owner alone" [ "$(stat -c %a outer.key)" = 600 ]
island a $PORT $A delta=0.01; sleep 0.1; island b $PORT $B_ delta=0.03
ends $server 0; ok $? "a run of six rounds ends with 0"
wait
expect "each island has a round's lease" grep -qE 'open 1 step 2 steps 2 first (24|48|72) samples 24 islands 2' a.island
expect "the first round waits for outer.least_islands" grep -q 'open 0 step 0 steps 2 first .* islands 2' a.island
expect "the last round is said to be" grep -q 'closed 6 islands 2 .* done 1' b.island
expect "x follows the mean delta" python3 - a.island <<'PY'
import sys
xs = [[float(n) for n in line.split()[2:]] for line in open(sys.argv[1]) if line.startswith("x ")]
x, v = xs[0], 0.0
assert len(xs) == 7
for now in xs[1:]:
    v = 0.9 * v + 0.02
    x = [a - 0.7 * (0.02 + 0.9 * v) for a in x]
    assert all(abs(a - b) < 2e-6 for a, b in zip(x, now)), (x, now)
PY
expect "every sample is leased once" leased whole 288
expect "metrics have a line a round" [ "$(grep -c '"kind":"outer"' whole/metrics.jsonl)" -eq 6 ]
expect "the checkpoint counts all islands' tokens" grep -q '"step":"12","samples":"288","tokens":"11520"' whole/checkpoints/step_00000012/state.json
expect "watch shows a server" bash -c '"$0" watch whole once=true | grep -q "12"' "$TRAIN"

# --- a run that is over: late islands hear so, and fetch its weights ----------------------------------------------------
PORT=$((PORT + 1))
kept() { (cd whole && find . -type f ! -name lock -exec cksum {} + | sort); }
kept > kept
"$TRAIN" serve tiny.json run.dir=whole outer.server=127.0.0.1:$PORT outer.every=2 outer.linger_minutes=5 > whole.late 2>&1 & server=$!
island late $PORT $C
expect "serve of a finished run says what it waits for" said whole.late "whole is at step 12 of run.steps = 12 already: nothing to do but to answer late islands for 5 minutes \(outer.linger_minutes\)"
expect "a late island hears the end" said late.island "closed 6 .* done 1"
began=$(date +%s%N); kill -TERM $server; ends $server 0; ok $? "TERM ends that with 0"
expect "at once" [ $((($(date +%s%N) - began) / 1000000)) -lt 3000 ]
expect "it has written nothing" cmp kept <(kept)
began=$(date +%s%N); quiet "$TRAIN" serve tiny.json run.dir=whole outer.server=127.0.0.1:$PORT outer.every=2 outer.linger_minutes=0.02; ok $? "it ends by itself, too"
expect "after its time" [ $((($(date +%s%N) - began) / 1000000)) -ge 1200 ]
# Runs the shell loop that docs/islands.md prints for spot machines, with a program that fails in several ways. The loop
# must end after 20 refusals in a row, and when the run is done.
sed -n '/^## Spot machines/,/^## A laptop/p' "$OLDPWD/docs/islands.md" | sed -n '/^    refused=0/,/^    done/s/^    //p' > loop
cat > fails <<'SH'
#!/bin/bash
# The file "tries" has a line CODE:TEXT for each start of this program. It prints TEXT and ends with CODE. The last line
# is repeated.
n=$(cat tried 2> /dev/null || echo 0); echo $((n + 1)) > tried
line=$(sed -n "$((n + 1))p" tries); line=${line:-$(tail -n 1 tries)}
echo "${line#*:}"; exit "${line%%:*}"
SH
chmod +x fails; mkdir looped; cp fails looped/train_gpt
loops() { (cd looped && rm -f tried && timeout 60 bash -c 'sleep() { :; }; . ../loop' && cat tried); }
printf '%s\n' "77:a:1: nobody listens there" > looped/tries
expect "an island's loop gives up after 20 refusals by a host that was reached" [ "$(loops)" = 20 ]
printf '%s\n' "64:outer.key is another" > looped/tries
expect "and by a server" [ "$(loops)" = 20 ]
{ for i in $(seq 15); do echo "77:a:1: nobody listens there"; done; for i in $(seq 30); do echo "77:a:1: No route to host"; done
  echo "75:stopped"; for i in $(seq 19); do echo "65:other data"; done; echo "0:done"; } > looped/tries
expect "it tries on while no host is reached, and ends with the run" [ "$(loops)" = 66 ]
(cd looped && "$TRAIN" ../tiny.json outer.server=127.0.0.1:9 outer.every=2 outer.key=../outer.key outer.patience_seconds=0.1 run.dir=spot > spot.out 2>&1; echo "$?:$(tail -n 1 spot.out)" > said)
expect "the program says so in its last line" grep -q '^77:.*nobody listens there' looped/said
expect "the same command has nothing to do" bash -c '"$0" serve tiny.json run.dir=whole outer.server=127.0.0.1:1 outer.every=2 | grep -q "nothing to do"' "$TRAIN"

# --- who is refused, and who is lost -----------------------------------------------------------------------------------
PORT=$((PORT + 1)); starts=1
serve run $PORT outer.patience_seconds=1
expect "a port in use is refused" exits 73 "127.0.0.1:$PORT" "$TRAIN" serve tiny.json run.dir=other "outer.server=127.0.0.1:$PORT" outer.every=2
refused() { local code=$1 pattern=$2; shift 2; island odd $PORT $C "$@"; ends $! "$code" && grep -qE "refused $code .*$pattern" odd.island || { cat odd.island; return 1; }; }
expect "another config is refused with both values" refused 64 'optimizer.learning_rate is 0.002, and the server has 0.001' optimizer.learning_rate=0.002
expect "another round is refused" refused 64 'outer.every is 3, and the server has 2' outer.every=3
mkdir other_data && head -c 30000 text.txt > short.txt && "$TRAIN" tokenize short.txt out=other_data val=0.1 > /dev/null
expect "other data are refused" refused 65 'data.train: file 0 is train_000000.bin of [0-9]+ tokens, and the server has train_000000.bin of' 'data.train=other_data/train_*.bin'
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > wrong.key; echo >> wrong.key; chmod 600 wrong.key
island wrong $PORT $C outer.key=wrong.key
ends $! 64; ok $? "another key is refused"
expect "a delta that is not finite is refused and named" refused 76 "the delta of round 0 is not finite" bad=nan
expect "the server names it" grep -qE "island 0 \\($C, 127.0.0.1:[0-9]+\\) is refused: the delta of round 0" run.out
expect "half a delta is refused" refused 77 'of the [0-9]+ elements of its delta' bad=short
expect "a frame that islands do not send is refused" refused 77 'OPEN' bad=frame
expect "a change of x where none is kept" refused 77 'asked for the change of .* weights from 0 on in round 0, and the last that the server has is of round -1' bad=change
for key in outer.stream=true outer.moments=peer; do
    expect "$key has left the program" exits 64 "${key%=*} must be .*, not .*: the program no longer has this option" "$TRAIN" tiny.json $key
done
silent() { [ -z "$("$TRAIN" plan tiny.json outer.stream=false outer.moments=own 2>&1 > plan.out)" ] && ! grep -qE 'stream|moments=' plan.out; }
expect "the defaults that saved configs hold load in silence" silent
expect "the server is still there" kill -0 $server

# --- a kill in mid-round, a late one, a server that is killed ----------------------------------------------------------
island held $PORT $B_ hold; held=$!
said held.island '^x 0'
island a $PORT $A rounds=3; a=$!
strike KILL $held; wait $held 2> /dev/null
ends $a 0; ok $? "an island that is killed holds the others up for no time"
said run.out "island 1 .* is lost: its samples go back"
expect "its samples are free again" said run/leases.jsonl "\"island\":\"$B_\".*\"is\":\"returned\""
island silent $PORT $B_ hold; silent=$!
said silent.island '^x '
said run.out 'has been silent for 1 s'; ok $? "a silent island is left out"
kill $silent 2> /dev/null
island c $PORT $C rounds=1 steps=1; ends $! 0; ok $? "an island may leave in mid-round"
said run.out "round 4/6"
strike KILL $server; wait $server 2> /dev/null
starts=2
serve run $PORT outer.patience_seconds=1 checkpoint.every=2
expect "a server goes on from its checkpoint" grep -q 'at step 6 of 12' run.out
island late $PORT $A rounds=1; ends $! 0
said run.out 'round 4/6' 2
said run.out 'saved run/checkpoints/step_00000008'
kill -TERM $server; ends $server 75; ok $? "a server that is stopped saves, and exits 75"
starts=3
serve run $PORT checkpoint.every=2
island last $PORT $B_; island two $PORT $A
ends $server 0; ok $? "and goes on to the end"
wait
samples=$(grep '"outer"' run/metrics.jsonl | tail -n 1 | sed -E 's/.*"tokens":([0-9]+).*/\1/')
expect "every sample counts once, after kills of islands and server" leased run $((samples / 40))
expect "the log has each round once" [ "$(grep -c '"kind":"outer"' run/metrics.jsonl)" -eq 6 ]

# --- wait = none: each delta at once -----------------------------------------------------------------------------------
PORT=$((PORT + 1)); starts=1
serve async $PORT outer.wait=none outer.learning_rate=1 outer.momentum=0 run.steps=8
island fast $PORT $A outer.wait=none run.steps=8
ends $server 0; ok $? "an asynchronous run of one island ends"
wait
expect "without momentum, at rate 1, x moves by the delta" python3 - fast.island <<'PY'
import sys
xs = [float(line.split()[2]) for line in open(sys.argv[1]) if line.startswith("x ")]
assert len(xs) == 5 and all(abs(b - a + 0.01) < 1e-6 for a, b in zip(xs, xs[1:])), xs
PY
serve async2 $PORT outer.wait=none run.steps=8 outer.least_islands=2
island fast $PORT $A outer.wait=none run.steps=8; sleep 0.1; island slow $PORT $B_ outer.wait=none run.steps=8
ends $server 0; ok $? "and one of two"
wait
expect "its rounds are as many deltas as there are islands" [ "$(grep -c '"is":"done"' async2/leases.jsonl)" -eq 8 ]
samples=$(grep '"outer"' async2/metrics.jsonl | tail -n 1 | sed -E 's/.*"tokens":([0-9]+).*/\1/')
expect "and its samples count once" leased async2 $((samples / 40))
# --- gradients: a parameter server, with real islands ------------------------------------------------------------------
PORT=$((PORT + 1)); starts=1
# gradients DIR WORDS...: runs three islands (training jobs) that send gradients, until they and the server of DIR have
# ended.
gradients() {
    local dir=$1; shift
    "$TRAIN" serve tiny.json "run.dir=$dir" "outer.server=127.0.0.1:$PORT" outer.every=1 outer.send=gradients outer.least_islands=3 "$@" > "$dir.out" 2>&1 & server=$!
    said "$dir.out" "serving $dir" || return 1
    for i in 1 2 3; do
        "$TRAIN" tiny.json "run.dir=$dir$i" "outer.server=127.0.0.1:$PORT" outer.every=1 outer.send=gradients eval.every=0 "$@" > "$dir$i.out" 2>&1 & islands[i]=$!
    done
    for i in 1 2 3; do ends ${islands[i]} 0 || { tail -n 3 "$dir$i.out"; return 1; }; done
    ends $server 0
}
quiet train run.dir=one run.steps=20 batch.global_tokens=1440 eval.every=0
gradients sum run.steps=20; ok $? "three islands and a server that updates"
values one train loss > one.losses; values sum outer loss > sum.losses
expect "they are one job of three times the batch" near sum.losses one.losses 2e-6
gradients loose run.steps=20 outer.wait=none; ok $? "the same, each gradient at once"
expect "the loss falls" awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(last < first - 0.3) }' <(values loose outer loss)
# --- strangers, and memory ---------------------------------------------------------------------------------------------
cat > flood.py <<'PY'
"""Opens 300 connections, says nothing, and holds them until it is killed."""
import socket, sys, time
held = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(300)]
print("held", flush=True)
time.sleep(600)
PY
PORT=$((PORT + 1)); starts=1
serve crowd $PORT
python3 flood.py $PORT > flood.out & flood=$!
said flood.out held
island guest $PORT $A rounds=1 steps=0; ends $! 0; ok $? "300 silent connections keep no island out"
kill $flood $server; wait $flood $server 2> /dev/null
expect "a server says what memory it takes" grep -q 'rounds of 2 steps, 1.7 MiB of memory' whole.out
expect "plan counts it" bash -c '"$0" plan tiny.json outer.server=a:1 outer.every=2 outer.least_islands=2 | grep -qE "^  server, where it runs: with the deltas of 2 islands +1.7 MiB"' "$TRAIN"
no_memory() { (ulimit -v 3000000; exits 71 'a server of this model takes [0-9.]+ GiB of memory, more than this machine has free .*: [0-9.]+ [MG]iB for weights' "$TRAIN" serve tiny.json run.dir=big outer.server=127.0.0.1:1 outer.every=2 model.n_embd=4200); }
sanitized "a server that is too large" "needs more address space than ulimit -v leaves" ||
    expect "a server that is too large for the machine is refused before it begins" no_memory
exit $STATUS
