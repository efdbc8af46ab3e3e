#!/usr/bin/env bash
# Two hosts, with islands (training jobs) of one model, over a thin link of 20 Mbit/s and 10 ms each way (thin_link.c
# between two TAP devices, hosts.sh). Tests a cut link, a lost server, and a job whose lost host is restored from its
# neighbour's memory. The server is on hostA.
. "$(dirname "$0")/hosts.sh"
AT=10.77.0.1:4300
SAME="outer.server=$AT outer.key=$WORK/outer.key outer.every=4 eval.every=0 log.tensorboard=false"
PARAMETERS=$("$TRAIN" plan "$WORK/tiny.json" | awk '$1 == "parameters" { print $2 }')

# serves NAME WORDS...: starts a server in the background and waits until it listens. Its process id is in $server, its
# output in NAME.out.
serves() {
    local name=$1; shift
    (on_host hostA "$TRAIN" serve "$WORK/tiny.json" run.dir="$WORK/$name" $SAME "$@" >> "$WORK/$name.out" 2>&1) & server=$!
    says "$name" "^serving " "${starts:-1}"
}
# island HOST NAME WORDS...: starts an island (training job) on HOST in the background; its process id is in $job.
island() {
    local host=$1 name=$2; shift 2
    rm -f "$WORK/$name.out"
    (on_host "$host" "$TRAIN" "$WORK/tiny.json" run.dir="$WORK/$name" $SAME "$@" > "$WORK/$name.out" 2>&1) & job=$!
}
# says NAME PATTERN [TIMES]: waits until the output of NAME has TIMES matching lines (1 if not given), at most two
# minutes.
says() {
    for _ in $(seq 1200); do [ "$(grep -csE "$2" "$WORK/$1.out")" -lt "${3:-1}" ] || return 0; sleep 0.1; done
    echo "$1 has no line like '$2'"; tail -n 5 "$WORK/$1.out"; return 1
}
ends() { wait "$1"; local status=$?; [ $status -eq "$2" ] || { echo "exit $status, expected $2"; tail -n 5 "$WORK"/*.out; return 1; }; }
used_once() { python3 test/run/lib/leases.py "$WORK/$1"; }
# pair NAME WORDS...: runs a server, and an island (training job) on each host, to the end.
pair() {
    local name=$1 a; shift
    serves "$name" outer.least_islands=2 "$@"
    island hostA "$name.a" "$@"; a=$job
    says "$name" "island 0 .* has joined" && island hostB "$name.b" "$@" && ends $a 0 && ends $job 0 && ends $server 0
}

# --- a thin link ---------------------------------------------------------------------------------------------------------
expect "islands over a good cable" pair good
# carried: checks how many bytes three rounds sent over the link. The island (training job) on hostB sends three deltas
# of its weights. It receives the first weights, and new ones after each round. Headers of packets are less than a
# tenth.
carried() { thin_bytes | awk -v p="$PARAMETERS" '{ print "#", $2, "bytes up,", $1, "down, of", p, "parameters"; exit !($2 > 12 * p && $2 < 1.1 * 12 * p + 2e4 && $1 > 16 * p && $1 < 1.1 * 16 * p + 2e4) }'; }
if [ -c /dev/net/tun ]; then
    expect "a thin link in its place" thin_cable
    expect "islands over the thin link" pair thin
    expect "they make the same weights, bit by bit" same_weights "$WORK/good" "$WORK/thin" step_00000012
    expect "each sample counts once: 288 samples" eval 'used_once thin | grep "^288 samples"'
    expect "4 bytes a parameter have gone up in each round, and down" carried
else
    echo "skip a thin link: this machine has no /dev/net/tun"
fi

# --- the link is cut -----------------------------------------------------------------------------------------------------
ENDLESS="run.steps=1000000 schedule.name=constant checkpoint.every=40"
stop() { local name; for name in "$@"; do touch "$WORK/$name/STOP"; done; }
serves cut $ENDLESS outer.least_islands=2 outer.patience_seconds=3
island hostA cut.a $ENDLESS; a=$job
island hostB cut.b $ENDLESS; b=$job
expect "islands train" says cut.b "round 2 is over"
cable down
expect "a cut link: the server goes on without the island behind it" says cut "island [01] .*(lost|silent).*"
expect "a cut link: the other trains on" says cut.a "round [0-9]+ is over: 1 island,"
cable up
expect "the link is back: the island joins again" says cut.b "^joined " 2
expect "the link is back: rounds of two islands" says cut.b "^joined .*with 2 islands"
stop cut.a cut.b
expect "both stop in order, 75" eval 'ends $a 75 && ends $b 75'
expect "each sample counts once" used_once cut

island hostB cut.b $ENDLESS outer.patience_seconds=3; b=$job
says cut.b "round [0-9]+ is over"
cable down
expect "a link that is cut for longer than outer.patience_seconds: the island ends with 77" ends $b 77
expect "it is saved, and says so with the server's address" grep -q "$AT: .*the run is saved, and the same command joins again" "$WORK/cut.b.out"
cable up
island hostB cut.b $ENDLESS; b=$job
expect "the same command joins again, from its checkpoint" eval 'says cut.b "^joined " && grep -q "^resume " "$WORK/cut.b.out"'
says cut.b "round [0-9]+ is over"; stop cut.b; ends $b 75
kill -TERM $server; wait $server

# --- the server is lost --------------------------------------------------------------------------------------------------
both() { island hostA lost.a $ENDLESS "$@"; a=$job; island hostB lost.b $ENDLESS "$@"; b=$job; }
serves lost $ENDLESS outer.least_islands=2
both outer.patience_seconds=3
expect "rounds of two islands, and a checkpoint" eval 'says lost "^round .*2 islands" 3 && says lost "^saved "'
strike KILL $server; wait $server 2> /dev/null
expect "the server is killed: the islands wait, save, and end with 77" eval 'ends $a 77 && ends $b 77'
starts=2 serves lost $ENDLESS outer.least_islands=2
expect "it goes on from its own checkpoint" grep -q "^serving .* at step [1-9][0-9]* of" "$WORK/lost.out"
both
expect "islands join again, with what they saved" eval 'says lost.a "^joined .*with 2 islands" && says lost.b "^joined " && grep -q "^resume " "$WORK/lost.a.out" "$WORK/lost.b.out"'
says lost.a "round [0-9]+ is over"
stop lost.a lost.b
expect "they stop in order, 75" eval 'ends $a 75 && ends $b 75'
kill -TERM $server; wait $server
expect "each sample counts once" used_once lost

# --- a host is lost, and its memory with it --------------------------------------------------------------------------------
COPIES="checkpoint.memory_every=5 checkpoint.every=0 eval.every=0 log.tensorboard=false run.steps=24"
expect "a run of four ranks on two hosts, with copies in memory" quiet two_hosts 2 $COPIES run.dir="$WORK/whole"
# The job hangs in the third copy of its state in memory, at step 15. The copies of steps 5 and 10 are complete.
export TRAIN_GPT_FAIL="memory.copy@3:hang" TRAIN_GPT_FAIL_LOG=$WORK/struck
MPIRUN="-x TRAIN_GPT_FAIL -x TRAIN_GPT_FAIL_LOG" TRAIN=$PWD/$B/test/train_gpt-failpoints two_hosts 2 $COPIES run.dir="$WORK/rescued" > "$WORK/out" 2> "$WORK/err" & job=$!
unset TRAIN_GPT_FAIL TRAIN_GPT_FAIL_LOG
for _ in $(seq 600); do [ "$(cat "$WORK/struck" 2> /dev/null | wc -l)" -lt 4 ] && kill -0 $job 2> /dev/null || break; sleep 0.1; done
expect "all ranks stand in the copy of step 15" [ "$(wc -l < "$WORK/struck")" -eq 4 ]
strike KILL $(ip netns pids "$B_"); rm -rf "$WORK/shm/hostB"/*
expect "hostB is lost: the job ends with a failure" fails $job
expect "no checkpoint is there, only hostA's memory" [ ! -e "$WORK/rescued/checkpoints/step_00000010" ]
two_hosts 2 $COPIES run.dir="$WORK/rescued" > "$WORK/out" 2> "$WORK/err"
expect "the same command goes on, to its end" [ $? -eq 0 ]
expect "from step 10, five steps back, out of its neighbour's memory" grep -q "^step 10 is taken from the copies in memory of 4 ranks" "$WORK/out"
expect "with the losses of a run that lost nothing" same_losses "$WORK/rescued" "$WORK/whole" 0
expect "and its weights, bit by bit" same_weights "$WORK/rescued" "$WORK/whole" step_00000024
exit $STATUS
