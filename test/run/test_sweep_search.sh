#!/usr/bin/env bash
# scripts/sweep.py: the methods random, pbt, tpe and asha with a tiny model. Also faults in the search space, failing
# trials, kills, and SLURM with simulated commands.
. "$(dirname "$0")/lib/tiny.sh"
export TRAIN_GPT=$TRAIN
SWEEP=(timeout 120 python3 scripts/sweep.py "$WORK/space.json" "$WORK/sweep.json")
cat > "$WORK/sweep.json" <<JSON
{ "run": {"steps": 9},
  "model": {"n_layer": 1, "n_head": 1, "n_embd": 8, "n_positions": 16, "vocab_size": 256},
  "data": {"train": "$WORK/data/train_*.bin", "val": "$WORK/data/val_*.bin"},
  "batch": {"global_tokens": 64, "micro_batch": 4}, "precision": "fp32",
  "checkpoint": {"every": 0}, "eval": {"every": 9, "tokens": 160} }
JSON
space() { printf '%s' "$1" > "$WORK/space.json"; }
RATES='"optimizer.learning_rate": {"low": 1e-3, "high": 1e-1, "log": true}'
sweeps() { "${SWEEP[@]}" "$@" > "$WORK/out" 2> "$WORK/err"; }
said() { grep -qE "$1" "$WORK/out"; }
# prints a Python expression over the state s of a trial: `of TRIAL EXPRESSION`
of() { python3 -c 'import json, sys; s = json.load(open(sys.argv[1] + "/trial.json")); print(eval(sys.argv[2], {"s": s}))' "$1" "$2"; }

# --- faults, before anything runs
refused() { # PATTERN SPACE [WORDS...]
    local pattern=$1; space "$2"; shift 2
    expect "refused: $pattern" exits 64 "$pattern" "${SWEEP[@]}" --out "$WORK/no" "$@"
}
refused "low is 2, and high 1: low must be less" '{"optimizer.learning_rate": {"low": 2, "high": 1}}'
refused "low must be above 0 where log" '{"optimizer.learning_rate": {"low": 0, "high": 1, "log": true}}'
refused "low and high must be integers" '{"schedule.warmup_steps": {"low": 0.5, "high": 3, "int": true}}'
refused 'unknown word "min"' '{"optimizer.learning_rate": {"min": 0, "low": 0, "high": 1}}'
refused "choices must be a list" '{"optimizer.beta2": {"choices": 0.9}}'
refused "a key stands there twice" "{$RATES, $RATES}"
refused "no key; " '{"$comment": "later"}'
refused "Expecting" '{'
refused "run.dir: the sweep itself sets it" '{"run.dir": {"choices": ["a"]}}'
refused "learing_rate.*optimizer.learning_rate" '{"optimizer.learing_rate": {"low": 1, "high": 2}}'
# only the upper end of this range is refused
refused "optimizer.beta2.*optimizer.beta2=1.5" '{"optimizer.beta2": {"low": 0.5, "high": 1.5}}'
refused "n_head.*model.n_head=3" '{"model.n_head": {"choices": [1, 3]}}'
refused "pbt changes keys while a run goes on" '{"model.n_layer": {"choices": [1, 2]}}' --method pbt
refused "their losses would not compare" '{"eval.tokens": {"choices": [16, 32]}}'
refused "invalid choice: 'grid'" "{$RATES}" --method grid
space "{$RATES}"
expect "refused: no data" exits 65 "data.train: no file matches" "${SWEEP[@]}" data.train="$WORK/none" --out "$WORK/no"
expect "nothing was begun" [ ! -e "$WORK/no" ]

# --- files and words of another shape: a sentence and a code of docs/sweeps.md, never a traceback
deep() { printf '[%.0s' $(seq 60000); }
refused "nested too deep" "{\"optimizer.learning_rate\": $(deep)"
refused "byte-order mark" $'\xef\xbb\xbf'"{$RATES}"
refused "byte 2 is no UTF-8" $'{"\xe9": 1}'
refused "NaN is no number of JSON" '{"optimizer.learning_rate": {"low": NaN, "high": 1}}'
refused "low and high must be numbers" "{\"optimizer.learning_rate\": {\"low\": 0, \"high\": 1$(printf '0%.0s' $(seq 400))}}"
refused 'x\\x1b\[2Jy: not a key of a config' '{"x\u001b[2Jy": {"choices": [1]}}'
space "{$RATES}"
trial() { "${SWEEP[@]}" -n 1 --out "$WORK/odd" "$@"; }
expect "an open quote" exits 64 "^sweep: --launch nice 'x: no closing quotation" trial --launch "nice 'x"
expect "a launcher that is not there" exits 69 "^sweep: --launch: there is no program mpirunn: install it" trial --launch "mpirunn -np 2"
expect "an unknown option" exits 64 "^sweep: unrecognized arguments: --trials" trial --trials 3
expect "no trials at all" exits 64 "^sweep: n is 0: it must be at least 1" trial -n 0
expect "a pause that is no number" exits 64 "^sweep: SWEEP_PAUSE=soon: seconds" env SWEEP_PAUSE=soon "${SWEEP[@]}" --out "$WORK/odd"
expect "--out without a name" exits 64 "^sweep: --out must name a folder" "${SWEEP[@]}" --out ""
expect "--out that is no UTF-8" exits 64 "^sweep: .* is not UTF-8, and a config holds nothing else: give another name" "${SWEEP[@]}" --out "$WORK/"$'\xff'
expect "--out under a file" exits 74 "^sweep: .*space.json/x: cannot create the folder: Not a directory" "${SWEEP[@]}" --out "$WORK/space.json/x"
mkfifo "$WORK/pipe"
expect "--out that is a FIFO" exits 74 "^sweep: .*pipe: cannot create the folder: File exists" "${SWEEP[@]}" --out "$WORK/pipe"
expect "none of these began" [ ! -e "$WORK/odd" ]
mkdir "$WORK/theirs"; echo "mine" > "$WORK/theirs/config.json"; cp "$WORK/theirs/config.json" "$WORK/mine"
expect "a folder of something else" exits 64 "theirs/config.json is there, and no sweep: nothing was changed; take another --out, as .*theirs-2" "${SWEEP[@]}" -n 1 --out "$WORK/theirs"
expect "it keeps its file" cmp "$WORK/theirs/config.json" "$WORK/mine"
expect "the name that was proposed" sweeps -n 1 --out "$(sed -n 's/.* as //p' "$WORK/err")"

expect "a sweep to damage" trial
cp -r "$WORK/odd" "$WORK/good"
damaged() { # CODE PATTERN FILE CONTENT
    rm -rf "$WORK/odd"; cp -r "$WORK/good" "$WORK/odd"; printf '%s' "$4" > "$WORK/odd/$3"
    expect "damaged $3: $4" exits "$1" "^sweep: $WORK/odd/$3: damaged: $2" trial
}
damaged 65 ".*take another --out, as $WORK/odd-2" sweep.json '{"space": {"optimi'
damaged 65 "it lacks loss, method" sweep.json '{}'
damaged 65 "line 1, column 1: Expecting value" trial_0000/trial.json ''
damaged 65 "no object" trial_0000/trial.json '[1, 2]'
damaged 65 '"values" is missing' trial_0000/trial.json '{}'
damaged 65 "a leg without its loss" trial_0000/trial.json "$(sed 's/"loss": .*/"loss": null/' "$WORK/good/trial_0000/trial.json")"
# removes the damaged file, as the message advises, and the sweep's config, which the next start writes again
rm "$WORK/odd/trial_0000/trial.json" "$WORK/odd/config.json"
expect "the cure: the trial goes on, with its loss" eval 'trial > /dev/null && diff "$WORK/odd/table.txt" "$WORK/good/table.txt"'
rm "$WORK/odd/trial_0000/trial.json"; mkfifo "$WORK/odd/trial_0000/trial.json"
expect "a FIFO in place of a file" exits 74 "trial.json: not a regular file" trial
cat > "$WORK/scribbles" <<'SH'
#!/bin/bash
# A launch command that trains and then appends other lines to the log: invalid ones, one of 3 MB, and a last one that
# is cut.
"$@"; status=$?
{ printf '[1]\nnull\n"x"\n\xff\n{"kind":["eval"],"step":1}\n{"kind":"eval","step":"9","loss":1}\n{"kind":"eval","step":9,"loss":"1"}\n'
  printf '{"kind":"eval","step":9,"loss":NaN}\n'; head -c 3000000 /dev/zero; echo; printf '{"kind":"eval","step":9,"lo'
} >> "$(printf '%s\n' "$@" | sed -n 's/^run.dir=//p')/metrics.jsonl"
exit $status
SH
chmod +x "$WORK/scribbles"; rm -rf "$WORK/odd"
expect "lines of another shape count for nothing" eval 'trial --launch "$WORK/scribbles" > /dev/null && diff "$WORK/odd/table.txt" "$WORK/good/table.txt"'
if unshare -m mount -t tmpfs none "$WORK/theirs" 2> /dev/null; then
    # small COMMAND...: runs the command on a disk with space for the sweep's own files but not for a checkpoint, and
    # then again with enough space.
    small() { unshare -m bash -c 'mount -t tmpfs -o size=60k none "$0" && { "$@"; status=$?; mount -o remount,size=9m "$0"; "$@" > /dev/null; echo "again: $?" >&2; exit $status; }' "$WORK/theirs" "$@"; }
    expect "a full disk" exits 74 "No space left on device.*the same command goes on" small "${SWEEP[@]}" -n 2 --out "$WORK/theirs/full"
    expect "no trial failed of it" grep -q "^again: 0" "$WORK/err"
else
    echo "skip a full disk: nothing can be mounted here"
fi
SWEEP_PAUSE=0.1 "${SWEEP[@]}" -n 1 --out "$WORK/early" > "$WORK/out" 2> "$WORK/err" & job=$!
for _ in $(seq 500); do # waits until the sweep has a handler for TERM: bit 14 of SigCgt
    child=$(pgrep -P $job) && [ $((0x$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$child/status") >> 14 & 1)) = 1 ] && break
    sleep 0.02
done
kill -TERM "$child"; wait $job
expect "stopped before it began" eval "[ $? = 75 ] && ! grep -q Traceback '$WORK/err'"

# --- random: one trial fails, two at a time
space "{$RATES, \"optimizer.grad_clip\": {\"choices\": [0, 1]}}"
cat > "$WORK/moody" <<SH
#!/bin/bash
# A launch command under which some trials fail: 1 lacks its data, 2 ends with 77 and then 75 before it trains, 3 is
# killed.
case "\$*" in
*check*) ;;
*trial_0001*) exec "$TRAIN" "\$@" data.train=$WORK/none ;;
*trial_0002*) n=\$(cat "$WORK/tries" 2> /dev/null || echo 0); echo \$((n + 1)) > "$WORK/tries"; [ \$n = 0 ] && exit 77; [ \$n = 1 ] && exit 75 ;;
*trial_0003*) kill -KILL \$\$ ;;
esac
exec "$TRAIN" "\$@"
SH
chmod +x "$WORK/moody"
TRAIN_GPT=$WORK/moody expect "random, 5 trials" sweeps -n 5 --jobs 2 --out "$WORK/random"
expect "a trial that fails is counted, with its reason" grep -qE "^1 +failed .*exit 65 \(data or checkpoint\): .*none" "$WORK/random/table.txt"
expect "a trial that is killed, too" grep -qE "^3 +failed .*killed by SIGKILL" "$WORK/random/table.txt"
expect "exits 77 and 75 are resumed" grep -qE "^2 +done +9 " "$WORK/random/table.txt"
expect "the table begins with the best" [ "$(awk '$2 == "done" {print $4}' "$WORK/random/table.txt")" = "$(awk '$2 == "done" {print $4}' "$WORK/random/table.txt" | sort -g)" ]
expect "the loss is the last validation loss" [ "$(of "$WORK/random/trial_0000" 's["legs"][-1]["loss"]')" = "$(values "$WORK/random/trial_0000" eval loss | tail -n 1)" ]
expect "the picture has a panel for each key, a dot for each trial" [ "$(grep -c '<rect class="box"' "$WORK/random/sweep.svg") $(grep -c 'class="done"' "$WORK/random/sweep.svg")" = "2 6" ]
command=$(sed -n 's/^to train it again   //p' "$WORK/out")
expect "the command trains the best" eval "(${command/runs\/best/$WORK/best}) > /dev/null"
best=$(sed -n 's/^the best, trained   //p' "$WORK/out")
expect "to the same weights" same_weights "$WORK/best" "$best" step_00000009
expect "the same command has nothing to do" sweeps -n 5 --out "$WORK/random"
expect "another space is refused" eval 'space "{$RATES}"; exits 64 "holds a sweep with another space" "${SWEEP[@]}" -n 5 --out "$WORK/random"'

# --- killed and continued: the same as at once
expect "random, at once" sweeps -n 3 --out "$WORK/whole"
"${SWEEP[@]}" -n 3 --out "$WORK/cut" > "$WORK/out" 2>&1 & job=$!
await "^trial 0: step 9" && kill -KILL -- "$(pgrep -P $job)" $job 2> /dev/null; wait $job 2> /dev/null; ok $(($? != 137)) "it was killed"
expect "killed, and the same command again" sweeps -n 3 --out "$WORK/cut"
expect "the same trials, to the last digit" eval 'diff <(sort "$WORK/whole/table.txt") <(sort "$WORK/cut/table.txt")'
"${SWEEP[@]}" -n 2 run.steps=100000 checkpoint.every=0 --out "$WORK/long" > "$WORK/out" 2>&1 & job=$!
await_step "$WORK/long/trial_0000"
kept() { cat "$WORK/long/"*.json; ls -A "$WORK/long"; stat -c %Y "$WORK/long/"*.json "$WORK/long/.lock"; }
kept > "$WORK/kept"
expect "another sweep in the folder of one at work: 73" exits 73 "long is in use by a sweep with another words: wait for it, or take another --out" "${SWEEP[@]}" -n 2 run.steps=90 --out "$WORK/long"
expect "it has changed nothing" diff "$WORK/kept" <(kept)
kill -TERM "$(pgrep -P $job)"; wait $job
expect "asked to stop: 75, trials saved" [ $? = 75 -a -n "$(ls "$WORK/long/trial_0000/checkpoints")" ]
expect "then it is 64" exits 64 "long holds a sweep with another words" "${SWEEP[@]}" -n 2 run.steps=90 --out "$WORK/long"

mkdir -p "$WORK/full/trial_0000" "$WORK/full/trial_0001/trial.json.new" # a folder where a file should go
expect "files that cannot be written end it" exits 74 "trial_0001/trial.json.new.*the same command goes on" "${SWEEP[@]}" -n 2 --out "$WORK/full"

# Tests Sweep.stop of scripts/sweep.py. Called twice after faults of threads, it sends the trials SIGUSR1, with which
# they save. Called for a signal after that, it kills them.
cat > "$WORK/faults.py" << 'EOF'
import signal, sys, threading
sys.path.insert(0, "scripts")
import sweep
asked = []
class Child:
    pid = 0
    def send_signal(self, number): asked.append(number)
sweep.os.killpg = lambda group, number: asked.append(number)
s = object.__new__(sweep.Sweep)
s.stopping, s.fault, s.stop_asked, s.running = False, OSError(), threading.Event(), {Child()}
s.stop(), s.stop()
assert asked == [signal.SIGUSR1] * 2, asked
s.stop(signal.SIGTERM, None)
assert asked[2:] == [signal.SIGKILL], asked
EOF
expect "two faults let the trials save, and a signal after them kills" python3 "$WORK/faults.py"

# --- population-based training
expect "pbt, 4 members, 3 rounds" sweeps -n 4 --method pbt --rounds 3 --jobs 2 --out "$WORK/pbt"
copy=$(sed -n 's/^trial \([0-9]*\): takes the weights of trial \([0-9]*\) at step 3, with optimizer.learning_rate=\(.*\)/\1 \2 \3/p' "$WORK/out")
read -r loser winner rate <<< "$copy"
first() { of "$WORK/pbt/trial_000$1" 's["legs"][0]["loss"]'; }
expect "the worst takes the checkpoint of the best" [ "$(for i in 0 1 2 3; do echo "$(first $i) $i"; done | sort -g | sed -n '1s/.* //p;4s/.* //p' | xargs)" = "$winner $loser" ]
was=$(of "$WORK/pbt/trial_000$winner" '(s["copies"] + [{"values_before": s["values"]}])[0]["values_before"]["optimizer.learning_rate"]')
expect "its rate times 0.8 or 1.25" python3 -c "import sys; sys.exit(not any(abs(min(0.1, $was * f) / $rate - 1) < 1e-3 for f in (0.8, 1.25)))"
expect "two rounds of copies" [ "$(grep -c 'takes the weights' "$WORK/out")" = 2 ]
expect "a copy is a run of its own, with a parent" eval 'grep -q "^copy  *of run" "$WORK/pbt/trial_000$loser/sweep.log" && grep -q "^\"parent\":{" "$WORK/pbt/trial_000$loser/checkpoints/step_00000009/state.json"'
expect "all four to the end" [ "$(grep -cE '^[0-3] +done +9 ' "$WORK/pbt/table.txt")" = 4 ]
"${SWEEP[@]}" -n 4 --method pbt --rounds 3 --out "$WORK/cutpbt" > "$WORK/out" 2>&1 & job=$!
await "takes the weights" && kill -KILL -- "$(pgrep -P $job)" $job 2> /dev/null; wait $job 2> /dev/null; ok $(($? != 137)) "it was killed at an exchange"
expect "killed at an exchange, and the same command again" sweeps -n 4 --method pbt --rounds 3 --out "$WORK/cutpbt"
expect "the same population, to the last digit" diff "$WORK/pbt/table.txt" "$WORK/cutpbt/table.txt"

# --- SLURM: each leg is a job; one that has saved its last step does not wait to be requeued
mkdir "$WORK/bin" "$WORK/jobs"
cat > "$WORK/bin/sbatch" <<SH
#!/bin/bash
while [[ \$1 == -* ]]; do case \$1 in --output=*) log=\${1#--output=} ;; esac; shift; done
shift; n=\$\$; echo RUNNING > "$WORK/jobs/\$n"; echo \$n
("$TRAIN" "\$@" >> "\$log" 2>&1; [ \$? = 75 ] && echo PENDING > "$WORK/jobs/\$n" || : > "$WORK/jobs/\$n") > /dev/null &
SH
printf '#!/bin/bash\ncat "%s/jobs/$3"\n' "$WORK" > "$WORK/bin/squeue"
printf '#!/bin/bash\n: > "%s/jobs/$1"; echo $1 >> "%s/cancelled"\n' "$WORK" "$WORK" > "$WORK/bin/scancel"
chmod +x "$WORK"/bin/*
PATH=$WORK/bin:$PATH SWEEP_PAUSE=0.2 expect "by SLURM's commands" sweeps -n 2 --method pbt --rounds 2 --jobs 2 --slurm='--ntasks=1 --time=10' --out "$WORK/slurm"
expect "four legs, four jobs, the first two cancelled when they waited" [ "$(ls "$WORK/jobs" | wc -l) $(wc -l < "$WORK/cancelled")" = "4 2" ]

# --- by Optuna
python=""
for candidate in python3 /usr/bin/python3; do [ -z "$python" ] && $candidate -c 'import optuna' 2> /dev/null && python=$candidate; done
if [ -z "$python" ]; then
    expect "tpe without Optuna" exits 69 "needs Optuna: apt-get install python3-optuna" "${SWEEP[@]}" --method tpe --out "$WORK/tpe"
    echo "skip tpe and asha: Optuna is not installed"
else
    $python test/interop/check_sweeps.py "$TRAIN" "$WORK" || STATUS=1
fi
exit $STATUS
