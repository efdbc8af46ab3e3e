#!/usr/bin/env bash
# `plan gpu=`: a run on cards that this machine lacks agrees with the simulator, prints what it costs, and refuses
# contradictions.
. "$(dirname "${BASH_SOURCE[0]}")/lib/expect.sh"
TRAIN=$PWD/$B/train_gpt
cat > "$WORK/small.json" <<'JSON'
{ "run": {"steps": 1000}, "data": {"train": "data/train_*.bin"},
  "model": {"n_layer": 8, "n_head": 12, "n_embd": 1536, "n_positions": 1024, "vocab_size": 50257},
  "batch": {"global_tokens": 262144, "micro_batch": 4} }
JSON
cd "$WORK" || exit 1 # a folder without configs/clusters
plan() { "$TRAIN" plan small.json "$@" 2>&1; }

text=$(plan gpu=h100 ranks=8 price=2.5); status=$?
expect "a plan for a card needs no data and no GPU" [ $status -eq 0 ]
for word in "H100 80GB SXM" "largest batch.micro_batch 32, all that a rank has of a step" "% of the card's 989 TFLOP/s" "dollars at 2.5 a GPU hour" \
            "(Chinchilla: 20)" "is not there yet: epochs unknown" "checkpoint " "sends shard "; do
    expect "it says: $word" grep -qF "$word" <<< "$text"
done
expect "every figure says where it is from" [ "$(grep -E '[0-9] (s|ms|%|TFLOP|GPU)' <<< "$text" | grep -vcE '^(simulated|estimate)')" -eq 0 ]
expect "gpu=h100 is cluster=dgx-h100" diff <(plan gpu=H100 ranks=16 json=true | grep -E 'step_ms|mfu"|"memory_bytes|tokens_per_s') <(plan cluster=dgx-h100 ranks=16 json=true | grep -E 'step_ms|mfu"|"memory_bytes|tokens_per_s')
for gpu in a100 h100 h200 b200 3090 4090 5090; do plan gpu=$gpu ranks=8 json=true > "$gpu.json" || echo "not ok a plan for $gpu"; done
expect "hours, dollars and shares add up, and faster cards are faster" python3 -c '
import json
plans = {name: json.load(open(name + ".json")) for name in ("a100", "h100", "h200", "b200", "3090", "4090", "5090")}
for p in plans.values():
    assert abs(p["hours"] * 3.6e6 - 1000 * p["step_ms"]) < 1e-6 * p["hours"] * 3.6e6
    assert abs(p["gpu_hours"] - 8 * p["hours"]) < 1e-9 * p["gpu_hours"]
    assert abs(p["mfu"] * p["peak_flops"] / 1e12 - p["tflops_per_gpu"]) < 1e-6 * p["tflops_per_gpu"]
    assert p["tokens"] == 262144000 and abs(p["tokens_per_parameter"] * p["parameters"] - p["tokens"]) < 1
    assert 12 * p["parameters"] < p["checkpoint_bytes"] < 12.1 * p["parameters"]
order = [plans[name]["hours"] for name in ("b200", "h200", "h100", "a100", "5090", "4090", "3090")]
assert order == sorted(order) and len(set(order)) == 7, order
assert plans["h100"]["largest_micro_batch"] == 262144 // 1024 // 8
'
expect "the price of a GPU hour" python3 -c '
import json, sys
p = json.loads(sys.argv[1])
assert abs(p["dollars"] - 3.5 * p["gpu_hours"]) < 1e-9
' "$(plan gpu=h100 ranks=8 price=3.5 json=true)"
cp "$OLDPWD/configs/clusters/pcie-4090.json" mine.json
priced=$(plan gpu=4090 price=3 ranks=8 | grep -E '^estimate .* (GPU hours|dollars)')
expect "a plan with a price prints hours and dollars" [ "$(wc -l <<< "$priced")" -eq 2 ]
expect "  for a copy of a cluster's file, too" [ "$priced" = "$(plan cluster=mine.json price=3 ranks=8 | grep '^estimate')" ]
dollars=$(plan gpu=4090 price=3 ranks=8 json=true | grep dollars)
expect "  and as JSON" [ -n "$dollars" -a "$dollars" = "$(plan cluster=mine.json price=3 ranks=8 json=true | grep dollars)" ]
near=$(plan gpu=h100 ranks=8 json=true | grep step_ms) far=$(plan gpu=h100 ranks=8 nodes=8 json=true | grep step_ms)
expect "nodes in which each has one GPU exchange over InfiniBand: slower" [ "$(tr -dc '0-9.' <<< "$near" | cut -c1-8)" != "$(tr -dc '0-9.' <<< "$far" | cut -c1-8)" ]
expect "  and says across which" grep -q "across nodes of 1: shard" <<< "$(plan gpu=h100 ranks=8 nodes=8)"
full=$(plan gpu=4090 ranks=1 batch.micro_batch=64); status=$?
expect "what does not fit: exit 71, and the largest micro-batch" [ $status -eq 71 ] && expect "  says it" grep -qE 'largest batch.micro_batch [0-9]+: .* GiB' <<< "$full"
most=$(sed -nE 's/.*largest batch.micro_batch ([0-9]+):.*/\1/p' <<< "$full")
expect "that one fits, its double does not" eval 'plan gpu=4090 ranks=1 batch.micro_batch=$most > /dev/null && ! plan gpu=4090 ranks=1 batch.micro_batch=$((2 * most)) > /dev/null'

refuses() { # TEXT WORDS ARGUMENTS...
    local what=$1 words=$2 said status; shift 2
    said=$(plan "$@"); status=$?
    expect "$what: exit 64, and says why" [ "$status" -eq 64 ] && expect "  $words" grep -qF "$words" <<< "$said"
}
refuses "an unknown card" "did you mean h100?" gpu=h10 ranks=8
refuses "  the names there are" "a100, h100, h200, b200, 3090, 4090, 5090" gpu=zx80 ranks=8
refuses "nodes that do not divide the ranks" "ranks=8 cannot be divided evenly among nodes=3" gpu=h100 ranks=8 nodes=3
refuses "more GPUs than a node has" "nodes=2 or more" gpu=h100 ranks=16 nodes=1
refuses "a card and a cluster" "one of them" gpu=h100 cluster=here
refuses "a price of nothing" "price=-1" gpu=h100 price=-1
refuses "price= without gpu= or cluster=" "price= need a machine to simulate" price=2
refuses "nodes= without gpu=" "nodes=2 needs gpu=" nodes=2 ranks=2
refuses "the memory of this machine, and a card" "leave out either" gpu=h100 memory=80GiB
refuses "kernels, in a build of the CPU's" "make BACKEND=emu" gpu=h100 kernels=true
refuses "kernels without a card" "gpu=h100" kernels=true
refuses "rates without kernels" "rates=mine.json is read only with kernels=true" gpu=h100 rates=mine.json
refuses "kernels and the price of the whole job" "prints one step of one GPU" gpu=h100 kernels=true price=2
expect "a run of the plain plan has Chinchilla's figure, too" grep -qF "per parameter (Chinchilla: 20)" <<< "$(plan model.n_layer=1 model.n_embd=48)"
exit $STATUS
