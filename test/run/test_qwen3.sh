# model.arch qwen3 end to end, with heads that together are wider than n_embd. Reads the files that it writes and those
# of other programs. Checks what is refused.
KIND="model.arch=qwen3 model.n_embd=64 model.n_head=4 model.n_kv_head=2 model.head_dim=24 model.n_inner=96 model.rope_theta=500"
CLASS=Qwen3ForCausalLM NAME='"model.layers.1.self_attn.k_norm.weight":{"dtype":"F32","shape":[24]'
. "$(dirname "${BASH_SOURCE[0]}")/lib/kind.sh"
expect "plan names it" plan_says 'qwen3, 2 heads of keys, inner width 96, 2 layers, 4 heads of 24'
expect "plan counts it" plan_says 'parameters   106912'
expect "plan counts attention's FLOPs by its heads" plan_says 'compute +589 kFLOP a token'

FROM="model.init_from=$(last run) run.dir=$WORK/x"
# shellcheck disable=SC2086
from() { mine $FROM "$@"; }
expect "other weights: heads of another size" exits 65 'model.n_head = 4, but the config of this run has 2' from model.n_head=2 model.n_kv_head=1 model.head_dim=48
expect "other weights: heads of the plain size" exits 65 'model.head_dim = 24, but the config of this run has 16' from model.head_dim=0
expect "other weights: epsilon" exits 65 'model.norm_eps = 1e-06, but the config of this run has 1e-05' from model.norm_eps=1e-5
expect "other weights: llama takes none of qwen3" exits 65 'model_type is .*qwen3.*model.arch is llama' from model.arch=llama
sed -i 's/"use_sliding_window": false/"use_sliding_window": true/; s/"sliding_window": null/"sliding_window": 3, "max_window_layers": 0/' "$(last from | sed s/12$/01/)/config.json"
expect "a window is refused" exits 65 'use_sliding_window is true; only false is supported' mine model.init_from="$WORK/from/checkpoints/step_00000001" run.dir="$WORK/x"
expect "a resume with other heads" exits 64 'model.head_dim is 48, in the checkpoint 24' mine run.dir="$WORK/run" model.head_dim=48 model.n_head=2 model.n_kv_head=1 run.allow_change='["model.n_head", "model.n_kv_head"]'
expect "more tensor ranks than heads of keys" exits 64 'parallel.tensor = 4 must divide model.n_kv_head = 2: 2' ranks 4 parallel.tensor=4 run.dir="$WORK/x"
exit $STATUS
