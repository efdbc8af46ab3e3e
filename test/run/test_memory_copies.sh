#!/usr/bin/env bash
# Copies of the training state in host memory. All ranks are killed after a copy and before any checkpoint. The next
# start continues from the copy, on the same or other ranks, as if nothing had happened. Damaged copies are named and
# skipped. If there is no space for copies, the run continues without them.
. "$(dirname "$0")/lib/tiny.sh"
MEMORY=$WORK/memory
COPIES="checkpoint.memory_every=5 checkpoint.memory_dir=$MEMORY checkpoint.every=0 eval.every=0 log.tensorboard=false run.steps=24"
none_left() { [ -z "$(ls -A "$MEMORY")" ]; }
shown() { tail -n 5 "$WORK/out" "$WORK/err"; return 1; }
# copies RANKS DIR [OPTION...]: trains with copies in memory; one rank runs without a launcher.
copies() { local run="run_ranks $1 $HOST"; [ "$1" -gt 1 ] || run=; $run "$TRAIN" "$WORK/tiny.json" $COPIES run.dir="$WORK/$2" "${@:3}" > "$WORK/out" 2> "$WORK/err"; }
# kill_all RANKS DIR [OPTION...]: kills every rank and the launcher after step 15, when the copies of steps 5 and 10 are
# complete.
kill_all() {
    rm -f "$WORK/struck"
    TRAIN_GPT_FAIL="memory.copy@3:hang" TRAIN_GPT_FAIL_LOG=$WORK/struck TRAIN=$FAILING copies "$@" & job=$!
    for _ in $(seq 600); do [ "$(cat "$WORK/struck" 2> /dev/null | wc -l)" -lt "$1" ] && kill -0 $job 2> /dev/null || break; sleep 0.1; done
    strike KILL $(pgrep -f "$WORK/tiny.json")
    wait $job 2> /dev/null
    [ "$(wc -l < "$WORK/struck")" -eq "$1" ] || shown
}
# goes_on RANKS DIR FROM STEP [OPTION...]: continues a killed run to its end. It must start at STEP, from the in-memory
# copies that FROM ranks made.
goes_on() {
    local n=$1 dir=$2 from=$3 step=$4; shift 4
    copies "$n" "$dir" "$@" && grep -qE "^step $step is taken from the copies in memory of $from rank" "$WORK/out" &&
        grep -q "^resume .*at step $step, saved by $from rank" "$WORK/out" || shown
}
# spoil SLOT: changes a byte in one of the two slots of in-memory copies, on every rank. Slot 1 has step 5, slot 0 has
# step 10.
spoil() { for file in "$MEMORY"/*/rank_*."$1"; do printf x | dd of="$file" bs=1 seek=600000 conv=notrunc status=none; done; }

mkdir "$MEMORY"
expect "a run with copies" copies 1 copied
expect "events of them in metrics.jsonl" [ "$(values "$WORK/copied" event event | grep -c memory)" -ge 3 ]
for n in 1 2; do
    expect "$n ranks: a run without copies" copies $n whole$n checkpoint.memory_every=0
    for m in 1 2; do
        expect "$n ranks: all are killed" kill_all $n run$n$m
        expect "$n ranks: without a checkpoint" [ ! -e "$WORK/run$n$m/checkpoints/step_00000010" ]
        expect "$n ranks: $m go on" goes_on $m run$n$m $n 10
        expect "$n ranks: with the losses of the unbroken run" same_losses "$WORK/run$n$m" "$WORK/whole$n" 2e-6
        expect "$n ranks: without a gap" [ "$(steps_of "$WORK/run$n$m")" = "$(seq 24 | tr '\n' ' ')" ]
        [ $n != $m ] || expect "$n ranks: the same weights, bit by bit" same_weights "$WORK/run$n$m" "$WORK/whole$n" step_00000024
    done
    expect "$n ranks: none is left" none_left
done
expect "copies change no bit" same_weights "$WORK/copied" "$WORK/whole1" step_00000024

# --- damage
expect "killed again, with a checkpoint of step 4" kill_all 1 spoilt checkpoint.every=4 checkpoint.keep=9
rm -rf "$WORK"/spoilt/checkpoints/step_000000{08,12}*
spoil 0
expect "a flipped byte in the newer copy: the older one" goes_on 1 spoilt 1 5
expect "and a warning that names the copy" grep -q "warning: the copy in memory $MEMORY/.*/rank_00000.0 is passed over: it is damaged" "$WORK/err"
expect "with the weights of the unbroken run" same_weights "$WORK/spoilt" "$WORK/whole1" step_00000024
rm -rf "$WORK/spoilt"
expect "killed again" kill_all 1 spoilt checkpoint.every=4 checkpoint.keep=9
rm -rf "$WORK"/spoilt/checkpoints/step_000000{08,12}*
spoil 0; spoil 1
expect "a flipped byte in both: the disk's checkpoint" copies 1 spoilt
expect "that one" grep -q "^resume .*at step 4," "$WORK/out"
expect "and two warnings" [ "$(grep -c "warning: the copy in memory .* is passed over" "$WORK/err")" -eq 2 ]
expect "with the weights of the unbroken run" same_weights "$WORK/spoilt" "$WORK/whole1" step_00000024

# --- what ends with a run, and what does not
copies 1 stopped run.stop_step=12
expect "a run that is stopped, saved" [ $? -eq 75 ]
expect "leaves none" none_left
expect "killed at its start anew" kill_all 1 anew
rm -rf "$WORK/anew"
expect "a folder that was removed begins anew" copies 1 anew
expect "at its first step" grep -q "^start " "$WORK/out"
expect "killed once more" kill_all 1 other
expect "another learning rate is refused, as by a checkpoint" \
    exits 64 "optimizer.learning_rate" "$TRAIN" "$WORK/tiny.json" $COPIES run.dir="$WORK/other" optimizer.learning_rate=2e-3
expect "run.resume=must finds them" goes_on 1 other 1 10 run.resume=must
TRAIN_GPT_FAIL="guard.weight@12:flip,rank=1" TRAIN=$FAILING copies 2 wrong parallel.zero_stage=0
expect "wrong numbers: exit 76" [ $? -eq 76 ]
expect "leave none" none_left

# --- a folder without room
if unshare -m true 2> /dev/null; then
    unshare -m bash -c 'mount -t tmpfs -o size=200k none "$0" && shift 0 && "$@"' "$MEMORY" "$TRAIN" "$WORK/tiny.json" $COPIES run.dir="$WORK/full" > "$WORK/out" 2> "$WORK/err"
    expect "a full folder: the run ends as it would have" same_weights "$WORK/full" "$WORK/whole1" step_00000024
    warning="warning: checkpoint.memory_every: no copies in memory are made: cannot take 0.9 MiB for $MEMORY/.*: No space left on device; training continues"
    expect "with one warning" [ "$(grep -c "$warning" "$WORK/err")" -eq 1 ]
else
    echo "skip a full folder: this user may not mount any"
fi

# --- two hosts, by names of their own: each has a folder, and its neighbour's copies in it
if unshare -u true 2> /dev/null; then
    printf '#!/bin/sh\nexport NAME=host$((OMPI_COMM_WORLD_RANK / 2))\nexec unshare -u sh -c '\''hostname $NAME; exec "$@"'\'' _ "$@"\n' > "$WORK/host"
    chmod +x "$WORK/host"; export HOST=$WORK/host
    expect "two hosts of two ranks: all are killed" kill_all 4 hosts
    expect "each with a folder of four ranks' copies" [ "$(ls "$MEMORY"/*-host0 | wc -l) $(ls "$MEMORY"/*-host1 | wc -l)" = "8 8" ]
    rm -rf "$MEMORY"/*-host1
    expect "one host is lost: two ranks of the other go on" goes_on 2 hosts 4 10
    expect "with the losses of an unbroken run" same_losses "$WORK/hosts" "$WORK/whole1" 2e-6
    expect "none is left" none_left

    # The experts are divided among the ranks, so a rank's in-memory copies contain only its own experts. The other
    # experts are in the copies of another rank on the same host.
    EXPERTS="model.arch=qwen3-moe model.n_embd=64 model.n_head=2 model.n_kv_head=1 model.head_dim=22"
    EXPERTS+=" moe.experts=4 moe.top_k=2 moe.n_inner=24 moe.balance=bias moe.balance_rate=0.01"
    expect "experts: a run of one rank" copies 1 experts_whole $EXPERTS checkpoint.memory_every=0
    expect "experts divided among the ranks of two hosts: all are killed" kill_all 4 experts $EXPERTS parallel.expert=2
    rm -rf "$MEMORY"/*-host1
    expect "one host is lost: the other goes on" goes_on 2 experts 4 10 $EXPERTS parallel.expert=2
    expect "with the losses of one rank" same_losses "$WORK/experts" "$WORK/experts_whole" 1e-5
    expect "none is left of the experts" none_left
else
    echo "skip two hosts: this user may not give them names"
fi
exit $STATUS
