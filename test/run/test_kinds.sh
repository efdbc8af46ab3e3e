#!/usr/bin/env bash
# A FIFO, a socket, a device or a folder in place of a file. Each reader names the path and its kind at once, and does
# not hang. Inputs that may be pipes still work.
# Timed: a refusal must come at once.
. "$(dirname "$0")/lib/tiny.sh"
command -v python3 > /dev/null || { echo "skip files of other kinds: python3 is not installed"; exit 0; }
cd "$WORK" || exit 1
small() { train eval.every=0 checkpoint.every=0 "$@"; }
"$TRAIN" train-tokenizer text.txt out=bpe vocab_size=300 > /dev/null || exit 1
small run.dir=run run.steps=2 > /dev/null 2>&1 || { echo "not ok a run"; exit 1; }
small run.dir=other run.steps=2 > /dev/null 2>&1
"$TRAIN" export run out=model > /dev/null || exit 1
step=run/checkpoints/step_00000002
soon() { timeout 20 "$@"; }
put() { # KIND PATH
    case $1 in
        FIFO) mkfifo "$2" ;;
        socket) python3 -c 'import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])' "$2" ;;
        "character device") mknod "$2" c 1 5 2> /dev/null || ln -s /dev/zero "$2" ;;
        directory) mkdir "$2" ;;
    esac
}
# refused PATTERN COMMAND...: checks that the command ends with a code from 64 to 77 and that one line of its output
# matches
refused() {
    local pattern=$1 status; shift
    soon "$@" > out 2> err < /dev/null; status=$?
    [ $status -ge 64 -a $status -le 77 ] && [ "$(cat out err | grep -cE "$pattern")" = 1 ] && return 0
    echo "exit $status, expected a line like: $pattern"; head -5 err; return 1
}
# instead FILE COMMAND...: puts other kinds of files in place of FILE, and checks that the command is refused with a
# line that names file and kind
instead() {
    local file=$1 kind said; shift
    mv "$file" kept 2> /dev/null
    for kind in FIFO socket "character device" directory; do
        put "$kind" "$file"
        said="is a $kind, not a file"
        [ "$kind" != directory ] || said="($said|is a folder|holds no tokenizer)"
        [ ! -L "$file" ] || said="($said|is a symbolic link, not a file)"
        expect "${file##*/}, a $kind: $(basename "$1") ${*:2:2}" refused "${file##*/}.* $said" "$@"
        rm -r "$file"
    done
    [ ! -e kept ] || mv kept "$file"
}
run_of() { "$TRAIN" tiny.json eval.every=0 checkpoint.every=0 run.steps=3 "$@"; }
export -f run_of; export TRAIN
resume=(bash -c 'run_of run.dir=run "$@"' resume)
instead run/metrics.jsonl "$TRAIN" watch run once=true
instead run/metrics.jsonl "$TRAIN" plot run out=p.svg
instead run/metrics.jsonl "$TRAIN" inspect run
for kind in FIFO "character device"; do
    put "$kind" odd.jsonl
    expect "inspect: a $kind" refused "odd.jsonl is a $kind, not a file" "$TRAIN" inspect odd.jsonl; rm odd.jsonl
done
instead run/metrics.jsonl "$TRAIN" diff other run
instead run/metrics.jsonl "$TRAIN" export run out=e
instead run/metrics.jsonl "${resume[@]}"
instead run/config.json "$TRAIN" run
instead run/config.json "$TRAIN" watch run once=true
instead run/config.json "${resume[@]}"
instead run/loss.svg "${resume[@]}"
instead run/lock "$TRAIN" watch run once=true
instead run/lock "${resume[@]}"
instead run/run_id "${resume[@]}" checkpoint.memory_every=1 checkpoint.memory_dir="$WORK"
instead $step/state.json "$TRAIN" inspect $step
instead $step/state.json "$TRAIN" export $step out=e
instead $step/config.json "$TRAIN" sample run tokens=2
instead model/config.json "$TRAIN" sample model tokens=2
instead model/config.json "$TRAIN" tiny.json run.dir=new model.init_from=model
instead model/model.safetensors "$TRAIN" sample model tokens=2
instead model/model.safetensors "$TRAIN" tiny.json run.dir=new model.init_from=model
instead model/tokenizer.json "$TRAIN" sample model tokens=2
instead bpe/tokenizer.json "$TRAIN" tokenize text.txt out=x tokenizer=bpe/tokenizer.json
instead data/train_000000.bin "$TRAIN" check tiny.json data.train=data/train_000000.bin
instead data/tokens.json "$TRAIN" tiny.json run.dir=new
mkdir notes vocabulary
instead notes/tokens.json "$TRAIN" tokenize text.txt out=notes
instead notes/tokens.inputs.jsonl "$TRAIN" tokenize text.txt out=notes
for kind in FIFO socket "character device" directory; do
    put "$kind" vocabulary/tokenizer.json
    expect "train-tokenizer: a $kind stays" refused "vocabulary/tokenizer.json is there already" "$TRAIN" train-tokenizer text.txt out=vocabulary vocab_size=270
    expect "it is as it was" [ -e vocabulary/tokenizer.json -a ! -f vocabulary/tokenizer.json ]; rm -r vocabulary/tokenizer.json
done
mkdir server
instead server/leases.jsonl "$TRAIN" serve tiny.json run.dir=server outer.server=127.0.0.1:39613 outer.every=3 outer.key=k
instead p.svg "$TRAIN" plot run out=p.svg
ln -s nothing p.svg
expect "plot: a link to nothing stays" refused "out=p.svg is a symbolic link, not a file" "$TRAIN" plot run out=p.svg
expect "plot: csv= likewise" refused "csv=p.svg is a symbolic link, not a file" "$TRAIN" plot run out=q.svg csv=p.svg
ln -sf /proc/self/fd/1 p.svg
expect "plot: so does a link to standard output" refused "out=p.svg is a symbolic link, not a file" "$TRAIN" plot run out=p.svg
expect "it is a link, and no second file is there" [ -L p.svg -a ! -e q.svg ]; rm p.svg
expect "nothing was made" [ ! -e e -a ! -e p.svg -a ! -e new/metrics.jsonl ]
expect "no lock stays" [ -z "$(find . -name '*.lock')" ]

# --- pipes are inputs as before
"$TRAIN" check <(cat tiny.json) > out 2>&1; ok $? "a config from a pipe"
"$TRAIN" tokenize <(cat text.txt) out=piped val=0.1 > out 2>&1; ok $? "a text from a pipe"
expect "it has the same tokens" cmp piped/train_000000.bin data/train_000000.bin
cat text.txt | "$TRAIN" train-tokenizer - out=bpe2 vocab_size=300 > out 2>&1; ok $? "a vocabulary from a pipe"
expect "it is the same" cmp bpe/tokenizer.json bpe2/tokenizer.json
"$TRAIN" sample run prompt=@<(echo hello) tokens=2 > out 2>&1; ok $? "a prompt from a pipe"
printf '{"context": "the quick", "choices": [" brown", " x"], "gold": 0}\n' > task.jsonl
"$TRAIN" eval run tasks=<(cat task.jsonl) > out 2>&1; ok $? "a task from a pipe"
ln -s metrics.jsonl run/linked.jsonl; "$TRAIN" inspect run/linked.jsonl > out 2>&1; ok $? "a link to a file is a file"
exit $STATUS
