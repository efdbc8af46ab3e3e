#!/usr/bin/env bash
# Disks that are full, limited or not writable. If a start can see that, it is refused before the first step. Other
# faults end no run and always print a message.
. "$(dirname "$0")/lib/tiny.sh"
# failing RULES ARGS...: runs 20 steps in which I/O calls fail as RULES says, and saves every 5 steps
failing() { local rules=$1; shift; TRAIN_GPT_FAIL="$rules" "$FAILING" "$WORK/tiny.json" run.steps=20 checkpoint.every=5 eval.every=0 log.tensorboard=false "$@"; }
warnings() { [ "$(grep -c 'train_gpt: warning: ' "$WORK/err")" -eq "$1" ]; }
# steps DIR LEAST: succeeds if the metrics have at least LEAST steps, without a gap
steps() { values "$1" train step | awk -v least="$2" '$1 != NR { bad = 1 } END { exit bad || NR < least }'; }
no_leftovers() { [ -z "$(find "$1" -name '*.tmp' -o -name '.trash*' -o -name '.probe')" ]; }

grep -q TRAIN_GPT_FAIL "$TRAIN"
expect "the program itself has no failpoints" [ $? -eq 1 ]
expect "a run without faults" quiet train run.steps=20 checkpoint.every=5 eval.every=0 run.dir="$WORK/whole"

# --- in mid-run. The first pwrite signs the lock.
expect "a save that finds no room is a warning" \
    exits 0 "warning: step 5 .*$WORK/once/checkpoints/step_00000005.tmp/model.safetensors: No space left on device" failing "io.pwrite@2:ENOSPC" run.dir="$WORK/once"
expect "one warning" warnings 1
expect "and the run ends with the weights it would have had" same_weights "$WORK/once" "$WORK/whole" step_00000020
expect "without a trace of the failed save" no_leftovers "$WORK/once"
expect "three in a row end it" \
    exits 74 "step 15 .* 2 checkpoints .*: .*$WORK/thrice/.*No space left on device" failing "io.pwrite@2+:ENOSPC" run.dir="$WORK/thrice"
expect "after a warning for each of the others" warnings 2
expect "with every step in the log" steps "$WORK/thrice" 15
expect "and nothing half-written" no_leftovers "$WORK/thrice"
expect "with room the same command goes on" quiet train run.steps=20 checkpoint.every=5 eval.every=0 run.dir="$WORK/thrice"
expect "to the weights of the whole run" same_weights "$WORK/thrice" "$WORK/whole" step_00000020
expect "a last save that fails ends it" exits 74 "step 20, the last, .*: .*Disk quota exceeded" failing "io.pwrite@2+:EDQUOT" checkpoint.every=0 run.dir="$WORK/last"
expect "one rank's full disk is a warning" \
    exits 0 "warning: step 5 .*/step_00000005.tmp/.*: Input/output error" \
    env TRAIN_GPT_FAIL="io.pwrite@1:EIO,rank=1" mpirun --oversubscribe --bind-to none -np 2 "$FAILING" "$WORK/tiny.json" run.steps=20 checkpoint.every=5 eval.every=0 run.dir="$WORK/ranks"
expect "and the run ends as it would have" [ -f "$WORK/ranks/checkpoints/step_00000020/state.json" ]
expect "a rank with a slow disk holds up no step, and no checkpoint is named before it has written" \
    quiet env TRAIN_GPT_FAIL="io.fsync@1+:slow,rank=1" TRAIN_GPT_FAIL_LOG="$WORK/slowed" mpirun --oversubscribe --bind-to none -np 2 "$FAILING" "$WORK/tiny.json" run.steps=20 checkpoint.every=5 eval.every=0 run.dir="$WORK/slow"
expect "its writes were slow" grep -q 'io.fsync@1:slow,rank=1' "$WORK/slowed"

expect "a rank that ends the job with its own message is not called lost by the others" \
    exits 74 "step 20, the last, .*: .*No space left|is gone" run_ranks 2 env TRAIN_GPT_FAIL="io.pwrite@2+:ENOSPC" "$FAILING" "$WORK/tiny.json" run.steps=20 checkpoint.every=0 eval.every=0 run.dir="$WORK/spoken"

# --- a disk that fills between two renames: the files before it stay as they are, and nothing half-made is taken for a file
for n in 2 8 14; do
    rm -f "$WORK/struck"
    TRAIN_GPT_FAIL_LOG=$WORK/struck failing "io.rename@$n+:ENOSPC" run.dir="$WORK/renames$n" > /dev/null 2> "$WORK/err"; status=$?
    expect "no room from rename $n on: exit 74, after a warning for each save" eval '[ $status -eq 74 ] && grep -q "io.rename" "$WORK/struck" && grep -q "warning: step .* is not saved: cannot rename to .*: No space left" "$WORK/err"'
    expect "nothing half-written" no_leftovers "$WORK/renames$n"
    quiet train run.steps=20 checkpoint.every=5 eval.every=0 run.dir="$WORK/renames$n"
    expect "with room the same command goes on to the weights of the whole run" same_weights "$WORK/renames$n" "$WORK/whole" step_00000020
done

# --- the log. Before its first line there are a probe's write and config.json's, between two lines loss.svg's; a short one leaves half a line.
for n in 3 7 11; do
    expect "write $n, a line of the log, finds no room for a while" \
        exits 0 "warning: .*$WORK/log$n/metrics.jsonl: No space left on device" failing "io.write@$n:short;io.write@$((n + 1)):ENOSPC" run.dir="$WORK/log$n"
    expect "and none is lost" steps "$WORK/log$n" 20
done
expect "a log that never finds room ends the run at the third checkpoint" \
    exits 74 "step 15 .*: .*$WORK/nolog/metrics.jsonl: No space left" failing "io.write@9+:ENOSPC" run.dir="$WORK/nolog"

# --- before the first step
expect "a file-size limit is refused" \
    bash -c ". test/run/lib/tiny.sh; ulimit -f 64; exits 74 '0.1 MiB .*ulimit -f.* optimizer.safetensors .*0.[0-9] MiB' train run.dir=$WORK/limit"
expect "at step 0" [ ! -e "$WORK/limit/metrics.jsonl" ]
expect "a folder below a file is refused" exits 74 "/dev/null/run: cannot create" train run.dir=/dev/null/run
if unshare -m true 2> /dev/null; then
    mkdir -p "$WORK/mount"
    # on OPTIONS COMMAND...: runs the command while a new file system in memory is mounted on $WORK/mount. OPTIONS are
    # those of mount, such as size=1m.
    on() { local options=$1; shift; unshare -m bash -c 'options=$1; shift; mount -t tmpfs -o "$options" none "$0/mount" && . test/run/lib/tiny.sh && "$@"' "$WORK" "$options" "$@"; }
    expect "a file system without room for three checkpoints is refused" \
        on size=1m exits 74 "[01].[0-9] MiB free, .* [0-9.]+ MiB .* 3 checkpoints of 0.[0-9] MiB .checkpoint.keep = 2," \
        "$TRAIN" "$WORK/tiny.json" checkpoint.every=2 checkpoint.keep=2 run.dir="$WORK/mount/run"
    expect "and not where there is" on size=9m quiet "$TRAIN" "$WORK/tiny.json" checkpoint.every=2 checkpoint.keep=2 run.dir="$WORK/mount/run"
    expect "a read-only file system is refused" on ro exits 74 "$WORK/mount/run: .*: Read-only file system" "$TRAIN" "$WORK/tiny.json" run.dir="$WORK/mount/run"
else
    echo "skip small and read-only file systems: this user may not mount any"
fi
# --- a user who removes files while the run works: nothing of it is lost, and the log is whole at its end
long=(run.steps=120 checkpoint.every=10 checkpoint.keep=3 eval.every=0 log.tensorboard=false)
quiet train "${long[@]}" run.dir="$WORK/kept"
removes() { # removes NAME FILE...: stops a run after its second checkpoint, removes files of its folder, and lets it run to its end
    local name=$1; shift
    (exec "$TRAIN" "$WORK/tiny.json" "${long[@]}" run.dir="$WORK/$name" > "$WORK/out" 2> "$WORK/err") & job=$!
    for _ in $(seq 3000); do [ -e "$WORK/$name/checkpoints/step_00000020" ] && break; sleep 0.02; done
    strike STOP $job
    (cd "$WORK/$name" && eval "rm -rf $*"); removed=$( (cd "$WORK/$name" && eval "ls -d $*") 2> /dev/null)
    kill -CONT $job; wait $job; status=$?
    expect "$name: removed in mid-run" [ -z "$removed" -a "$(values "$WORK/kept" train step | wc -l)" -eq 120 ]
    expect "$name: the run ends, with the weights of the other" eval '[ $status -eq 0 ] && same_weights "$WORK/'"$name"'" "$WORK/kept" step_00000120'
    expect "$name: the log has every step" steps "$WORK/$name" 120
}
removes newest 'checkpoints/step_*'
removes log metrics.jsonl
expect "log: a warning says that it was written again" grep -q "warning: .*/log/metrics.jsonl was removed while the run works: all of its lines are written again" "$WORK/err"
removes folder '"$PWD"'
expect "folder: a warning, too" grep -q "warning: .*/folder/metrics.jsonl was removed while the run works" "$WORK/err"
exit $STATUS
