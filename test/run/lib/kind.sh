# kind.sh - tests a kind of model: training, resume, every axis of the grid, sampling, and its files read back.
# test_llama.sh, test_qwen3.sh and test_qwen3_moe.sh source it. They set KIND (keys and values for a width of 64), CLASS
# (the name of Hugging Face's class) and NAME (a tensor in its files). They may set STILL: keys with which a step at
# learning rate 0 changes no weight. AXIS is the axis to test in place of tensor, for a kind that has no tensor ranks.
# TIED=1 means that the output head can only be the embedding.
. "$(dirname "${BASH_SOURCE[0]}")/tiny.sh"
# shellcheck disable=SC2086
mine() { train $KIND "$@"; }
# shellcheck disable=SC2086
ranks() { local n=$1; shift; train_ranks "$n" $KIND "$@"; }
# shellcheck disable=SC2086
plan_says() { [ "$("$TRAIN" plan "$WORK/tiny.json" $KIND | grep -cE "$1")" -eq 1 ]; }
last() { echo "$WORK/$1/checkpoints/step_00000012"; }

expect "12 steps" quiet mine run.dir="$WORK/run"
falls() { values "$1" eval loss | awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(NR == 3 && last < first - 0.5) }'; }
expect "the held-out loss falls" falls "$WORK/run"
heard() { "$@" > /dev/null 2>&1; }
mine run.dir="$WORK/half" run.stop_step=6 > /dev/null 2>&1
expect "a stopped run goes on" heard mine run.dir="$WORK/half"
expect "resume changes no bit" same_weights "$WORK/run" "$WORK/half" step_00000012
expect "blocks computed again change no bit" heard mine run.dir="$WORK/again" memory.recompute=block
expect "blocks computed again: the same weights" same_weights "$WORK/run" "$WORK/again" step_00000012

# like: trains on a grid of ranks, and compares the losses and norms with those of one rank.
like() { # NAME TOLERANCE RANKS KEY=VALUE...
    local name=$1 tolerance=$2 n=$3; shift 3
    expect "$name" heard ranks "$n" run.dir="$WORK/$name" "$@"
    expect "$name: losses of one rank" same_losses "$WORK/run" "$WORK/$name" "$tolerance"
    expect "$name: norms of one rank" same_norms "$WORK/run" "$WORK/$name" "$tolerance"
}
AXIS=${AXIS:-tensor}
like "$AXIS" 1e-5 2 parallel."$AXIS"=2
like stages 1e-5 2 parallel.pipeline=2
like zero3 1e-5 2 parallel.zero_stage=3
ranks 2 run.dir="$WORK/moved" parallel."$AXIS"=2 run.stop_step=6 > /dev/null 2>&1
like moved 1e-5 2 parallel.pipeline=2
LONG="model.n_positions=256 batch.seq_len=256 batch.global_tokens=512 run.steps=3 eval.every=0"
mine $LONG run.dir="$WORK/long" > /dev/null 2>&1
expect "$AXIS and context" heard ranks 4 $LONG parallel."$AXIS"=2 parallel.context=2 memory.recompute=light run.dir="$WORK/context"
expect "$AXIS and context: losses of one rank" same_losses "$WORK/long" "$WORK/context" 1e-5
ORDERED="parallel.deterministic=true run.steps=3 eval.every=0 batch.global_tokens=320"
mine $ORDERED run.dir="$WORK/ordered" > /dev/null 2>&1
expect "deterministic on two ranks" heard ranks 2 $ORDERED run.dir="$WORK/ordered2"
expect "deterministic: the same bits" same_weights "$WORK/ordered" "$WORK/ordered2" step_00000003
expect "tied, in two stages" heard ranks 2 model.tie_embeddings=true parallel.pipeline=2 run.dir="$WORK/tied"
mine model.tie_embeddings=true run.dir="$WORK/tied1" > /dev/null 2>&1
expect "tied, in two stages: losses of one rank" same_losses "$WORK/tied" "$WORK/tied1" 1e-5

# The files have the names of Hugging Face's class, and their weights can be read again.
expect "config.json is $CLASS's" grep -q "$CLASS" "$(last run)/config.json"
expect "names as Hugging Face's" grep -aqF "$NAME" "$(last run)/model.safetensors"
[ "${TIED-0}" = 1 ] || expect "a head of its own is stored" grep -aqF '"lm_head.weight"' "$(last run)/model.safetensors"
expect "weights to start from" heard mine run.dir="$WORK/from" run.steps=1 optimizer.learning_rate=0 $STILL model.init_from="$(last run)"
expect "weights to start from: no bit changes" cmp "$(last run)/model.safetensors" "$WORK/from/checkpoints/step_00000001/model.safetensors"
say() { "$TRAIN" sample "$1" prompt="the quick" tokens=40 seed=3 2> /dev/null; }
said=$(say "$WORK/run")
expect "sample says something" [ -n "$said" ]
expect "sample says the same again" [ "$said" = "$(say "$WORK/run")" ]
