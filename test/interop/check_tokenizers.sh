#!/usr/bin/env bash
# make test-interop: our tokenizer gives the ids of Hugging Face tokenizers and of tiktoken (check_tokenizers.py). Installs these into a virtual
# environment under build/; ends with "skipped: ..." and status 0 where it cannot.
. "$(dirname "$0")/../run/lib/tiny.sh"
bash test/interop/check_tensorboard.sh || exit 1
VENV=$PWD/build/venv-tokenizers PYTHON=$PWD/build/venv-tokenizers/bin/python
skip() { echo "skipped: $1"; exit 0; }
python3 -c 'import venv, ensurepip' 2> /dev/null || skip "python3-venv is not installed"
if ! "$PYTHON" -c 'import tokenizers, tiktoken' 2> /dev/null; then
    python3 -m venv "$VENV" > "$WORK/log" 2>&1 || skip "no virtual environment under build/: $(tail -n 1 "$WORK/log")"
    timeout 600 "$VENV/bin/pip" install --quiet --disable-pip-version-check tokenizers tiktoken > "$WORK/log" 2>&1 || skip "tokenizers and tiktoken cannot be installed: $(grep -v '^$' "$WORK/log" | tail -n 1)"
fi
make --no-print-directory B="$B" "$B/test/data/dump_ids" > "$WORK/log" 2>&1 || { tail "$WORK/log"; exit 1; }
GPT2=../shared/data/gpt2; [ -e $GPT2/vocab.json ] || GPT2=
"$PYTHON" test/interop/check_tokenizers.py "$B/test/data/dump_ids" "$TRAIN" "$WORK" $GPT2
