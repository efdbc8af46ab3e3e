#!/usr/bin/env bash
# make test-interop: TensorBoard's own reader finds the numbers of metrics.jsonl in the folder tb/ of a resumed run, and
# trackio imports it (check_tensorboard.py). Installs these into a virtual environment under build/. Prints "skipped:
# ..." and ends with 0 if it cannot.
. "$(dirname "$0")/../run/lib/tiny.sh"
. test/interop/venv.sh
in_venv tensorboard "tensorboard, trackio, tbparse" tensorboard trackio tbparse

train run.dir="$WORK/whole" > /dev/null || exit 1
# The newest checkpoint of this run is removed, so the resumed run repeats steps that are already in its first event
# file.
train run.dir="$WORK/run" run.steps=9 checkpoint.every=4 schedule.name=constant > /dev/null && rm -r "$WORK/run/checkpoints/step_00000009" &&
    train run.dir="$WORK/run" run.steps=11 checkpoint.every=4 schedule.name=constant optimizer.learning_rate=2e-3 'run.allow_change=["optimizer"]' > /dev/null || exit 1
export TRACKIO_DIR=$WORK/trackio HF_HUB_OFFLINE=1
timeout 300 "$PYTHON" test/interop/check_tensorboard.py "$WORK/whole" "$WORK/run"
