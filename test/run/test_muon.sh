#!/bin/bash
# test_muon.sh - optimizer.name=muon: trains, resumes with equal bits, gives the same results on a grid, and prints what
# it refuses.
. test/run/lib/tiny.sh

muon() { train optimizer.name=muon "$@"; }
muon_ranks() { local n=$1; shift; train_ranks "$n" optimizer.name=muon "$@"; }
LAST=step_00000012

quiet muon run.dir="$WORK/one" parallel.deterministic=true
ok $? "a run with muon"
# Checks v, the second moment, in the files. AdamW updates the embeddings, so v is set for wte, the first 256 x 42
# elements. Muon updates matrices of blocks, so v of the first one is zero. That matrix follows wte, 40 x 42 elements of
# wpe and two vectors of 42.
python3 - "$WORK/one/checkpoints/$LAST/optimizer.safetensors" <<'PY'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
head = struct.unpack("<Q", data[:8])[0]
names = {k: v["data_offsets"] for k, v in json.loads(data[8:8 + head]).items() if k != "__metadata__"}
values = {k: struct.unpack(f"<{(b - a) // 4}f", data[8 + head + a:8 + head + b]) for k, (a, b) in names.items()}
matrix, first = 256 * 42 + 40 * 42 + 2 * 42, slice(0, 42)
sys.exit(not (list(values) == ["momentum", "v"] and any(values["v"][first]) and all(values["momentum"][matrix:matrix + 42 * 126])
              and not any(values["v"][matrix:matrix + 42 * 126]) and all(v > 0 for v in values["v"][matrix - 84:matrix])))
PY
ok $? "its files hold momentum, and v of what is no matrix"
quiet train run.dir="$WORK/adamw" run.stop_step=6
ok $(( $(same_losses "$WORK/one" "$WORK/adamw" 0; echo $?) == 0 )) "other losses than AdamW's"

quiet muon run.dir="$WORK/halves" run.stop_step=6 parallel.deterministic=true
quiet muon run.dir="$WORK/halves" parallel.deterministic=true
expect "resumed: the same bits" same_weights "$WORK/one" "$WORK/halves" $LAST

for stage in 0 1; do
    quiet muon_ranks 2 run.dir="$WORK/stage$stage" parallel.deterministic=true parallel.zero_stage=$stage run.verify_every=2
    expect "two ranks, stage $stage, sums in order: the same bits" same_weights "$WORK/one" "$WORK/stage$stage" $LAST
done
quiet muon_ranks 3 run.dir="$WORK/ring" run.verify_every=2
expect "three ranks, sums by the ring: the same losses" same_losses "$WORK/one" "$WORK/ring" 2e-6
quiet muon_ranks 2 run.dir="$WORK/stages" parallel.pipeline=2
expect "two stages: the same losses" same_losses "$WORK/one" "$WORK/stages" 2e-6
quiet muon_ranks 2 run.dir="$WORK/bf16" precision=bf16
expect "bf16, two ranks: about the losses of fp32" same_losses "$WORK/one" "$WORK/bf16" 2e-3

# grid OF RANKS KEYS...: checks that a run on a grid of ranks has the losses of run OF, which one rank trained with
# otherwise equal keys. The models have 2 heads, so that 2 tensor ranks can divide the matrices.
grid() {
    local alone=$1 n=$2; shift 2
    quiet muon_ranks "$n" run.dir="$WORK/grid" run.resume=never model.n_head=2 run.steps=8 run.verify_every=4 "$@"
    expect "$n ranks, $*: the losses of one" same_losses "$WORK/$alone" "$WORK/grid" 2e-6
    rm -rf "$WORK/grid"
}
quiet muon run.dir="$WORK/heads" model.n_head=2 run.steps=8
quiet muon run.dir="$WORK/neurons" model.n_head=2 run.steps=8 optimizer.normuon=true optimizer.newton_schulz=polar_express
ok $(( $(same_losses "$WORK/heads" "$WORK/neurons" 1e-6; echo $?) == 0 )) "NorMuon has other losses"
grid heads 2 parallel.tensor=2
grid heads 4 parallel.pipeline=2 parallel.zero_stage=2
grid heads 4 parallel.replicas=2 parallel.zero_stage=3
grid neurons 4 parallel.tensor=2 parallel.zero_stage=3 optimizer.normuon=true optimizer.newton_schulz=polar_express

# In a llama model q, k, v, gate and up are separate matrices, which tensor ranks divide by rows; o and down are divided
# by columns.
LLAMA="model.arch=llama model.n_embd=64 model.n_head=4 model.n_kv_head=2 model.n_inner=96"
quiet muon run.dir="$WORK/llama" run.steps=8 $LLAMA
grid llama 2 $LLAMA parallel.tensor=2
grid llama 4 $LLAMA parallel.tensor=2 parallel.zero_stage=3

# Checkpoints of every grid contain NorMuon's moments: a run that begins on one grid continues on another.
normuon="model.n_head=2 run.steps=8 optimizer.normuon=true optimizer.newton_schulz=polar_express"
quiet muon_ranks 2 run.dir="$WORK/moves" $normuon run.stop_step=4 parallel.tensor=2
quiet muon_ranks 3 run.dir="$WORK/moves" $normuon parallel.zero_stage=3
expect "NorMuon, resumed on another grid: the same losses" same_losses "$WORK/neurons" "$WORK/moves" 2e-6

expect "refused by name: memory.offload" exits 64 'optimizer.name = "muon" .*memory.offload = .*optimizer.name = "adamw"' muon run.dir="$WORK/no" memory.offload=optimizer
expect "refused by name: NorMuon of AdamW" exits 64 'optimizer.normuon = true with optimizer.name = "adamw".*optimizer.name = "muon"' \
    train run.dir="$WORK/no" optimizer.normuon=true
expect "refused by name: a server's update" exits 64 'optimizer.name = "muon" with outer.send' \
    muon run.dir="$WORK/no" outer.server=127.0.0.1:1 outer.every=6 outer.send=gradients outer.wait=none
expect "refused: a checkpoint of AdamW" exits 64 'optimizer.name' muon run.dir="$WORK/adamw"
expect "nothing was written for what was refused" [ ! -e "$WORK/no" ]
exit $STATUS
