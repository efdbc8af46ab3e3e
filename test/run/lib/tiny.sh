# tiny.sh - a small model on made-up text, and the functions in which end-to-end tests are written. Sourced by
# test/run/test_*.sh.
declare -F expect > /dev/null || . "$(dirname "${BASH_SOURCE[0]}")/expect.sh"
TRAIN=$PWD/$B/train_gpt
# the program built with planted faults, which TRAIN_GPT_FAIL chooses (core/failpoints.h)
FAILING=$PWD/$B/test/train_gpt-failpoints
if unbuilt "$TRAIN"; then exit 1; fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
PORT=$((20000 + $$ % 12000)) # port for a server of this script; scripts that run at the same time have others

# for a job in the background: exec, so that the job's process id is the program's
tiny() { exec "$TRAIN" "$WORK/tiny.json" "$@"; }
# begins COMMAND...: starts the job in the background with its output in $WORK/out. The output of an earlier job is
# removed first, because it could be mistaken for this one's.
begins() { rm -f "$WORK/out"; ("$@" > "$WORK/out" 2>&1) & job=$!; }
# await PATTERN: waits at most 60 s until the job in the background prints a matching line.
await() { within 60 has_lines "$WORK/out" "$1" || { echo "no line like '$1'"; tail -n 5 "$WORK/out"; kill -9 $job; return 1; }; }
# strike SIGNAL PROCESS...: sends a signal, and for STOP and KILL waits until each process is stopped or gone. If that
# fails it prints "not ok" and returns 1, because nothing after it would prove anything.
strike() {
    local signal=$1 process state; shift
    if kill -s "$signal" "$@" 2> /dev/null; then
        for process in "$@"; do
            for _ in $(seq 100); do
                state=$(sed -nE 's/^State:[[:space:]]*(.).*/\1/p' "/proc/$process/status" 2> /dev/null)
                case $signal:$state in STOP:T | STOP:t | KILL:Z | KILL:X | KILL:) continue 2 ;; STOP:* | KILL:*) sleep 0.05 ;; *) continue 2 ;; esac
            done
            ok 1 "SIG$signal has its effect on process $process (state $state)"; return 1
        done
        return 0
    fi
    ok 1 "SIG$signal finds a process to strike${*:+ ($*)}"; return 1
}
# await_step DIR: waits until a run in the background has done its first step, at most 60 s.
await_step() { within 60 [ -s "$1/metrics.jsonl" ]; }

# Writes 40,000 bytes of words from a small generator, learnable and the same on every machine.
awk 'BEGIN { srand(7); split("the quick brown fox jumps over a lazy dog while rain falls on old stones and rivers run to sea", w, " ");
             for (i = 0; i < 8000; i++) printf "%s%s", w[1 + int((i * 7 + int(i / 5) * 3) % 20)], i % 11 == 10 ? ".\n" : " " }' > "$WORK/text.txt"
"$TRAIN" tokenize "$WORK/text.txt" out="$WORK/data" val=0.1 > /dev/null || { echo "not ok tokenize"; exit 1; }

# The sizes are odd: heads of 14, 40 positions. A step has 12 samples, which 1, 2, 3 and 4 ranks can divide.
cat > "$WORK/tiny.json" <<JSON
{ "run": {"steps": 12, "dir": "$WORK/run"},
  "model": {"n_layer": 2, "n_head": 3, "n_embd": 42, "n_positions": 40, "vocab_size": 256},
  "data": {"train": "$WORK/data/train_*.bin", "val": "$WORK/data/val_*.bin"},
  "batch": {"global_tokens": 480, "micro_batch": 1},
  "optimizer": {"learning_rate": 1e-3},
  "schedule": {"name": "cosine", "warmup_steps": 3, "final_lr_fraction": 0.1},
  "precision": "fp32",
  "checkpoint": {"every": 6, "keep": 3},
  "outer": {"linger_minutes": 0},
  "eval": {"every": 6, "tokens": 400} }
JSON

train() { "$TRAIN" "$WORK/tiny.json" "$@"; }                                  # trains on one process
train_ranks() { local n=$1; shift; run_ranks "$n" "$TRAIN" "$WORK/tiny.json" "$@"; }
# values DIR KIND KEY: prints the values of KEY in the lines of KIND in DIR/metrics.jsonl, one a line
values() { grep "\"kind\":\"$2\"" "$1/metrics.jsonl" | sed -E "s/.*\"$3\":([^,}]*).*/\1/"; }
# steps_of DIR [KIND]: prints the steps of the lines of KIND ("train" if not given) in one line: "1 2 3 ".
steps_of() { values "$1" "${2:-train}" step | tr '\n' ' '; }
# near A B TOLERANCE: succeeds if two files of numbers agree within the relative tolerance. Both must have the same
# number of lines, at least one.
near() { paste -d' ' "$1" "$2" | awk -v tolerance="$3" 'NF != 2 { bad = 1 } { d = $1 - $2; if (d < 0) d = -d; s = $2 < 0 ? -$2 : $2; if (d > tolerance * s) bad = 1; n++ } END { exit bad || n == 0 }'; }
same_losses() { values "$1" train loss > "$WORK/.a"; values "$2" train loss > "$WORK/.b"; near "$WORK/.a" "$WORK/.b" "$3"; }
same_norms() { values "$1" train grad_norm > "$WORK/.a"; values "$2" train grad_norm > "$WORK/.b"; near "$WORK/.a" "$WORK/.b" "$3"; }
same_evals() { values "$1" eval loss > "$WORK/.a"; values "$2" eval loss > "$WORK/.b"; near "$WORK/.a" "$WORK/.b" "$3"; }
# like_one_rank NAME OF: checks that run NAME, on several ranks, has the losses, gradient norms and validation losses of
# run OF, on one rank.
like_one_rank() {
    expect "$1: losses of one rank" same_losses "$WORK/$2" "$WORK/$1" 1e-5
    expect "$1: norms of one rank" same_norms "$WORK/$2" "$WORK/$1" 1e-5
    expect "$1: held-out losses of one rank" same_evals "$WORK/$2" "$WORK/$1" 1e-5
}
same_weights() { cmp "$1/checkpoints/$3/model.safetensors" "$2/checkpoints/$3/model.safetensors" && cmp "$1/checkpoints/$3/optimizer.safetensors" "$2/checkpoints/$3/optimizer.safetensors"; }
