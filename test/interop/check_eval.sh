#!/usr/bin/env bash
# Part of make check-hf. The scores of ./train_gpt eval must equal those of lm-eval for the same checkpoint in
# transformers (check_eval.py). Installs both into the virtual environment of check_hf.sh. Prints "skipped: ..." and
# ends with 0 if it cannot.
. "$(dirname "$0")/../run/lib/tiny.sh"
. test/interop/venv.sh
with_modules hf "lm_eval, accelerate, transformers, torch" "lm-eval[hf]"
"$TRAIN" train-tokenizer "$WORK/text.txt" out="$WORK/bpe" vocab_size=300 > /dev/null && "$TRAIN" tokenize "$WORK/text.txt" out="$WORK/bpe" tokenizer="$WORK/bpe" val=0.1 > /dev/null
train run.dir="$WORK/bytes" optimizer.learning_rate=5e-3 > "$WORK/log" 2>&1 || { tail "$WORK/log"; exit 1; }
train run.dir="$WORK/merged" model.vocab_size=320 data.train="$WORK/bpe/train_*.bin" data.val="$WORK/bpe/val_*.bin" optimizer.learning_rate=5e-3 > "$WORK/log" 2>&1 || { tail "$WORK/log"; exit 1; }
"$PYTHON" test/interop/check_eval.py "$TRAIN" "$WORK" 2> "$WORK/log" || { tail -n 20 "$WORK/log"; STATUS=1; }
exit $STATUS
