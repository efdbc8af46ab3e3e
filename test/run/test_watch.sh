#!/usr/bin/env bash
# The subcommand watch: prints the numbers in the files of runs, in any width, and redraws in a terminal until Ctrl-C.
. "$(dirname "$0")/lib/tiny.sh"
watch() { "$TRAIN" watch "$@" > "$WORK/seen"; }
seen() { grep -qE "$1" "$WORK/seen"; }
# widest: prints the length in characters of the longest line of the output.
widest() { python3 -c 'import sys; print(max(len(l.rstrip("\n")) for l in open(sys.argv[1], encoding="utf-8")))' "$WORK/seen"; }

train run.dir="$WORK/whole" > /dev/null
train run.dir="$WORK/half" run.stop_step=7 > /dev/null
begins tiny run.dir="$WORK/lost" run.steps=100000 checkpoint.every=0 eval.every=0; await_step "$WORK/lost"; sleep 0.5
watch "$WORK/lost"
expect "a running run, with the time it takes" eval 'seen "^lost +running · step [0-9]+/100000 · 0 %$" && seen "loss [0-9.]+ .*tok/s   ETA [0-9]"'
strike KILL $job; wait $job 2> /dev/null
COLUMNS=70 watch "$WORK/whole" "$WORK/half" "$WORK/lost" once=true
expect "one that reached its end" seen "^whole +done · step 12/12 · 100 %$"
expect "with its losses" seen "^  loss $(printf '%.4f' "$(values "$WORK/whole" train loss | tail -1)")   val $(printf '%.4f' "$(values "$WORK/whole" eval loss | tail -1)")   best"
expect "one that was stopped" seen "^half +stopped · step 7/12 · 58 %$"
expect "one that was killed" seen "^lost +ended without a word · step"
cp -r "$WORK/lost" "$WORK/failed"; printf 'train_gpt: step 9 is not saved: No space left\n           mend that\n' >> "$WORK/failed/log.txt"; watch "$WORK/failed"
expect "one that an error ended, with the message" eval 'seen "^failed +ended with a message · step" && seen "^  step 9 is not saved: No space left$"'
echo 'step 10/12' >> "$WORK/failed/log.txt"; watch "$WORK/failed"
expect "but not with an older message" seen "^failed +ended without a word"
COLUMNS=70 watch "$WORK/whole" "$WORK/half" "$WORK/lost" once=true
expect "each with a curve of four rows" [ "$(LC_ALL=C grep -c $'\xe2[\xa0-\xa3]' "$WORK/seen")" -eq 12 ]
for columns in 30 40 80 100 200; do
    COLUMNS=$columns watch "$WORK/whole" "$WORK/half" "$WORK/lost"
    expect "nothing is wider than $columns columns" [ "$(widest)" -le $columns ]
done
printf '{"kind":"train","step":8,"lo' >> "$WORK/half/metrics.jsonl"; watch "$WORK/half"
expect "a torn line is not yet a step" seen "step 7/12"
mkdir "$WORK/new"; watch "$WORK/new"
expect "a folder without a step" seen "^new +no step yet$"
expect "no folder" exits 65 "$WORK/nowhere is not the folder of a run" "$TRAIN" watch "$WORK/nowhere"
expect "no run" exits 64 "it needs the folder of a run; usage: " "$TRAIN" watch
expect "another value" exits 64 "once=yes: true or false" "$TRAIN" watch "$WORK/whole" once=yes

# Runs `watch` in a terminal of 60 columns. It shows a new step. It reads a log anew that was cut short, and one
# that was cut and is now longer than before. On Ctrl-C it makes the cursor visible again.
python3 - "$TRAIN" "$WORK/half" > "$WORK/seen" <<'PY'
import fcntl, os, pty, select, signal, struct, sys, termios, time
program, run = sys.argv[1:]
pid, fd = pty.fork()
if pid == 0:
    os.environ["TERM"] = "xterm"
    os.execv(program, [program, "watch", run])
fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 60, 0, 0))
text = b""
def until(word):
    global text
    end = time.time() + 30
    while word not in text:
        if time.time() > end or not select.select([fd], [], [], 30)[0]: sys.exit(f"no {word} in {text}")
        text += os.read(fd, 65536)
until(b"step 7/12")
log = open(f"{run}/metrics.jsonl").read()
lines = [l for l in log.splitlines(True) if l.endswith("\n")]
last = [l for l in lines if '"kind":"train"' in l][-1]
open(f"{run}/metrics.jsonl", "w").write("".join(lines) + last.replace('"step":7,', '"step":8,'))
until(b"step 8/12")
open(f"{run}/metrics.jsonl", "w").write("".join(l for l in lines if '"step":7,' not in l and '"step":6,' not in l))
until(b"step 5/12")
again = "".join(l for l in lines if not any(f'"step":{step},' in l for step in (5, 6, 7)))
open(f"{run}/metrics.jsonl", "w").write(again + again)
until(b"step 4/12")
os.write(fd, b"\x03")
try:
    while True:
        more = os.read(fd, 65536)
        if not more: break
        text += more
except OSError:
    pass
status = os.waitpid(pid, 0)[1]
print("status", os.waitstatus_to_exitcode(status))
print("hidden", text.count(b"\x1b[?25l"), "shown", text.count(b"\x1b[?25h"))
print("last frame stays", b"half" in text[text.rindex(b"\x1b[?1049l"):])
PY
expect "a terminal: steps as they come, a cut log read anew" [ $? -eq 0 ]
expect "Ctrl-C ends it with 0" seen "^status 0$"
expect "and gives the cursor back" seen "^hidden 1 shown 1$"
expect "the last frame stays" seen "^last frame stays True$"
exit $STATUS
