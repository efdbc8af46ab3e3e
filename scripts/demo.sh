#!/usr/bin/env bash
# Trains a model on a text and prints samples; `make demo` calls this after the build. The text is the King James Bible
# of Debian's bible-kjv, or a file. A stopped demo of the same text is continued. A finished demo is kept: the next one
# trains in runs/demo-2 with datasets/demo-2, or the next free number.
#   scripts/demo.sh [TEXT]          TRAIN_GPT: the program (./train_gpt)
set -u
invoked_from=$PWD
. "$(dirname "$0")/env.sh"
data=datasets/demo run=runs/demo config=configs/demo.json program=${TRAIN_GPT:-./train_gpt}
if [ ./train_gpt -ef "$program" ]; then program=./train_gpt; fi # as the printed commands have it
die() { echo "demo: $*" >&2; exit 1; }
say() { echo; echo "== $*"; }
is_free() { [ ! -e "$1" ] || { [ -d "$1" ] && [ -z "$(ls -A "$1")" ]; }; }

text=${1:-}
say "text"
if [ -n "$text" ]; then
    case $text in /*) ;; *) text=$invoked_from/$text ;; esac
    if [ ! -f "$text" ] || [ ! -r "$text" ]; then die "cannot read the text file $text"; fi
else
    command -v bible >/dev/null || die "no text: install the package bible-kjv (make deps), or name a file: make demo TEXT=path"
fi
original=$text
if [ -z "$text" ]; then
    text=$(mktemp -t train_gpt-demo.XXXXXX); trap 'rm -f "$text"' EXIT
    bible -f gen1:1-rev22:21 > "$text" || die "bible could not print its text"
fi
# is_stopped RUN DATA: succeeds if folder RUN holds a run on the text in folder DATA whose last step is not saved yet.
is_stopped() {
    local steps; steps=$(grep -oE '"steps":[[:space:]]*[0-9]+' "$1/config.json" 2> /dev/null | head -n 1 | grep -o '[0-9]*$')
    [ -n "$steps" ] && [ -e "$2/tokens.json" ] && cmp -s "$text" "$2/text.txt" && [ ! -e "$1/checkpoints/step_$(printf %08d "$steps")" ] &&
        { [ ! -e "$1/lock" ] || flock -n "$1/lock" true; } # nobody trains in it
}
words=() number=1 tail='' prompt='In the beginning' stopped=''
until is_free $run$tail && is_free $data$tail; do
    if is_stopped $run$tail $data$tail; then stopped=1; break; fi
    number=$((number + 1)) tail=-$number
done
[ -z "$stopped" ] || echo "an earlier demo of this text was stopped: it goes on in $run$tail with $data$tail"
[ -n "$stopped" ] || [ -z "$tail" ] || echo "an earlier demo stays as it is in $run and $data: this one trains in $run$tail with $data$tail"
run+=$tail data+=$tail
if [ -n "$tail" ]; then words=("run.dir=$run" "data.train=$data/train_*.bin" "data.val=$data/val_*.bin"); fi
if [ -n "$original" ]; then words+=("sample.prompt=") prompt=$(head -c 200 "$text" | tr -cs 'A-Za-z' ' ' | cut -d' ' -f1-3); fi # the config's are of the Bible
mkdir -p "$data" || die "cannot make $data"
if [ -z "$stopped" ]; then cat -- "$text" > "$data/text.txt" || die "cannot copy $text"; fi
echo "$(wc -c <"$data/text.txt") bytes, $(wc -l <"$data/text.txt") lines in $data/text.txt; it begins"
head -n 2 "$data/text.txt" | cut -c 1-110 | sed 's/^/    /'
[ -n "$stopped" ] || "$program" tokenize "$data/text.txt" out="$data" val=0.05 || exit

command="$program $config"
for word in "${words[@]}"; do case $word in *\**) command+=" '$word'" ;; *) command+=" $word" ;; esac; done
say "training: $command"
started=$SECONDS
"$program" "$config" "${words[@]}" || {
    status=$?
    if [ $status -eq 75 ]; then echo "demo: stopped and saved; to go on: make demo${original:+ TEXT=$original}" >&2; fi
    if [ -n "$stopped" ] && [ $status -eq 64 ]; then echo "demo: to begin anew: mv $run $run.old" >&2; fi # the config is not the one it began with
    exit $status
}
echo "start, training, evals and checkpoint took $((SECONDS - started)) s"

say "a sample: $program sample $run tokens=400"
"$program" sample "$run" tokens=400 || exit

picture=$run/loss.svg
if command -v rsvg-convert >/dev/null && rsvg-convert -o "$run/loss.png" "$run/loss.svg"; then picture="$run/loss.png (and loss.svg)"; fi
say "where everything lies"
echo "text and tokens   $data/"
echo "loss curve        $picture"
echo "metrics           $run/metrics.jsonl"
echo "checkpoint        $(printf '%s\n' "$run"/checkpoints/step_* | grep -E '/step_[0-9]+$' | tail -n 1)  (loads in Hugging Face transformers)"
echo "more text         $program sample $run prompt='$prompt' temperature=0.8"
echo "your own text     docs/quickstart.md"
sed -n 's/^{"kind":"eval","step":\([0-9]*\),"loss":\([0-9.e+-]*\)[,}].*$/\1 \2/p' "$run/metrics.jsonl" | tail -n 1 |
    awk '{printf "\nvalidation loss after step %d: %.4f nats per byte, %.4f bits per byte\n", $1, $2, $2 / log(2)}'
