#!/usr/bin/env bash
# `plan cluster=`: simulated times of published training steps are within their bounds. Also the output, and refusals.
. "$(dirname "${BASH_SOURCE[0]}")/lib/tiny.sh"
python3 test/sim/published.py "$TRAIN" "$WORK" || { echo "not ok the published steps"; exit 1; }

plan() { "$TRAIN" plan "$WORK/base.json" "$@" 2>&1; }
small="model.n_layer=8 model.n_embd=1536 batch.micro_batch=2 batch.global_tokens=262144"
text=$(plan ranks=32 cluster=dgx-h100 parallel.tensor=4 parallel.pipeline=2 mtbf_hours=3 $small)
expect "a plan for a cluster needs no data" [ $? -eq 0 ]
expect "every figure says simulated" [ "$(grep -E '[0-9] (s|ms|GiB|MiB|bytes|%|TFLOP)' <<< "$text" | grep -vc simulated)" -eq 0 ]
for word in "tensor 4 x shard 4 x stage 2" "across nodes of 8: shard, stage" "the fullest" "TFLOP/s a GPU" MFU bubble "waiting for other stages" sends goodput; do
    expect "it says: $word" grep -qF "$word" <<< "$text"
done
json=$(plan ranks=32 cluster=dgx-h100 parallel.tensor=4 parallel.pipeline=2 json=true $small)
expect "json=true prints one object with all its keys" python3 -c '
import json, sys
o = json.loads(sys.argv[1])
g = o["grid"]
assert [g[k] for k in ("tensor", "context", "pipeline", "interleave", "replicas", "data", "zero_stage", "micro_batch")] == [4, 1, 2, 1, 1, 4, 0, 2], g
assert o["ranks"] == 32 and o["simulated"] is True
for k in ("step_ms", "tokens_per_s", "tflops_per_gpu", "mfu", "bubble", "memory_bytes"): assert o[k] > 0, k
for k in ("exposed_ms", "sent"): assert set(o[k]) == {"tensor", "context", "shard", "replica", "stage"}, k
assert abs(o["tokens_per_s"] * o["step_ms"] / 1e3 - 262144) < 1
assert abs(o["mfu"] * 989 - o["tflops_per_gpu"]) < 1e-6 * 989
' "$json"
search=$(plan ranks=32 cluster=dgx-h100 search=true $small)
expect "a search lists ten grids, the quickest first" [ "$(grep -cE '^simulated +[0-9]+ +[0-9]+ +[0-9]+ +[0-9]+ +[0-9]+ ' <<< "$search")" -eq 10 ]
expect "and says why the next are slower" [ "$(grep -cE '\+[0-9.]+ m?s (compute|bubble|tensor|context|shard|replica)' <<< "$search")" -eq 9 ]
held=$(plan ranks=32 cluster=dgx-h100 search=true $small 'parallel={"tensor":4}')
expect "what a section of the command line says is held" [ "$(grep -cE '^simulated +[0-9]+ +[0-9]+ +[0-9]+ +[0-9]+ +[0-9]+ ' <<< "$held")" -eq 10 -a "$(grep -cE '^simulated +4 +[0-9]+ +[0-9]+ ' <<< "$held")" -eq 10 ]
experts="model.preset=qwen3-moe-small batch.micro_batch=1 batch.seq_len=1024 batch.global_tokens=65536"
expect "a search of a model with experts leaves out tensor ranks, which divide none" [ "$(plan ranks=8 cluster=dgx-h100 search=true $experts | grep -cE '^simulated +1 +[0-9]+ +[0-9]+ +[0-9]+ +[0-9]+ ')" -eq 10 ]
expect "a GPU's precision is planned on any build" diff <(plan ranks=32 cluster=dgx-h100 $small precision=fp16 | sed 1d) <(plan ranks=32 cluster=dgx-h100 $small precision=bf16 | sed 1d)
expect "a key of former versions with its default says nothing" diff <(plan ranks=32 cluster=dgx-h100 $small zero_bubble=false) <(plan ranks=32 cluster=dgx-h100 $small)
fit="fit=true parallel.tensor=4 parallel.pipeline=2 model.n_layer=2 model.n_embd=192 batch.global_tokens=$((2048 * 12)) batch.micro_batch=1"
expect "fit=true: the most ranks that the config allows" grep -q "fit          24 of 31 ranks" <<< "$(plan ranks=31 $fit)"
expect "with json=true the ranks alone, for scripts" [ "$(plan ranks=31 $fit json=true)" = '{"ranks":24,"of":31}' ]

refuses() { # TEXT CODE WORDS ARGUMENTS...
    local what=$1 code=$2 words=$3 said status; shift 3
    said=$(plan "$@"); status=$?
    expect "$what: exit $code, and says why" [ "$status" -eq "$code" ] && expect "  $words" grep -qF "$words" <<< "$said"
}
refuses "an unknown cluster" 64 "dgx-a100" ranks=8 cluster=dgx-x
refuses "a file that is not there" 64 "cannot be read" ranks=8 cluster=./none.json
echo '{"gpus_per_node": 8, "gpu": {"name": "G"}}' > "$WORK/bad.json"
refuses "a cluster with faults" 64 "bad.json:" ranks=8 cluster="$WORK/bad.json"
printf '\xff\xfe{\0}\0' > "$WORK/wide.json"
refuses "a cluster in UTF-16" 64 "wide.json:1:1: is UTF-16, not UTF-8: iconv -f utf-16 -t utf-8 $WORK/wide.json > NEW.json" ranks=8 cluster="$WORK/wide.json"
refuses "a search without a cluster" 64 "cluster=" ranks=8 search=true
refuses "json without a cluster" 64 "cluster=" ranks=8 json=true
refuses "the memory of a machine, and a cluster" 64 "leave out either" ranks=8 cluster=dgx-h100 memory=80GiB
refuses "a ledger, and a cluster" 64 "leave out either" ranks=8 cluster=dgx-h100 ledger=true
refuses "fewer ranks and another grid" 64 "give either fit=true" ranks=8 cluster=dgx-h100 search=true fit=true
refuses "fewer ranks than any grid of the config" 64 "parallel.tensor" ranks=3 fit=true json=true parallel.tensor=4
refuses "more ranks than are taken" 64 "1048576" ranks=1048577 cluster=dgx-h100
refuses "hours that are none" 64 "mtbf_hours=" ranks=8 cluster=dgx-h100 mtbf_hours=-1
refuses "a grid that does not divide the ranks" 64 "12 or 15 ranks" ranks=14 cluster=dgx-h100 parallel.tensor=3 model.n_embd=1536 batch.seq_len=1536
refuses "a key of former versions" 64 "no longer a key" ranks=8 cluster=dgx-h100 zero_bubble=true
refuses "no rate of this precision" 64 "gpu.flops" ranks=2 cluster=here precision=bf16
refuses "a model without room" 71 "parallel." ranks=64 cluster=dgx-h100 model.n_layer=48 model.n_head=64 model.n_embd=8192 batch.micro_batch=1
refuses "  and names the stage" 71 "memory of stage 0" ranks=64 cluster=dgx-h100 model.n_layer=48 model.n_head=64 model.n_embd=8192 batch.micro_batch=1
refuses "no grid with room" 71 "more ranks" ranks=8 cluster=dgx-h100 model.n_layer=96 model.n_head=96 model.n_embd=12288 batch.micro_batch=1 search=true
exit $STATUS
