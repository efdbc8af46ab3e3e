#!/usr/bin/env bash
# Makes pictures of small runs in build/look/, for `make look`: loss.svg of a run with a resume, a skipped step and a
# rollback, light and dark; three runs in one plot; the terminal's curves.
set -eu
. "$(dirname "$0")/env.sh"
out=build/look work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
command -v rsvg-convert > /dev/null || { echo "rsvg-convert is missing: apt-get install librsvg2-bin"; exit 1; }
program=$B/train_gpt failing=$B/test/train_gpt-failpoints
export OMP_NUM_THREADS=2

cat docs/*.md README.md > "$work/text.txt"
"$program" tokenize "$work/text.txt" out="$work/data" val=0.1 > /dev/null
cat > "$work/base.json" <<JSON
{ "run": {"steps": 400},
  "model": {"n_layer": 2, "n_head": 4, "n_embd": 64, "n_positions": 64, "vocab_size": 256},
  "data": {"train": "$work/data/train_*.bin", "val": "$work/data/val_*.bin"},
  "batch": {"global_tokens": 1024, "micro_batch": 16},
  "optimizer": {"learning_rate": 3e-3},
  "schedule": {"name": "cosine", "warmup_steps": 40, "final_lr_fraction": 0.1},
  "checkpoint": {"every": 100, "keep": 5}, "eval": {"every": 50, "tokens": 8192} }
JSON
train() { "$@" > "$work/log" 2>&1 || [ $? = 75 ] || { tail "$work/log"; exit 1; }; } # 75: stopped, as asked
train "$program" "$work/base.json" run.dir="$work/first-try" run.stop_step=150
TRAIN_GPT_FAIL="guard.gradient@100:nan;guard.gradient@101:nan" train "$failing" "$work/base.json" run.dir="$work/first-try" run.on_nonfinite=skip run.stop_step=300
TRAIN_GPT_FAIL="guard.gradient@40:nan;guard.gradient@41:nan" train "$failing" "$work/base.json" run.dir="$work/first-try" run.on_nonfinite=rollback
train "$program" "$work/base.json" run.dir="$work/hotter" optimizer.learning_rate=1e-2
train "$program" "$work/base.json" run.dir="$work/wider" model.n_embd=96 run.steps=300

# picture SVG NAME: draws an SVG in its light and its dark colours as PNG. The dark colours are the second half of the
# style sheet, which rsvg-convert does not choose by itself.
picture() {
    cp "$1" "$out/$2.svg"
    rsvg-convert -z 1.5 -o "$out/$2-light.png" "$1"
    sed '/^@media/d; /^}$/d' "$1" | rsvg-convert -z 1.5 -o "$out/$2-dark.png"
}
picture "$work/first-try/loss.svg" loss
"$program" plot "$work/first-try" "$work/hotter" "$work/wider" out="$work/plot.svg" > /dev/null
picture "$work/plot.svg" plot
