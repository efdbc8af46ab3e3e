# model.arch llama end to end: reads the files that it writes and those of other programs, and checks what is refused.
KIND="model.arch=llama model.n_embd=64 model.n_head=4 model.n_kv_head=2 model.n_inner=96 model.rope_factor=8 model.rope_original_positions=64"
CLASS=LlamaForCausalLM NAME='"model.layers.1.self_attn.k_proj.weight":{"dtype":"F32","shape":[32,64]'
. "$(dirname "${BASH_SOURCE[0]}")/lib/kind.sh"
expect "plan names it" plan_says 'llama, 2 heads of keys, inner width 96'
expect "plan counts it" plan_says 'parameters   94528'

FROM="model.init_from=$(last run) run.dir=$WORK/x"
# shellcheck disable=SC2086
from() { mine $FROM "$@"; }
expect "other weights: theta" exits 65 'model.rope_theta = 10000, but the config of this run has 500000' from model.rope_theta=500000
expect "other weights: scaling" exits 65 'model.rope_factor = 8, but the config of this run has 4' from model.rope_factor=4
expect "other weights: a tied head" exits 65 'model.tie_embeddings = false, but the config of this run has true: set model.tie_embeddings=false' \
    from model.tie_embeddings=true
expect "other weights: heads of another size" exits 65 'model.n_head = 4, but the config of this run has 2' from model.n_head=2 model.n_kv_head=1 model.head_dim=32
# shellcheck disable=SC2086
expect "other weights: gpt2 takes none of llama" exits 65 'model_type is .*llama.*model.arch of this run is gpt2' train $FROM
sed -i 's/"llama3"/"yarn"/' "$(last from | sed s/12$/01/)/config.json"
expect "a scaling that is not known" exits 65 'rope_type is .*yarn.*llama3.* supported' mine model.init_from="$WORK/from/checkpoints/step_00000001" run.dir="$WORK/x"
expect "a resume as another kind" exits 64 'model.rope_theta is 20000, in the checkpoint 10000' mine run.dir="$WORK/run" model.rope_theta=20000
exit $STATUS
