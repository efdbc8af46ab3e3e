#!/usr/bin/env bash
# make test-interop, before check_hf.sh. The program's tokenizer gives the ids of Hugging Face tokenizers and of
# tiktoken (check_tokenizers.py). Its parquet reader gives the text of pyarrow (check_parquet.py). Sweeps equal a study
# of PyPI's Optuna (check_sweeps.py); test_sweep_search.sh tests Debian's. Installs these into a virtual environment
# under build/. Prints "skipped: ..." and ends with 0 if it cannot.
. "$(dirname "$0")/../run/lib/tiny.sh"
bash test/interop/check_tensorboard.sh || STATUS=1 # check_tensorboard.sh has its own virtual environment
DUMPS=("$B/test/data/dump_ids" "$B/test/data/dump_parquet")
. test/interop/venv.sh
in_venv interop "tokenizers, tiktoken, pyarrow, optuna" tokenizers tiktoken pyarrow optuna
make --no-print-directory B="$B" "${DUMPS[@]}" > "$WORK/log" 2>&1 || { tail "$WORK/log"; exit 1; }
GPT2=../shared/data/gpt2; [ -e $GPT2/vocab.json ] || GPT2=
"$PYTHON" test/interop/check_parquet.py "$B/test/data/dump_parquet" "$WORK" || STATUS=1
"$PYTHON" test/interop/check_tokenizers.py "$B/test/data/dump_ids" "$TRAIN" "$WORK" $GPT2 || STATUS=1
sed -E 's/"steps": 12/"steps": 9/; s/"every": 6/"every": 9/g; s/, "dir": "[^"]*"//' "$WORK/tiny.json" > "$WORK/sweep.json"
"$PYTHON" test/interop/check_sweeps.py "$TRAIN" "$WORK" || STATUS=1
exit $STATUS
