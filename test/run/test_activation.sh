# model.activation from end to end: training, resume, grids, weights to start from, export, and what is refused.
. "$(dirname "$0")/lib/tiny.sh"
heard() { "$@" > /dev/null 2>&1; }
code() { local want=$1; shift; "$@" > /dev/null 2>&1; [ $? -eq "$want" ]; }
own() { train run.steps=4 eval.every=0 checkpoint.every=4 "$@"; }
last() { echo "$WORK/$1/checkpoints/step_00000004"; }
names() { grep -qE "\"(activation|activation_function)\":[[:space:]]*\"$1\"" "$2/config.json"; }
from() { rm -rf "$WORK/r"; own run.dir="$WORK/r" model.init_from="$@"; }

for kind in relu2 silu gelu; do
    own run.dir="$WORK/$kind" model.activation=$kind > "$WORK/log" 2>&1; ok $? "$kind trains"
    expect "$kind: the log names it" grep -qE "width 42, $kind; fp32" "$WORK/log"
    expect "$kind: the run's config.json" names $kind "$WORK/$kind"
    expect "$kind: the checkpoint's config.json, in Hugging Face's word" names $kind "$(last $kind)"
    expect "$kind, computed again" heard own run.dir="$WORK/$kind.light" model.activation=$kind memory.recompute=light
    expect "$kind, computed again: the same weights" same_weights "$WORK/$kind" "$WORK/$kind.light" step_00000004
    wide="run.steps=4 eval.every=0 model.activation=$kind model.n_head=4 model.n_embd=48"
    # shellcheck disable=SC2086
    train $wide run.dir="$WORK/$kind.wide" > /dev/null 2>&1
    # shellcheck disable=SC2086
    expect "$kind on two tensor ranks" heard train_ranks 2 $wide run.dir="$WORK/$kind.grid" parallel.tensor=2
    expect "$kind on two tensor ranks: losses of one rank" same_losses "$WORK/$kind.wide" "$WORK/$kind.grid" 1e-5
    expect "$kind in fp8" heard own run.dir="$WORK/$kind.fp8" model.activation=$kind precision=fp8 model.n_embd=48 batch.seq_len=32 batch.global_tokens=384
done
own run.dir="$WORK/gelu_new" > "$WORK/log" 2>&1; ok $? "gpt2 without the key"
expect "the log says nothing of it" grep -qE "width 42; fp32" "$WORK/log"
expect "it has gelu_new" names gelu_new "$(last gelu_new)"
other() { [ "$(values "$WORK/relu2" train loss)" != "$(values "$WORK/$1" train loss)" ]; }
expect "other losses than silu's" other silu
expect "other losses than gelu_new's" other gelu_new
losses() { values "$WORK/$1" train loss; }
expect "gelu has other losses than gelu_new" [ "$(losses gelu)" != "$(losses gelu_new)" ]
check_says() { "$TRAIN" check "$WORK/tiny.json" "${@:2}" > "$WORK/said" 2>&1 && grep -q "$1" "$WORK/said"; }
expect "check names another activation than the usual one" check_says 'width 42, relu2' model.activation=relu2
expect "check says nothing of the usual one" check_says 'width 42, 40 positions'

# --- resume
train run.dir="$WORK/half" run.steps=4 eval.every=0 checkpoint.every=2 run.stop_step=2 model.activation=relu2 > /dev/null 2>&1
expect "a resume with another activation is refused" \
    exits 64 'model.activation is the string "silu", in the checkpoint the string "relu2"' own run.dir="$WORK/half" model.activation=silu
expect "as is one without the key" \
    exits 64 'model.activation is the string "gelu_new", in the checkpoint the string "relu2"' own run.dir="$WORK/half"
expect "a resume with the same" heard own run.dir="$WORK/half" model.activation=relu2
expect "a resume with the same: no bit changes" same_weights "$WORK/relu2" "$WORK/half" step_00000004

# --- kinds of model
expect "llama has silu alone" exits 64 'model.activation = "relu2": model.arch = "llama" has "silu"' \
    own run.dir="$WORK/llama" model.arch=llama model.n_head=2 model.n_embd=64 model.n_inner=96 model.activation=relu2
llama="model.arch=llama model.n_head=2 model.n_embd=64 model.n_inner=96"
# shellcheck disable=SC2086
own $llama run.dir="$WORK/llama" > /dev/null 2>&1; ok $? "llama without the key"
expect "the run's config.json has silu" names silu "$WORK/llama"
# shellcheck disable=SC2086
expect "silu given is silu not given" heard own $llama run.dir="$WORK/llama" model.activation=silu run.steps=5

# --- weights to start from, and export
cp -r "$(last relu2)" "$WORK/source"
still="optimizer.learning_rate=0 run.steps=2 checkpoint.every=1"
# shellcheck disable=SC2086
expect "weights to start from: their activation" code 75 from "$WORK/source" $still run.stop_step=1
expect "the run's config.json has it" names relu2 "$WORK/r"
expect "no bit changes" cmp "$WORK/source/model.safetensors" "$WORK/r/checkpoints/step_00000001/model.safetensors"
rm -r "$WORK/source"
# shellcheck disable=SC2086
expect "the run goes on without these weights" heard own run.dir="$WORK/r" model.init_from="$WORK/source" $still
expect "with their activation" names relu2 "$WORK/r/checkpoints/step_00000002"
for kind in gelu_new silu gelu; do
    expect "the key is another: $kind" exits 65 "model.activation = relu2, but the config of this run has $kind: set model.activation=relu2" from "$(last relu2)" model.activation=$kind
done
# shellcheck disable=SC2086
expect "the key is the same" heard from "$(last relu2)" model.activation=relu2 $still
"$TRAIN" export "$WORK/relu2" out="$WORK/exported" > "$WORK/said" 2>&1; ok $? "export"
expect "export: Hugging Face's word" names relu2 "$WORK/exported"
# shellcheck disable=SC2086
expect "the exported folder starts a run" heard from "$WORK/exported" $still
expect "the exported folder: no bit changes" cmp "$(last relu2)/model.safetensors" "$WORK/r/checkpoints/step_00000001/model.safetensors"
say() { "$TRAIN" sample "$1" prompt="the quick" tokens=30 temperature=0 2> /dev/null; }
expect "sample says the same of both" [ -n "$(say "$WORK/relu2")" -a "$(say "$WORK/relu2")" = "$(say "$WORK/exported")" ]
loss() { "$TRAIN" eval "$1" data="$WORK/data/val_*.bin" tokens=400 json=true 2> /dev/null | sed -E 's/.*"loss":([^,]*),.*/\1/'; }
before=$(loss "$WORK/exported")
sed -i 's/"relu2"/"gelu_new"/' "$WORK/exported/config.json"
expect "the word decides what eval computes" [ -n "$before" -a "$before" != "$(loss "$WORK/exported")" ]
for word in gelu_fast gelu_pytorch_tanh swish gelu gelu_python; do
    sed -i -E "s/(activation_function\":[[:space:]]*\")[^\"]*/\1$word/" "$WORK/exported/config.json"
    case $word in swish) kind=silu ;; gelu | gelu_python) kind=gelu ;; *) kind=gelu_new ;; esac
    # shellcheck disable=SC2086
    expect "$word is $kind" heard from "$WORK/exported" $still
    expect "$word: the run's word is $kind" names $kind "$WORK/r"
done
"$TRAIN" export "$WORK/gelu" out="$WORK/exact" > "$WORK/said" 2>&1; ok $? "export of the exact gelu"
expect "export: Hugging Face's word gelu" names gelu "$WORK/exact"
# shellcheck disable=SC2086
expect "the exact gelu starts a run" heard from "$WORK/exact" $still
expect "the exact gelu: no bit changes" \
    cmp "$(last gelu)/model.safetensors" "$WORK/r/checkpoints/step_00000001/model.safetensors"
sed -i -E "s/(activation_function\":[[:space:]]*\")[^\"]*/\1step/" "$WORK/exported/config.json"
expect "another word is refused" \
    exits 65 'activation_function is .*step.*; gelu_new, relu2, silu, gelu are supported' from "$WORK/exported"
