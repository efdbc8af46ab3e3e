# model.arch llama, end to end: training, resume, every axis of the grid, sampling, its files and those of others, and what is refused.
. "$(dirname "${BASH_SOURCE[0]}")/lib/tiny.sh"
LLAMA="model.arch=llama model.n_embd=64 model.n_head=4 model.n_kv_head=2 model.n_inner=96 model.rope_factor=8 model.rope_original_positions=64"
llama() { train $LLAMA "$@"; }
ranks() { local n=$1; shift; train_ranks "$n" $LLAMA "$@"; }
last() { echo "$WORK/$1/checkpoints/step_00000012"; }

expect "12 steps" quiet llama run.dir="$WORK/run"
falls() { values "$1" eval loss | awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(NR == 3 && last < first - 0.5) }'; }
expect "the held-out loss falls" falls "$WORK/run"
heard() { "$@" > /dev/null 2>&1; }
llama run.dir="$WORK/half" run.stop_step=6 > /dev/null 2>&1
expect "a stopped run goes on" heard llama run.dir="$WORK/half"
expect "resume changes no bit" same_weights "$WORK/run" "$WORK/half" step_00000012
expect "blocks computed again change no bit" heard llama run.dir="$WORK/again" memory.recompute=block
expect "blocks computed again: the same weights" same_weights "$WORK/run" "$WORK/again" step_00000012

# The grid: each run's losses are those of one rank.
like() { # NAME TOLERANCE RANKS KEY=VALUE...
    local name=$1 tolerance=$2 n=$3; shift 3
    expect "$name" heard ranks "$n" run.dir="$WORK/$name" "$@"
    expect "$name: losses of one rank" same_losses "$WORK/run" "$WORK/$name" "$tolerance"
    expect "$name: norms of one rank" same_norms "$WORK/run" "$WORK/$name" "$tolerance"
}
like tensor 1e-5 2 parallel.tensor=2
like stages 1e-5 2 parallel.pipeline=2
like zero3 1e-5 2 parallel.zero_stage=3
LONG="model.n_positions=256 batch.seq_len=256 batch.global_tokens=512 run.steps=3 eval.every=0"
llama $LONG run.dir="$WORK/long" > /dev/null 2>&1
expect "context" heard ranks 2 $LONG parallel.context=2 run.dir="$WORK/context"
expect "context: losses of one rank" same_losses "$WORK/long" "$WORK/context" 1e-5
ORDERED="parallel.deterministic=true run.steps=3 eval.every=0 batch.global_tokens=320"
llama $ORDERED run.dir="$WORK/ordered" > /dev/null 2>&1
expect "deterministic on two ranks" heard ranks 2 $ORDERED run.dir="$WORK/ordered2"
expect "deterministic: the same bits" same_weights "$WORK/ordered" "$WORK/ordered2" step_00000003
expect "tied, in two stages" heard ranks 2 model.tie_embeddings=true parallel.pipeline=2 run.dir="$WORK/tied"
llama model.tie_embeddings=true run.dir="$WORK/tied1" > /dev/null 2>&1
expect "tied, in two stages: losses of one rank" same_losses "$WORK/tied" "$WORK/tied1" 1e-5

# Files: the names of LlamaForCausalLM, and weights taken back.
expect "config.json is LlamaForCausalLM's" grep -q LlamaForCausalLM "$(last run)/config.json"
expect "names as Hugging Face's" grep -aqF '"model.layers.1.self_attn.k_proj.weight":{"dtype":"F32","shape":[32,64]' "$(last run)/model.safetensors"
expect "a head of its own is stored" grep -aqF '"lm_head.weight"' "$(last run)/model.safetensors"
expect "weights to start from" heard llama run.dir="$WORK/from" run.steps=1 optimizer.learning_rate=0 model.init_from="$(last run)"
expect "weights to start from: no bit changes" cmp "$(last run)/model.safetensors" "$WORK/from/checkpoints/step_00000001/model.safetensors"
say() { "$TRAIN" sample "$1" prompt="the quick" tokens=40 seed=3 2> /dev/null; }
said=$(say "$WORK/run")
expect "sample says something" [ -n "$said" ]
expect "sample says the same again" [ "$said" = "$(say "$WORK/run")" ]
expect "plan counts it" [ "$("$TRAIN" plan "$WORK/tiny.json" $LLAMA | grep -c 'llama, 2 heads of keys, inner width 96\|parameters   94528')" -eq 2 ]

FROM="model.init_from=$(last run) run.dir=$WORK/x"
expect "other weights: theta" exits 65 'model.rope_theta = 10000, ours 500000' llama $FROM model.rope_theta=500000
expect "other weights: scaling" exits 65 'model.rope_factor = 8, ours 4' llama $FROM model.rope_factor=4
expect "other weights: a tied head" exits 65 'model.tie_embeddings = 0, ours 1' llama $FROM model.tie_embeddings=true
expect "other weights: gpt2 takes none of llama" exits 65 'model_type is .*llama.*model.arch is gpt2' train $FROM
sed -i 's/"llama3"/"yarn"/' "$(last from | sed s/12$/01/)/config.json"
expect "a scaling that is not known" exits 65 'rope_type is .*yarn.*llama3 is computed here' llama model.init_from="$WORK/from/checkpoints/step_00000001" run.dir="$WORK/x"
expect "a resume as another kind" exits 64 'model.rope_theta is 20000, in the checkpoint 10000' llama run.dir="$WORK/run" model.rope_theta=20000
exit $STATUS
