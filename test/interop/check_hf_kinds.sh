# check_hf_kinds.sh - exchanges llama, qwen3 and qwen3-moe models with transformers, in both directions. A part of
# check_hf.sh, which defines the functions same and said.
SMALL="model.n_embd=64 model.n_head=4 model.n_kv_head=2 model.n_inner=96 optimizer.learning_rate=5e-3"
# there NAME RANKS KEY=VALUE...: trains a model and tests its checkpoint, and an export of it, in transformers.
there() {
    local name=$1 n=$2 folder=$WORK/$1/checkpoints/step_00000012; shift 2
    # shellcheck disable=SC2086
    train_ranks "$n" $SMALL run.dir="$WORK/$name" "$@" > "$WORK/log" 2>&1 || { tail "$WORK/log"; exit 1; }
    same "$name, a checkpoint" "$folder"
    said "$name" "$folder"
    "$TRAIN" export "$WORK/$name" out="$WORK/$name-bf16" dtype=bf16 > "$WORK/log" 2>&1 || { cat "$WORK/log"; exit 1; }
    same "$name, export bfloat16" "$WORK/$name-bf16" bfloat16
}
there llama-scaled 2 model.arch=llama parallel.tensor=2 model.rope_factor=8 model.rope_original_positions=64 model.rope_theta=500
there llama-wide 1 model.arch=llama model.head_dim=40 model.tie_embeddings=true
there qwen3-head 1 model.arch=qwen3 model.head_dim=24 model.rope_theta=1000
there qwen3-tied 2 model.arch=qwen3 model.head_dim=40 model.tie_embeddings=true parallel.pipeline=2
SMALL="model.n_embd=64 model.n_head=4 model.n_kv_head=2 optimizer.learning_rate=5e-3"
there qwen3-moe 2 model.arch=qwen3-moe model.head_dim=24 moe.experts=8 moe.top_k=2 moe.n_inner=32 parallel.zero_stage=3

"$PYTHON" test/interop/check_hf.py make_kinds "$WORK/made" || exit 1
from() { # from NAME KEY=VALUE...: trains a model that transformers made, at a rate of 0. Its logits must not change.
    local name=$1; shift
    same "its own $name" "$WORK/made/$name"
    train model.vocab_size=300 model.n_layer=1 run.steps=1 optimizer.learning_rate=0 eval.every=0 run.dir="$WORK/from-$name" \
        model.init_from="$WORK/made/$name" "$@" > "$WORK/log" 2>&1 || cat "$WORK/log"
    same "trained on from its own $name" "$WORK/from-$name/checkpoints/step_00000001" float32 "$WORK/made/$name"
}
from llama model.arch=llama model.n_embd=2048 model.n_head=32 model.n_kv_head=8 model.n_inner=8192 model.norm_eps=1e-5 model.rope_theta=500000 \
    model.rope_factor=32 model.tie_embeddings=true
from llama-heads model.arch=llama model.n_embd=64 model.n_head=4 model.n_kv_head=2 model.head_dim=40 model.n_inner=96 model.norm_eps=1e-6
from qwen3 model.arch=qwen3 model.n_embd=1024 model.n_head=16 model.n_kv_head=8 model.head_dim=128 model.n_inner=3072 model.rope_theta=1e6 \
    model.tie_embeddings=true
from qwen3-moe model.arch=qwen3-moe model.n_embd=64 model.n_head=4 model.n_kv_head=2 model.head_dim=24 model.rope_theta=1e6 \
    moe.experts=6 moe.top_k=3 \
    moe.n_inner=32 moe.norm_top_k=false
