#!/usr/bin/env bash
# Keys that change how a model of any kind trains, but not its tables of parameters: model.mup_base_n_embd,
# model.mup_base_head_dim, init.std, model.logit_softcap and model.z_loss. Tests grids, resume, evaluation of stored
# models, export and faults.
. "$(dirname "$0")/lib/tiny.sh"
ALL="model.mup_base_n_embd=21 model.mup_base_head_dim=7 init.std=0.04 model.logit_softcap=5 model.z_loss=0.001 run.steps=6"

# Grids that divide heads, layers, state and vocabulary have the losses and norms of one rank.
expect "one rank" quiet train run.dir="$WORK/one" $ALL model.n_head=2
for grid in parallel.tensor=2 parallel.pipeline=2 parallel.zero_stage=3; do
    expect "$grid" quiet train_ranks 2 run.dir="$WORK/$grid" $ALL model.n_head=2 $grid
    expect "$grid: losses of one rank" same_losses "$WORK/$grid" "$WORK/one" 2e-6
    expect "$grid: norms of one rank" same_norms "$WORK/$grid" "$WORK/one" 2e-5
done
expect "llama" quiet train run.dir="$WORK/llama" $ALL model.arch=llama model.n_embd=48 model.n_head=4 model.n_kv_head=2 model.n_inner=128

# Each tested key, such as init.std, changes the weights after three steps. A muP base that equals the width of the
# model changes nothing.
expect "plain" quiet train run.dir="$WORK/plain" run.steps=3
expect "µP at its base" quiet train run.dir="$WORK/base" run.steps=3 model.mup_base_n_embd=42 model.mup_base_head_dim=14
expect "is no µP, bit for bit" cmp "$WORK"/{plain,base}/checkpoints/step_00000003/model.safetensors
for key in model.mup_base_n_embd=21 init.std=0.04 model.logit_softcap=5 model.z_loss=0.001; do
    expect "$key" quiet train run.dir="$WORK/$key" run.steps=3 $key
    differs() { ! cmp -s "$WORK/$key/checkpoints/step_00000003/model.safetensors" "$WORK/plain/checkpoints/step_00000003/model.safetensors"; }
    expect "$key: other weights" differs
done
# The reported loss does not contain the z-loss: in the first step, with the same weights, the loss is unchanged.
values "$WORK/plain" train loss | head -1 > "$WORK/a"; values "$WORK/model.z_loss=0.001" train loss | head -1 > "$WORK/b"
expect "losses are told without the z-loss" cmp "$WORK/a" "$WORK/b"

# eval reads the logit cap from the checkpoint, so its loss equals that of the evaluation in training.
for run in one llama; do
    values "$WORK/$run" eval loss | tail -1 > "$WORK/a"
    "$TRAIN" eval "$WORK/$run" data="$WORK/data/val_*.bin" tokens=400 > "$WORK/out" 2>&1; awk '$1 == "loss" { print $2 }' "$WORK/out" > "$WORK/b"
    expect "$run: eval of the checkpoint" near "$WORK/a" "$WORK/b" 2e-5
    expect "$run: sample" quiet "$TRAIN" sample "$WORK/$run" tokens=4
done
expect "no export of a soft cap" exits 65 "logit_softcap = 5" "$TRAIN" export "$WORK/one" out="$WORK/hf"
offers() { train run.dir="$WORK/offers$1" run.steps=1 eval.every=0 model.logit_softcap="$1" | grep -c '^export '; }
expect "the end of a run offers an export, but not of a soft cap" [ "$(offers 0) $(offers 5)" = "1 0" ]
expect "export of µP: a plain model" quiet "$TRAIN" export "$WORK/model.mup_base_n_embd=21" out="$WORK/hf"
expect "config.json names the kind" grep -q '"model_type": "gpt2_softcap"' "$WORK/one/checkpoints/step_00000006/config.json"
expect "and the spread" grep -q '"initializer_range": 0.04' "$WORK/one/checkpoints/step_00000006/config.json"
expect "weights of a capped model want the cap" exits 65 "set model.logit_softcap=5" train run.dir="$WORK/from" run.steps=1 model.n_head=2 model.init_from="$WORK/one"
expect "and take it" quiet train run.dir="$WORK/from" run.steps=1 model.n_head=2 model.init_from="$WORK/one" model.logit_softcap=5

expect "a resume keeps the base" exits 64 "model.mup_base_n_embd is 0, in the checkpoint 21" train run.dir="$WORK/one" run.steps=8 model.n_head=2 \
    model.mup_base_head_dim=0 init.std=0.04 model.logit_softcap=5 model.z_loss=0.001
expect "a head's size without a base" exits 64 "model.mup_base_head_dim = 7 .*model.mup_base_n_embd" train model.mup_base_head_dim=7
expect "no spread" exits 64 "init.std must be a number from 1e-30 to 1, not 0" train init.std=0
expect "a cap below 0" exits 64 "model.logit_softcap must be" train model.logit_softcap=-1
expect "a z-loss above 1" exits 64 "model.z_loss must be" train model.z_loss=2
exit $STATUS
