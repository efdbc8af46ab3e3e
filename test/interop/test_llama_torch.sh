# llama_torch.py, an independent reader of llama checkpoints, computes the same logits as the program. One model has an
# output head of its own and scaled positions, the other a tied head.
. "$(dirname "$0")/../run/lib/tiny.sh"
PYTHON=${PYTHON:-/usr/bin/python3}
if ! "$PYTHON" -c 'import torch' 2> /dev/null; then echo "skip python3-torch is not installed"; exit 0; fi

TOKENS="116 104 101 32 113 117 105 99 107 32 98 114 111 119 110 32 102 111 120 0 255 46 10 32 97 32 108 97 122 121 32 100 111 103"
LLAMA="model.arch=llama model.n_embd=64 model.n_head=4 model.n_kv_head=2 model.n_inner=96 optimizer.learning_rate=5e-3 model.norm_eps=1e-6"
compare() { # NAME KEY=VALUE...
    local name=$1; shift
    # shellcheck disable=SC2086
    train $LLAMA run.dir="$WORK/$name" "$@" > /dev/null 2>&1 &&
        "$B/test/run/dump_logits" "$WORK/$name/checkpoints/step_00000012" $TOKENS > "$WORK/ours" &&
        "$PYTHON" test/interop/llama_torch.py "$WORK/$name/checkpoints/step_00000012" $TOKENS > "$WORK/theirs" &&
        awk -f test/interop/compare_logits.awk "$WORK/ours" "$WORK/theirs"
    ok $? "$name: the same logits"
}
compare scaled model.rope_factor=8 model.rope_original_positions=64 model.rope_theta=500
compare tied model.tie_embeddings=true
exit $STATUS
