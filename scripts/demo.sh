#!/usr/bin/env bash
# From text to a trained model: `make demo` calls this after the build. Text: the King James Bible of Debian's bible-kjv, or a file.
#   scripts/demo.sh [TEXT]
set -u
invoked_from=$PWD
. "$(dirname "$0")/env.sh"
data=datasets/demo run=runs/demo config=configs/demo.json
die() { echo "demo: $*" >&2; exit 1; }
say() { echo; echo "== $*"; }

# An earlier demo's run folder goes, so that this one starts at step 0; anything else under that name stays, and so does a run at work.
remove_run() {
    [ -e "$run" ] || return 0
    if [ -e "$run/lock" ] && command -v flock >/dev/null; then flock -n "$run/lock" true || die "$run is in use by a demo at work"; fi
    [ -e "$run/config.json" ] || [ -z "$(ls -A "$run")" ] || [ "$(ls -A "$run")" = lock ] || die "$run is no run of the demo; move it away first"
    echo "the demo starts anew: $run of an earlier demo is removed"
    rm -rf "$run"
}

text=${1:-}
say "text"
if [ -n "$text" ]; then
    case $text in /*) ;; *) text=$invoked_from/$text ;; esac
    if [ ! -f "$text" ] || [ ! -r "$text" ]; then die "cannot read the text file $text"; fi
else
    command -v bible >/dev/null || die "no text: install the package bible-kjv (make deps), or name a file: make demo TEXT=path"
fi
remove_run
mkdir -p "$data" || die "cannot make $data"
if [ -n "$text" ]; then cp -- "$text" "$data/text.new" || die "cannot copy $text" # which may be the text of the last demo
else bible -f gen1:1-rev22:21 >"$data/text.new" || die "bible could not print its text"
fi
rm -f "$data"/train_*.bin "$data"/val_*.bin
mv "$data/text.new" "$data/text.txt" || die "cannot write $data/text.txt"
echo "$(wc -c <"$data/text.txt") bytes, $(wc -l <"$data/text.txt") lines in $data/text.txt; it begins"
head -n 2 "$data/text.txt" | cut -c 1-110 | sed 's/^/    /'
./train_gpt tokenize "$data/text.txt" out="$data" val=0.05 || exit

say "training: ./train_gpt $config"
started=$SECONDS
./train_gpt "$config" || exit
echo "start, training, evals and checkpoint took $((SECONDS - started)) s"

say "a sample: ./train_gpt sample $run tokens=400"
./train_gpt sample "$run" tokens=400 || exit

picture=$run/loss.svg
if command -v rsvg-convert >/dev/null && rsvg-convert -o "$run/loss.png" "$run/loss.svg"; then picture="$run/loss.png (and loss.svg)"; fi
say "where everything lies"
echo "text and tokens   $data/"
echo "loss curve        $picture"
echo "metrics           $run/metrics.jsonl"
echo "checkpoint        $(printf '%s\n' "$run"/checkpoints/step_* | tail -n 1)  (loads in Hugging Face transformers)"
echo "more text         ./train_gpt sample $run prompt='In the beginning' temperature=0.8"
sed -n 's/^{"kind":"eval","step":\([0-9]*\),"loss":\([0-9.e+-]*\)[,}].*$/\1 \2/p' "$run/metrics.jsonl" | tail -n 1 |
    awk '{printf "\nvalidation loss after step %d: %.4f nats per byte, %.4f bits per byte\n", $1, $2, $2 / log(2)}'
