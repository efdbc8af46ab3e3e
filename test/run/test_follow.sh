#!/usr/bin/env bash
# scripts/follow.py with a simulated wandb and trackio that record what they get: nothing is lost, nothing is sent
# twice.
. "$(dirname "$0")/lib/tiny.sh"
mkdir "$WORK/modules"
cat > "$WORK/modules/wandb.py" <<'PY'
import json, os
def note(*what):
    with open(os.environ["NOTED"], "a") as f: f.write(json.dumps(what) + "\n")
def init(**how): note("init", how)
def log(numbers, step): note("log", step, numbers)
def finish(): note("finish")
PY
cp "$WORK/modules/wandb.py" "$WORK/modules/trackio.py"
export NOTED=$WORK/noted PYTHONPATH=$WORK/modules PYTHONDONTWRITEBYTECODE=1
follow() { python3 scripts/follow.py "$@" 2> "$WORK/err"; }
# noted EXPRESSION: checks a Python expression over the recorded calls, `notes`. `logs` has a pair (step, "train" or
# "val") for each recorded log call.
noted() { python3 -c 'import json, os, sys
notes = [json.loads(l) for l in open(os.environ["NOTED"])]
logs = [(n[1], next(iter(n[2])).split("/")[0]) for n in notes if n[0] == "log"]
sys.exit(0 if eval(sys.argv[1]) else print(notes) or 1)' "$1"; }

train run.dir="$WORK/run" run.stop_step=7 > /dev/null
printf '{"kind":"train","step":8,"lo' >> "$WORK/run/metrics.jsonl"
expect "sends what there is" follow "$WORK/run" --to wandb --once
expect "with the config, under the folder's name" noted 'notes[0][0] == "init" and notes[0][1]["name"] == "run" and notes[0][1]["config"]["run"]["steps"] == 12'
expect "each step once, and each evaluation" noted 'logs == [(0, "val")] + [(s, "train") for s in range(1, 7)] + [(6, "val"), (7, "train")] and notes[-1] == ["finish"]'
expect "as numbers under their names" noted '{"train/loss", "train/lr", "train/grad_norm", "train/tokens_per_s", "train/hours", "train/epoch"} <= set(notes[2][2]) and "val/bpb" in notes[1][2]'
train run.dir="$WORK/run" > /dev/null
expect "goes on where it ended" follow "$WORK/run" --to wandb --once
expect "in the same run there" noted 'len({n[1]["id"] for n in notes if n[0] == "init"}) == 1'
expect "with each step once still" noted 'sorted(logs) == sorted([(s, "train") for s in range(1, 13)] + [(s, "val") for s in (0, 6, 12)])'
rm "$NOTED"
python3 scripts/follow.py "$WORK/run" --to trackio --project mine 2> "$WORK/err" & job=$!
says "$NOTED" '"log", 12, \{"val'
kill $job; wait $job 2> /dev/null
expect "trackio has all of it, too, as it comes" noted 'len(logs) == 15 and notes[0][1]["project"] == "mine"'
# Lines and files in another format are skipped, or refused with a message and an exit code.
cp -r "$WORK/run" "$WORK/odd"; rm "$WORK/odd"/follow.*.json "$NOTED"
{ printf '[1]\nnull\n\xff\n{"kind":["train"],"step":1}\n{"kind":"train","step":true,"loss":1}\n'; cat "$WORK/run/metrics.jsonl"
  head -c 3000000 /dev/zero; } > "$WORK/odd/metrics.jsonl"
expect "lines of another shape" follow "$WORK/odd" --to wandb --once
expect "the others are sent" noted 'len(logs) == 15'
echo '{"id": 3}' > "$WORK/odd/follow.wandb.json"
expect "a damaged state is named" exits 65 "^follow.py: .*follow.wandb.json: damaged: .*; remove it to send all anew" python3 scripts/follow.py "$WORK/odd" --to wandb --once
rm "$WORK/odd/follow.wandb.json" "$WORK/odd/metrics.jsonl"
expect "the cure" follow "$WORK/odd" --to wandb --once
mkfifo "$WORK/odd/metrics.jsonl"
expect "a FIFO in place of the log" exits 74 "^follow.py: .*metrics.jsonl: not a regular file" timeout 20 python3 scripts/follow.py "$WORK/odd" --to wandb --once
expect "an unknown option" exits 64 "^follow.py: unrecognized arguments: --all" python3 scripts/follow.py "$WORK/run" --to wandb --all
echo 'def log(numbers, step): raise RuntimeError("no network")' >> "$WORK/modules/trackio.py"
rm "$WORK/run/follow.trackio.json"
expect "a service that fails" exits 69 "^follow.py: trackio takes no numbers: no network" python3 scripts/follow.py "$WORK/run" --to trackio --once
rm "$WORK/modules/wandb.py"
follow "$WORK/run" --to wandb --once && ok 1 "a missing package" || expect "a missing package is named" grep -q "wandb is not installed .*: pip install wandb" "$WORK/err"
follow "$WORK/none" --to trackio --once && ok 1 "no folder" || expect "no folder" grep -q "none is not the folder of a run" "$WORK/err"
exit $STATUS
