#!/usr/bin/env bash
# Two hosts train as one host does. After any fault of a rank, or of the cable between the hosts, every rank ends in
# time and with a message.
. "$(dirname "$0")/hosts.sh"
ENDLESS="run.steps=1000000 eval.every=0 checkpoint.every=0 run.dir=$WORK/run"
said() { grep -qE "train_gpt: rank $2 of 2 on $3: no progress .*; collective [a-z -]+ [0-9]+ " "$WORK/kept/err.$1"; }
left_with() { [ "$(cat "$WORK/kept/code.$1" 2> /dev/null)" = "$2" ]; }

for each in 1 2; do
    expect "$((2 * each)) ranks on one host train" quiet train_ranks $((2 * each)) run.dir="$WORK/one$each"
    expect "$((2 * each)) ranks on two hosts train" quiet two_hosts $each run.dir="$WORK/two$each"
    expect "$((2 * each)) ranks: the same weights, bit by bit" same_weights "$WORK/one$each" "$WORK/two$each" step_00000012
done

# Flips a bit in the weights of mpirun's rank 1, which is the first rank on hostB. The job numbers ranks by host, so its
# message calls that rank 2.
TRAIN=$PWD/$B/test/train_gpt-failpoints TRAIN_GPT_FAIL="guard.weight@4:flip,rank=1" MPIRUN="--map-by node -x TRAIN_GPT_FAIL" \
    expect "ranks dealt out to the hosts in turn: a host's have neighbouring numbers" exits 76 "rank 2 \(hostB.* differ" \
    two_hosts 2 parallel.zero_stage=0 run.dir="$WORK/dealt"

# Tests two grids of tensor ranks. In the first grid each group of tensor ranks fits on one host, however mpirun places
# the ranks. In the second grid it does not, so a warning is expected.
WIDE="model.n_head=4 model.n_embd=32 run.steps=4 checkpoint.every=0 eval.every=0"
MPIRUN="--map-by node" two_hosts 2 $WIDE parallel.tensor=2 parallel.pipeline=2 run.dir="$WORK/grid" > "$WORK/out" 2> "$WORK/grid.err"
expect "tensor ranks within hosts, stages across" [ $? -eq 0 ]
expect "no word of crossing" eval '! grep -q "over the network" "$WORK/grid.err"'
two_hosts 2 $WIDE parallel.tensor=4 run.dir="$WORK/wide" > "$WORK/out" 2> "$WORK/wide.err"
expect "tensor ranks across hosts: a warning with the hosts and what fits" grep -q "warning: tensor ranks 0 to 3 lie on hostA and hostB: .*parallel.tensor = 2 fits each host" "$WORK/wide.err"
expect "and the losses of the other grid" same_losses "$WORK/wide" "$WORK/grid" 2e-6

rm -rf "$WORK/run"; begin 1 $ENDLESS run.watchdog_seconds=5
cable down
expect "the cable is cut: all ranks are gone within 15 s" gone 15; echo "# after $TOOK s"
expect "the cable is cut: both ranks leave with 77" eval "left_with 0 77 && left_with 1 77"
expect "the cable is cut: rank 0 names itself, its host and the collective" said 0 0 hostA
expect "the cable is cut: rank 1 too" said 1 1 hostB
expect "the cable is cut: mpirun ends with 77" ended 77
cable up

KEEPALIVE="$LAUNCHER_MCA oob_tcp_keepalive_time 2 $LAUNCHER_MCA oob_tcp_keepalive_intvl 1 $LAUNCHER_MCA oob_tcp_keepalive_probes 2"
rm -rf "$WORK/run"; MPIRUN=$KEEPALIVE begin 1 $ENDLESS run.watchdog_seconds=20
cable down
expect "the cable is cut, mpirun with keepalive: all ranks are gone within 15 s" gone 15; echo "# after $TOOK s"
expect "the cable is cut, mpirun with keepalive: it ends, with a failure" fails $JOB
cable up

# Saves after every second step, so that the cable is cut in a save, or just before or after one.
constant="schedule.name=constant eval.every=0 checkpoint.every=2 run.dir=$WORK/run"
rm -rf "$WORK/run"; begin 1 $constant run.steps=1000000 run.watchdog_seconds=5
cable down
expect "the cable is cut among saves: all ranks are gone within 15 s" gone 15
expect "the cable is cut among saves: mpirun ends with 77" ended 77
cable up
newest=$(ls "$WORK/run/checkpoints" | grep -E '^step_[0-9]+$' | tail -1 | sed 's/step_0*//')
expect "a checkpoint is there" [ "${newest:-0}" -gt 0 ]
end=$((newest + 10)); name=$(printf 'step_%08d' $end)
expect "the run goes on from it" quiet two_hosts 1 $constant run.steps=$end
expect "a run without a cut" quiet train_ranks 2 $constant run.steps=$end run.dir="$WORK/whole"
expect "the same weights, bit by bit" same_weights "$WORK/run" "$WORK/whole" "$name"

# Limits for the time until all ranks have ended. mpirun runs on hostA, as rank 0 does. It notices a lost rank after a
# second and ends the ranks of hostA. HostB learns of the loss two seconds later. The processes themselves need half a
# second to end on a quiet machine.
for victim in 0 1; do
    limit=$([ $victim = 0 ] && echo 4.5 || echo 2.5)
    rm -rf "$WORK/run"; begin 1 $ENDLESS run.watchdog_seconds=20
    netns=$([ $victim = 0 ] && echo "$A" || echo "$B_")
    strike KILL $(for pid in $(ip netns pids "$netns"); do pgrep -f "^$TRAIN $WORK/tiny.json" | grep -x "$pid"; done)
    expect "rank $victim is killed: all ranks are gone within $limit s" gone $limit; echo "# after $TOOK s"
    # Both exit codes are right for Open MPI 5. One of its ranks ends with 14 when the connection to a peer closes.
    # mpirun may notice that rank before the killed one, whose code is 137.
    expect "rank $victim is killed: the first cause is mpirun's exit code" ended $([ $LAUNCHER_MCA = --prtemca ] && echo "(137|14)" || echo 137)
done

rm -rf "$WORK/run"; begin 1 $ENDLESS run.watchdog_seconds=5
strike STOP $(for pid in $(ip netns pids "$B_"); do pgrep -f "^$TRAIN $WORK/tiny.json" | grep -x "$pid"; done)
expect "rank 1 is stopped: all ranks are gone within 15 s" gone 15; echo "# after $TOOK s"
expect "rank 1 is stopped: mpirun ends with 77" ended 77
expect "rank 1 is stopped: rank 0 names itself, its host and the collective" said 0 0 hostA

rm -rf "$WORK/run"; begin 1 run.dir="$WORK/run" run.steps=150 eval.every=0 checkpoint.every=0 run.watchdog_seconds=20
for _ in 1 2 3; do cable down; sleep 0.5; cable up; sleep 0.5; done
expect "a cable that is out for half a second: training goes on to its end" ended 0
expect "a run over a good cable" quiet two_hosts 1 run.dir="$WORK/good" run.steps=150 eval.every=0 checkpoint.every=0
expect "the same weights, bit by bit" same_weights "$WORK/run" "$WORK/good" step_00000150

expect "a slow link, that loses packets" slow_cable
expect "a slow link: training goes on to its end" quiet two_hosts 1 run.dir="$WORK/slow" run.steps=150 eval.every=0 checkpoint.every=0 run.watchdog_seconds=20 2> "$WORK/err"
expect "a slow link is warned of, by its hosts" grep -qE 'warning: .* link .*hostA .*hostB ' "$WORK/kept/err.0"
expect "the same weights, bit by bit" same_weights "$WORK/slow" "$WORK/good" step_00000150
quick_cable

# elastic.sh on hostA loses hostB when the cable is cut, and uses it again afterwards. Its remote shell needs the cable,
# as ssh does.
printf '#!/bin/bash\ntimeout 1 bash -c "echo > /dev/tcp/10.77.0.2/9" 2>&1 | grep -q refused || exit 255\nexec "%s" "$@"\n' "$WORK/agent" > "$WORK/by_cable"
chmod +x "$WORK/by_cable"
printf 'hostA\nhostB slots=1\n' > "$WORK/hosts"
elastic="schedule.name=constant eval.every=0 checkpoint.every=10 parallel.deterministic=true"
AGENT=$WORK/by_cable WATCH=1 TRAIN_GPT=$TRAIN ip netns exec "$A" unshare -u sh -c 'hostname hostA; exec "$@"' _ \
    scripts/elastic.sh "$WORK/tiny.json" hosts="$WORK/hosts" $elastic run.dir="$WORK/elastic" run.steps=1000000 run.watchdog_seconds=5 > "$WORK/out" 2>&1 &
job=$!
await '^elastic.sh: 2 ranks on hostA hostB$'; await_step "$WORK/elastic"; sleep 1
at=$EPOCHREALTIME; cable down
expect "elastic: a host lost with its cable: on with the other" await '^elastic.sh: 1 rank on hostA$'
echo "# after $(awk -v a="$at" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }') s"
await '^resume .*, now 1:'; cable up
expect "elastic: its cable is back: saved, and on with both" eval "await 'room for 2 ranks instead of 1' && await '^resume .*, now 2:'"
kill -TERM $job; wait $job
expect "elastic: TERM saves, 75" [ $? -eq 75 ]
steps=$(values "$WORK/elastic" train step | tail -n 1)
quiet train $elastic run.dir="$WORK/alone" run.steps=1000000 run.stop_step="$steps"
expect "elastic: the $steps losses of one rank, every bit" same_losses "$WORK/elastic" "$WORK/alone" 0

mkdir -p "$WORK/private"
expect "run.dir is not one file system: exit 74, both hosts named" exits 74 "run.dir $WORK/private/run .*: rank 1 on hostB .*rank 0 on hostA " \
    two_hosts 1 run.dir="$WORK/private/run"
expect "nobody is left" eval "! ranks_left"
exit $STATUS
