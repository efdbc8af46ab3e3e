# The output in a terminal: no line is wider than the terminal, colours only where wanted, help, a response to Ctrl-C,
# and log.txt.
# Timed: lines are redrawn while steps go on.
. "$(dirname "$0")/lib/tiny.sh"
unset NO_COLOR FORCE_COLOR COLUMNS
export TERM=xterm ROOT=$PWD
# at COLUMNS COMMAND...: prints the command's output in a terminal of this width
at() { local columns=$1; shift; python3 "$ROOT/scripts/in_terminal.py" "$columns" "$@"; }
escape=$(printf '\033')
# prints the text that stays on the screen, without escape sequences
plain() { sed -E "s/$escape\[[0-9;]*[mK]//g; s/\r\$//; s/.*\r//"; }
widest() { plain | LC_ALL=C.UTF-8 wc -L; }
fits() { local n; n=$(widest < "$2"); [ "$n" -le "$1" ] || { echo "a line of $n columns"; return 1; }; }
said() { grep -qE -- "$1" "$2"; }

# --- a run at several widths
long="run.steps=8 log.every=2 eval.every=4 sample.every=4 sample.tokens=300 checkpoint.every=4 run.spike_threshold=0"
for columns in 60 80 120; do
    at $columns "$TRAIN" "$WORK/tiny.json" $long run.dir="$WORK/at$columns" > "$WORK/at$columns.txt"
    expect "$columns columns: no line is wider" fits $columns "$WORK/at$columns.txt"
done
plain < "$WORK/at80.txt" > "$WORK/screen"
expect "80 columns: loss, rate and ETA" said '^step 8/8 100.0% \| loss [0-9.]+ \| lr [0-9.e-]+ \| .* tok/s \| ETA +0s$' "$WORK/screen"
expect "120 columns: norm, MFU, memory, ms, too" eval 'plain < "$WORK/at120.txt" | grep -qE "norm .*(MFU|\|     ).*GiB .*ms "'
expect "the banner has 8 lines at most" [ "$(grep -n '^val  0/8' "$WORK/screen" | cut -d: -f1)" -le 9 ]
expect "the validation at step 0 is shown" said '^val  0/8   0.0% \| loss 5\.[0-9]+ \| bits/byte [78]\.[0-9]+ \| [0-9.]+s$' "$WORK/screen"
expect "the next with its change, and that it is the best" said '^val  4/8 .* \| -[0-9.]+ best \|' "$WORK/screen"
expect "bits per byte are loss / ln 2" eval 'sed -nE "s/^val .*loss ([0-9.]+) .*byte ([0-9.]+) .*/\1 \2/p" "$WORK/screen" | awk "{ d = \$1 / log(2) - \$2; if (d * d > 1e-7) bad = 1 } END { exit bad || NR != 3 }"'
expect "the step under way is rewritten" said " 3/8 .*$escape\[K.*step.* 4/8" "$WORK/at80.txt"
at 80 "$TRAIN" "$WORK/tiny.json" run.stepps=5 > "$WORK/fault.txt" 2>&1
expect "errors are broken between words" eval 'fits 80 "$WORK/fault.txt" && plain < "$WORK/fault.txt" | tr "\n" " " | grep -q "did you mean *\"run.steps\"?"'

# --- colours, of each stream alone
marks() { grep -c "$escape\[[0-9]" "$1"; }
expect "on a terminal there are colours" [ "$(marks "$WORK/at80.txt")" -gt 5 ]
at 80 env NO_COLOR=1 "$TRAIN" "$WORK/tiny.json" run.steps=2 run.dir="$WORK/c1" > "$WORK/c1.txt"
expect "NO_COLOR: none" [ "$(marks "$WORK/c1.txt")" -eq 0 ]
at 80 env TERM=dumb "$TRAIN" "$WORK/tiny.json" run.steps=2 run.dir="$WORK/c2" > "$WORK/c2.txt"
expect "TERM=dumb: no code at all" [ "$(grep -c "$escape" "$WORK/c2.txt")" -eq 0 ]
train run.steps=2 run.dir="$WORK/c3" data.val="$WORK/data/*" > "$WORK/c3.txt" 2> "$WORK/c3.err"
expect "files: none" [ "$(cat "$WORK/c3.txt" "$WORK/c3.err" | grep -c "$escape")" -eq 0 ]
expect "files: lines are whole" eval 'said "^step 1/2  50.0% .* norm .* ms | ETA" "$WORK/c3.txt" && said "^train_gpt: warning: data.val names .{90,}" "$WORK/c3.err"'
FORCE_COLOR=1 train run.steps=2 run.dir="$WORK/c4" > "$WORK/c4.txt"
expect "FORCE_COLOR: in files, too" [ "$(marks "$WORK/c4.txt")" -gt 2 ]
at 80 bash -c "'$TRAIN' '$WORK/tiny.json' run.steps=2 run.dir='$WORK/c5' data.val='$WORK/data/*' > '$WORK/c5.out'" > "$WORK/c5.err"
expect "stdout in a file, stderr on a terminal: colours there alone" eval '[ "$(grep -c "$escape" "$WORK/c5.out")" -eq 0 ] && grep -q "${escape}\[33mtrain_gpt: warning:" "$WORK/c5.err"'
expect "errors are red" eval 'at 80 "$TRAIN" none.json | grep -q "${escape}\[1;31merror:"'

# --- log.txt keeps what was printed, over a resume
grep -v '^== started\|^$' "$WORK/at80/log.txt" > "$WORK/kept"
expect "log.txt has the lines of the terminal, without codes" eval '! grep -q "$escape" "$WORK/kept" && said "^val  4/8 .*best" "$WORK/kept" && said "^done: step 8 of 8" "$WORK/kept" && said "^train_gpt cpu: " "$WORK/kept"'
expect "but not those that are rewritten" [ "$(grep -c '^step 3/8' "$WORK/kept")" -eq 0 ]
quiet train $long run.steps=9 run.dir="$WORK/at80" data.val="$WORK/data/*" 2> "$WORK/err"
expect "a resume goes on in it" eval '[ "$(grep -c "^== started" "$WORK/at80/log.txt")" -eq 2 ] && said "^resume .*resumes at step 8," "$WORK/at80/log.txt"'
expect "with stderr" eval 'said "^train_gpt: warning: data.val names" "$WORK/at80/log.txt" && grep -q "warning: data.val names" "$WORK/err"'
mkdir "$WORK/linked"; ln -s "$WORK/elsewhere" "$WORK/linked/log.txt"
expect "a link of that name is not followed" exits 74 'log.txt is a symbolic link, not a file' train run.dir="$WORK/linked"
mkdir "$WORK/full"; head -c 1M /dev/zero > "$WORK/full/log.txt"
(ulimit -f 1024; train run.steps=3 run.dir="$WORK/full") > "$WORK/out" 2> "$WORK/err"; status=$?
expect "a log that cannot be written ends nothing: one warning" [ $status -eq 0 -a "$(grep -c 'warning: .*' "$WORK/err")" -eq 1 -a "$(grep -c 'cannot write .*log.txt' "$WORK/err")" -eq 1 ]

# --- Ctrl-C, typed
at 80 --interrupt-at 'step' "$TRAIN" "$WORK/tiny.json" run.steps=1000000 eval.every=0 checkpoint.every=0 run.dir="$WORK/typed" > "$WORK/typed.txt"; status=$?
plain < "$WORK/typed.txt" > "$WORK/screen"
expect "Ctrl-C is answered, then obeyed" eval '[ $status -eq 75 ] && said "^train_gpt: stops after this step and saves; Ctrl-C again" "$WORK/screen" && said "^stopped at step .*saved" "$WORK/screen"'
expect "in log.txt, too" said '^train_gpt: stops after this step' "$WORK/typed/log.txt"

# --- signs of life
for i in $(seq 9); do cp "$WORK/data/train_000000.bin" "$WORK/data/long_$i.bin"; done
at 80 --interrupt-at $'validation\033[0m' "$TRAIN" "$WORK/tiny.json" run.dir="$WORK/life" data.val="$WORK/data/long_*.bin" eval.tokens=0 model.n_layer=12 > "$WORK/life.txt"
expect "a long validation says how far it is" said "validation.* [0-9]+/[0-9]+" "$WORK/life.txt"
TRAIN_GPT_FAIL="io@1+:slow" at 80 "$FAILING" "$WORK/tiny.json" run.steps=1 eval.every=0 run.dir="$WORK/slow" > "$WORK/life.txt"
expect "a long save shows that it is at work" said "saving.* [0-9]+ s" "$WORK/life.txt"
TRAIN_GPT_FAIL="io@1+:slow" at 80 "$FAILING" "$WORK/tiny.json" run.steps=1 eval.every=0 run.dir="$WORK/slow" > "$WORK/life.txt"
expect "a long load, too" said "(checking|loading) the checkpoint.* [0-9]+ s" "$WORK/life.txt"
[ "$STATUS" -eq 0 ]
