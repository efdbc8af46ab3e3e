#!/usr/bin/env bash
# Makes pictures of the terminal in build/look/, for `make look`: a run at 80 and 120 columns that is stopped and
# resumed, help, error messages.
#   scripts/look_terminal.sh        LOOK_STEPS: number of steps to train (60)
set -u
. "$(dirname "$0")/env.sh"
command -v rsvg-convert > /dev/null || { echo "look: rsvg-convert is missing: apt-get install librsvg2-bin" >&2; exit 1; }
root=$PWD out=$PWD/build/look steps=${LOOK_STEPS:-60}
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
ln -s "$root/$B/train_gpt" "$root/configs" "$work/"
cd "$work" || exit 1

# look NAME COLUMNS COMMAND [TEXT]: makes a picture of the terminal after COMMAND has been typed at a prompt. With TEXT,
# Ctrl-C is typed once TEXT appears.
look() {
    local name=$1 columns=$2 command=$3 text=${4:-}
    printf '\033[32m$\033[0m %s\n' "$command" > "$name.ansi"
    python3 "$root/scripts/in_terminal.py" "$columns" ${text:+--interrupt-at "$text"} bash -c "exec $command" >> "$name.ansi"
    python3 "$root/scripts/terminal_svg.py" "$columns" < "$name.ansi" > "$name.svg" && rsvg-convert -z 1.5 -o "$out/$name.png" "$name.svg" && echo "look: build/look/$name.png"
}

{ command -v bible > /dev/null && bible -f gen1:1-exo40:38 || cat "$root"/docs/*.md; } > text.txt
run="./train_gpt configs/demo.json run.steps=$steps eval.every=$((steps / 4)) eval.tokens=8192 log.every=$((steps / 12)) sample.every=$((steps / 2)) sample.tokens=160"
look tokenize 80 "./train_gpt tokenize text.txt out=datasets/demo"
look stopped_80 80 "$run run.dir=runs/stopped" "ample at step"
look resumed_80 80 "$run run.dir=runs/stopped"
# Makes the picture in README, the training of `make demo`. To use it: cp build/look/run.png docs/pictures/
if command -v bible > /dev/null; then
    bible -f gen1:1-rev22:21 > bible.txt && rm -r datasets/demo && ./train_gpt tokenize bible.txt out=datasets/demo val=0.05 > /dev/null
    look run 80 "./train_gpt configs/demo.json log.every=250"
fi
for columns in 80 100 120; do look "run_$columns" "$columns" "$run run.dir=runs/demo_$columns"; done
look help 80 "./train_gpt --help"
look help_sample 80 "./train_gpt help sample"
look help_section 80 "./train_gpt help config schedule"
look help_key 80 "./train_gpt help config optimizer.learning_rate"
look fault 80 "./train_gpt configs/demo.json run.stepps=5 model.n_head=5"
look check 80 "./train_gpt check configs/demo.json"
