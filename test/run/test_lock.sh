# One job writes to a run folder at a time, and the folder must be writable. A second job changes nothing, links are not
# followed, and refusals come at once.
# Timed: refusals must come at once, and a lock expires after seconds without a sign of life.
. "$(dirname "$0")/lib/tiny.sh"
forever="run.steps=1000000 schedule.name=constant log.every=1000 eval.every=0"
# state_of FOLDER: prints everything about the files that a writer could change: names, sizes, modes, times, contents.
state_of() { find "$1" -printf '%p %y %s %m %T@ %C@\n' | sort; find "$1" -type f | sort | xargs cat | cksum; }
# refused CODE PATTERN COMMAND...: checks that the command ends with CODE within 20 s and prints exactly one line on
# stderr that matches.
refused() { local at=$SECONDS; exits "$@" && [ $((SECONDS - at)) -le 20 ]; }

run="$WORK/run"
begins tiny run.dir="$run" $forever checkpoint.every=0
await_step "$run"; strike STOP $job # a stopped job keeps its lock on the folder and changes nothing
state_of "$run" > "$WORK/before"
expect "a second job is refused, with the first one's host and process" refused 73 "$run is in use .*\(host .*, process $job\)" train run.dir="$run"
expect "one of two ranks, too" refused 73 "process $job" train_ranks 2 run.dir="$run"
expect "neither has changed anything" diff "$WORK/before" <(state_of "$run")
strike KILL $job; wait $job 2> /dev/null
# A killed process may hold the lock for some time after its end, while a thread of it waits for the disk. Here another
# program holds it.
flock "$run/lock" sleep 30 & holder=$!
at=$SECONDS; train run.dir="$run" > /dev/null 2> "$WORK/err"; status=$?
expect "one that it holds for longer is refused, within 20 s" [ $status -eq 73 -a $((SECONDS - at)) -le 20 ]
expect "with what holds it" grep -q "this job waits up to 10 s for it" "$WORK/err"
expect "and for how long it waited" eval 'tr "\n" " " < "$WORK/err" | tr -s " " | grep -q "$run is still locked: its last job (host .*, process $job) has ended, and 10 s later a thread"'
kill $(pgrep -P $holder) $holder; wait $holder 2> /dev/null
flock "$run/lock" sleep 2 & holder=$!
expect "a lock that a dead job holds for 2 s is waited for" eval 'train run.dir="$run" $forever checkpoint.every=5 run.stop_step=3 > "$WORK/out" 2>&1; [ $? -eq 75 ] && ! kill -0 $holder 2> /dev/null'
begins tiny run.dir="$run" $forever checkpoint.every=5
expect "the folder of a dead job is taken over at once" await '^saved '

# Simulates that the host of a job hung and another job took the run folder. The first job continues, and notices that
# before it writes its next checkpoint.
strike STOP $job
sed -i.old 's/^host .*/host elsewhere/; s/^nonce .*/nonce 0000000000000001/' "$run/lock"; cat "$run/lock" > "$WORK/lock"; mv "$run/lock.old" "$WORK"
last=$(values "$run" train step | tail -n 1); kill -CONT $job # a file being written then may still get its name
wait $job; status=$?
expect "a job that lost its folder: exit 73" [ $status -eq 73 ]
expect "its message names the other job" grep -q "$run was taken over .*(host elsewhere, process $job)" "$WORK/out"
expect "it has written no checkpoint since" [ "$(ls "$run/checkpoints" | tail -n 1)" \< "$(printf 'step_%08d' $((last + 1)))" ]
expect "the other's lock is as it was" cmp "$run/lock" "$WORK/lock"
rm "$run/lock"

# While a job waits for the lock of another host, any rank accepts a request to stop.
mkdir "$WORK/wait"; cp "$WORK/lock" "$WORK/wait/lock"
begins train_ranks 2 run.dir="$WORK/wait"
await 'in use by another job \(host elsewhere'
kill -USR1 "$(pgrep -f "^$TRAIN $WORK/tiny.json" | tail -n 1)"; wait $job; status=$?
expect "asked to stop on rank 1, while rank 0 waits for a lock: exit 75" [ $status -eq 75 ]
expect "nothing was done there" [ "$(ls -A "$WORK/wait")" = lock ]

# Links in the places of files that the run writes are not followed, and their targets do not change.
echo precious > "$WORK/precious"; mkdir "$WORK/outside"; echo precious > "$WORK/outside/file"
for name in lock:74 metrics.jsonl:74 loss.svg:64 config.json:64; do
    code=${name#*:} name=${name%:*}
    mkdir -p "$WORK/$name.d"; ln -s "$WORK/precious" "$WORK/$name.d/$name"
    expect "a link at $name is refused by name" refused $code "$WORK/$name.d/$name" train run.dir="$WORK/$name.d" run.steps=1
    expect "  and stays" [ -L "$WORK/$name.d/$name" ]
done
mkdir -p "$WORK/links/checkpoints"
ln -s "$WORK/outside" "$WORK/links/checkpoints/step_00000001.tmp"; ln -s "$WORK/precious" "$WORK/links/SAVE"; ln -s "$WORK/precious" "$WORK/links/config.json.tmp"
expect "links at an unfinished checkpoint, SAVE and an unfinished config.json make way" quiet train run.dir="$WORK/links" run.steps=1
expect "the checkpoint is a folder of its own" [ -s "$WORK/links/checkpoints/step_00000001/state.json" -a ! -L "$WORK/links/checkpoints/step_00000001" ]
expect "nothing behind a link has changed" [ "$(cat "$WORK/precious" "$WORK/outside/"*)" = "$(printf 'precious\nprecious')" ]

# A folder that cannot be made or written to is reported before anything else.
expect "no such place" refused 74 "/proc/nowhere" train run.dir=/proc/nowhere/run
expect "a file in its place" refused 74 "$WORK/precious" train run.dir="$WORK/precious"
if [ "$(id -u)" = 0 ]; then as_nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups); else as_nobody=(); fi
chmod 755 "$WORK"; mkdir "$WORK/closed"; chmod 555 "$WORK/closed"; mkdir -p "$WORK/shut"; touch "$WORK/shut/lock"; chmod 666 "$WORK/shut/lock"; chmod 555 "$WORK/shut"
if "${as_nobody[@]}" test -x "$TRAIN" -a -r "$WORK/tiny.json" 2> /dev/null; then
    expect "a folder of somebody else" refused 74 "$WORK/closed/run: .*Permission denied" "${as_nobody[@]}" "$TRAIN" "$WORK/tiny.json" run.dir="$WORK/closed/run"
    expect "a folder that may not be written, though the lock may" refused 74 "$WORK/shut: .*Permission denied" "${as_nobody[@]}" "$TRAIN" "$WORK/tiny.json" run.dir="$WORK/shut"
    mkdir -m 000 "$WORK/theirs"
    expect "data in a folder that may not be read" exits 74 "theirs/x_\*.bin.*: .*$WORK/theirs .*: Permission denied" \
        "${as_nobody[@]}" "$TRAIN" "$WORK/tiny.json" data.train="$WORK/theirs/x_*.bin" run.dir="$WORK/open"
else
    echo "skip no other user can run the program here"
fi
chmod 755 "$WORK/closed" "$WORK/shut" # a user without rights could not remove what is in them
if unshare -m true 2> /dev/null; then
    mkdir "$WORK/disk"
    read_only() { unshare -m sh -c 'mount -t tmpfs -o ro none "$0" && exec "$@"' "$WORK/disk" "$TRAIN" "$WORK/tiny.json" run.dir="$1"; }
    expect "a read-only disk" refused 74 "$WORK/disk: .*Read-only file system" read_only "$WORK/disk"
    expect "below it" refused 74 "$WORK/disk/run: .*Read-only file system" read_only "$WORK/disk/run"
else
    echo "skip a read-only disk: nothing can be mounted here"
fi

test/run/lib/races.sh 5 || STATUS=1
exit $STATUS
