#!/usr/bin/env bash
# make check-hf: a checkpoint's folder loads in Hugging Face transformers as it is, with the same logits (1e-4 in fp32)
# and greedy text.
# Installs transformers into a virtual environment under build/; ends with "skipped: ..." and status 0 where it cannot.
. "$(dirname "$0")/../run/lib/tiny.sh"
VENV=$PWD/build/venv-hf
skip() { echo "skipped: $1"; exit 0; }

PYTHON=python3 # where it has transformers, else one of our own
if ! "$PYTHON" -c 'import transformers, torch' 2> /dev/null; then
    PYTHON=$VENV/bin/python
    python3 -c 'import venv, ensurepip' 2> /dev/null || skip "python3-venv is not installed"
    if ! "$PYTHON" -c 'import transformers, torch' 2> /dev/null; then
        python3 -m venv "$VENV" > "$WORK/log" 2>&1 || skip "no virtual environment under build/: $(tail -n 1 "$WORK/log")"
        pip() { timeout 1200 "$VENV/bin/pip" install --quiet --disable-pip-version-check "$@" > "$WORK/log" 2>&1; }
        pip --retries 0 --timeout 10 --index-url https://download.pytorch.org/whl/cpu torch # without CUDA's libraries, where it can be had
        pip torch transformers ||
            skip "transformers cannot be installed: $(grep -v '^$' "$WORK/log" | tail -n 1)"
    fi
fi
"$PYTHON" -c 'import transformers, torch' 2> "$WORK/log" || skip "transformers does not start: $(tail -n 1 "$WORK/log")"

make --no-print-directory B="$B" "$B/test/run/dump_logits" > "$WORK/log" 2>&1 || { tail "$WORK/log"; exit 1; }
TOKENS="116 104 101 32 113 117 105 99 107 32 98 114 111 119 110 32 102 111 120 0 255 46 10 32 97 32 108 97 122 121 32 100 111 103"
VERSION=$("$PYTHON" -c 'import transformers; print(transformers.__version__)')
for grid in "1" "4 model.n_head=2 model.n_embd=32 parallel.tensor=2 parallel.pipeline=2"; do
    # shellcheck disable=SC2086
    train_ranks $grid run.dir="$WORK/${grid%% *}" optimizer.learning_rate=5e-3 > "$WORK/log" 2>&1 || { tail "$WORK/log"; exit 1; }
    folder=$WORK/${grid%% *}/checkpoints/step_00000012
    # shellcheck disable=SC2086
    "$B/test/run/dump_logits" "$folder" $TOKENS > "$WORK/ours" && "$PYTHON" test/interop/check_hf.py "$folder" $TOKENS > "$WORK/theirs" &&
        awk -f test/interop/compare_logits.awk "$WORK/ours" "$WORK/theirs"
    ok $? "transformers $VERSION gives the same logits, trained on ${grid%% *} rank(s)"
    "$TRAIN" sample "$folder" prompt="the quick" temperature=0 tokens=31 > "$WORK/ours" 2> "$WORK/log" &&
        "$PYTHON" test/interop/check_sample.py "$folder" 31 "the quick" > "$WORK/theirs" 2>> "$WORK/log" &&
        cmp "$WORK/ours" "$WORK/theirs"
    ok $? "and the same greedy text"
done
exit $STATUS
