#!/usr/bin/env bash
# Part of make check-hf: the scores of ./train_gpt eval equal those of lm-eval on the same checkpoint in transformers
# (check_eval.py). Installs both into the virtual environment of check_hf.sh. Prints "skipped: ..." and ends with 0 if
# it cannot.
. "$(dirname "$0")/../run/lib/tiny.sh"
VENV=$PWD/build/venv-hf
skip() { echo "skipped: $1"; exit 0; }
PYTHON=python3
if ! "$PYTHON" -c 'import lm_eval, accelerate, transformers, torch' 2> /dev/null; then
    PYTHON=$VENV/bin/python
    python3 -c 'import venv, ensurepip' 2> /dev/null || skip "python3-venv is not installed"
    if ! "$PYTHON" -c 'import lm_eval, accelerate, transformers, torch' 2> /dev/null; then
        [ -x "$PYTHON" ] || python3 -m venv "$VENV" > "$WORK/log" 2>&1 || skip "no virtual environment under build/: $(tail -n 1 "$WORK/log")"
        timeout 1200 "$VENV/bin/pip" install --quiet --disable-pip-version-check "lm-eval[hf]" > "$WORK/log" 2>&1 ||
            skip "lm-eval cannot be installed: $(grep -v '^$' "$WORK/log" | tail -n 1)"
    fi
fi
"$TRAIN" train-tokenizer "$WORK/text.txt" out="$WORK/bpe" vocab_size=300 > /dev/null && "$TRAIN" tokenize "$WORK/text.txt" out="$WORK/bpe" tokenizer="$WORK/bpe" val=0.1 > /dev/null
train run.dir="$WORK/bytes" optimizer.learning_rate=5e-3 > "$WORK/log" 2>&1 || { tail "$WORK/log"; exit 1; }
train run.dir="$WORK/merged" model.vocab_size=320 data.train="$WORK/bpe/train_*.bin" data.val="$WORK/bpe/val_*.bin" optimizer.learning_rate=5e-3 > "$WORK/log" 2>&1 || { tail "$WORK/log"; exit 1; }
"$PYTHON" test/interop/check_eval.py "$TRAIN" "$WORK" 2> "$WORK/log" || { tail -n 20 "$WORK/log"; STATUS=1; }
exit $STATUS
