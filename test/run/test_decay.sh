#!/usr/bin/env bash
# The decay of a wsd schedule (warmup, stable, decay) begins at any checkpoint, if a resume with another run.steps says
# so.
cd "$(dirname "$0")/../.."
. test/run/lib/tiny.sh

wsd() { train schedule.name=wsd schedule.final_lr_fraction=0 schedule.decay_fraction=0.25 eval.every=0 "$@"; }
wsd run.dir="$WORK/trunk" run.steps=40 run.stop_step=6 > "$WORK/out" 2>&1; expect "a trunk stops in its stable part, 75" [ $? -eq 75 ]
cp -r "$WORK/trunk" "$WORK/branch"
wsd run.dir="$WORK/branch" run.steps=8 run.resume=must > "$WORK/out" 2>&1; ok $? "a branch decays from its checkpoint"
expect "its rate falls from there" cmp -s <(values "$WORK/branch" train lr | tail -n 3) <(printf '0.001\n0.001\n0.000292893219\n')
wsd run.dir="$WORK/straight" run.steps=8 > /dev/null 2>&1
expect "its weights are those of a run that never branched" same_weights "$WORK/branch" "$WORK/straight" step_00000008
expect "another shape on resume is refused, 64" exits 64 'schedule.decay is .*"linear".*in the checkpoint .*"sqrt"' \
    wsd run.dir="$WORK/trunk" run.steps=8 schedule.decay=linear
expect "and allowed where it is named" quiet wsd run.dir="$WORK/trunk" run.steps=8 schedule.decay=linear \
    'run.allow_change=["schedule.decay"]'
expect "that rate falls in a line" cmp -s <(values "$WORK/trunk" train lr | tail -n 2) <(printf '0.001\n0.0005\n')
wsd run.dir="$WORK/decayed" run.steps=8 optimizer.weight_decay_schedule=lr > /dev/null 2>&1
ok $? "weight decay falls with the rate"
! cmp -s "$WORK/decayed/checkpoints/step_00000008/model.safetensors" "$WORK/straight/checkpoints/step_00000008/model.safetensors"
ok $? "which is another run"
exit $STATUS
