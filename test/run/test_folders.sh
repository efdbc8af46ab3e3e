# Folders of weights as other programs write them. Each is read as transformers reads it, or refused with a message that
# names an edit. The test then makes that edit. Sizes in config.json have the limits of a run's config.
# Timed: a refusal must come within two seconds.
. "$(dirname "$0")/lib/tiny.sh"
command -v python3 > /dev/null || { echo "skip folders of other programs: python3 is not installed"; exit 0; }
made() { local to=$1; shift; rm -rf "${WORK:?}/$to"; python3 "$(dirname "$0")/lib/folder.py" "$FROM" "$WORK/$to" "$@"; }
# says FOLDER [KEY=VALUE...]: samples from the folder with prompt=the temperature=0 tokens=20; keys that are given
# replace these
says() {
    local word own=(); for word in prompt=the temperature=0 tokens=20; do [[ " ${*:2}" == *" ${word%%=*}="* ]] || own+=("$word"); done
    "$TRAIN" sample "$WORK/$1" "${own[@]}" "${@:2}" 2> "$WORK/err"
}
loss_of() { "$TRAIN" eval "$WORK/$1" data="$WORK/data/val_*.bin" tokens=400 json=true "${@:2}" 2> "$WORK/err" | sed -E 's/.*"loss":([^,]*),.*/\1/'; }
same() { [ -n "$1" ] && [ "$1" = "$2" ] && return 0; echo "expected $1, got $2"; tail -n 3 "$WORK/err"; return 1; }
told() { grep -qE -- "$1" "$WORK/err" && return 0; cat "$WORK/err"; return 1; }
refused() { exits 65 "$1" "$TRAIN" sample "$WORK/$2" tokens=2; }
LLAMA="model.arch=llama model.n_head=2 model.n_embd=64 model.n_inner=96"
# shellcheck disable=SC2086
train $LLAMA run.dir="$WORK/llama" run.steps=3 checkpoint.every=3 > /dev/null 2>&1; ok $? "3 steps of a llama"
train run.dir="$WORK/gpt2" run.steps=3 checkpoint.every=3 > /dev/null 2>&1; ok $? "3 steps of a gpt2"
# shellcheck disable=SC2086
from() { rm -rf "$WORK/r"; train $LLAMA run.dir="$WORK/r" run.steps=1 eval.every=0 checkpoint.every=0 model.init_from="$WORK/$1" "${@:2}"; }

# --- names, types, files ----------------------------------------------------------------------------------------------
for FROM in "$WORK/gpt2/checkpoints/step_00000003" "$WORK/llama/checkpoints/step_00000003"; do
    kind=$(basename "${FROM%/checkpoints*}")
    made plain; text=$(says plain)
    hows=(prefix=module. "plain=1 prefix=language_model.model." parts=3 index=1)
    [ "$kind" = gpt2 ] && hows=(plain=1 prefix=module._orig_mod. wide=1 index=1)
    for how in "${hows[@]}"; do
        # shellcheck disable=SC2086
        made other $how
        expect "$kind, $how: the same text" same "$text" "$(says other)"
    done
    expect "an index that is wrong is told of" told 'in other files than this index says'
done
FROM=$WORK/llama/checkpoints/step_00000003
made other parts=3; rm "$WORK/other/model-00002-of-00003.safetensors"
expect "a file is missing: its name" refused 'model-00002-of-00003.safetensors is missing' other
made other; mv "$WORK/other/model.safetensors" "$WORK/other/mine.safetensors"
expect "one file of another name" exits 65 'mv .*mine.safetensors .*model.safetensors' from other
eval "$(sed -E 's/.*(mv .*)/\1/' "$WORK/err")"
expect "the move that was named helps" quiet from other

made other prefix=llm.
expect "a prefix that is not known: the name of a tensor, and nothing of heads" \
    exits 65 "safetensors: tensor llm.* is not part of this model" from other
expect "the same in sample" refused "safetensors: tensor llm.* is not part of this model" other

# --- a config.json whose sizes are not those of the weights beside it
for edit in num_hidden_layers=3 hidden_size=32 vocab_size=300 intermediate_size=100; do
    made other "$edit"
    expect "${edit%=*} is another: file and member" \
        exits 65 "other/config.json: ${edit%=*} is ${edit#*=}; the shapes of the weights beside it show [0-9]+: correct it" from other
    sed -i -E "s/(\"${edit%=*}\": )[0-9]+/\1$(sed -E 's/.* show ([0-9]+):.*/\1/' "$WORK/err")/" "$WORK/other/config.json"
    expect "  the edit that was named helps" quiet from other
done
made other max_position_embeddings=80
expect "  positions, which no shape shows, may differ" quiet from other

# --- the head ---------------------------------------------------------------------------------------------------------
made untied tie_word_embeddings=false; made tied tie_word_embeddings=true
expect "config.json says tied, and a head is stored: the stored head counts" same "$(loss_of untied)" "$(loss_of tied)"
expect "a line says so" told 'tied/config.json: tie_word_embeddings says .*lm_head.weight is stored and is used'
expect "training with a tied head refuses it" \
    exits 65 'give model.tie_embeddings=false' from tied model.tie_embeddings=true
expect "the key that was named helps" quiet from tied model.tie_embeddings=false
made bare drop=lm_head.weight
for tie in true false; do
    expect "no head at all, model.tie_embeddings=$tie" \
    exits 65 'bare/config.json: tie_word_embeddings is false.*set tie_word_embeddings to true there' from bare model.tie_embeddings=$tie
done
sed -i 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' "$WORK/bare/config.json"
expect "the edit that was named helps sample" quiet says bare
expect "and training" quiet from bare model.tie_embeddings=true
made turned drop=model.embed_tokens.weight head=1 tie_word_embeddings=true
expect "a tied head stands for an embedding that is not stored" same "$(loss_of bare)" "$(loss_of turned)"
FROM=$WORK/gpt2/checkpoints/step_00000003
made plain; made equal head=1; made own head=0; made untied head=0 tie_word_embeddings=false
expect "gpt2, a head equal to the embedding: the same loss" same "$(loss_of gpt2)" "$(loss_of equal)"
expect "gpt2, a head of its own: another loss" [ "$(loss_of own)" != "$(loss_of equal)" ]
expect "the same with the edit that the line names" same "$(loss_of untied)" "$(loss_of own)"
expect "gpt2 is not trained with it" \
    exits 65 'own/model.safetensors: lm_head.weight is not the embedding' train run.dir="$WORK/r2" run.steps=1 model.init_from="$WORK/own"

# --- begin and end, settings of generate ------------------------------------------------------------------------------
made ends 'eos_token_id=[300, 104]' bos_token_id=116; made begins bos_token_id=116
first=$(says begins prompt= temperature=1 tokens=60 seed=3)
expect "eos_token_id as a list: text ends before h, 104" \
    same "${first%%h*}" "$(says ends prompt= temperature=1 tokens=60 seed=3)"
expect "the line names it, and the id that is none" told 'eos_token_id has a token id of 256 or more, which is beyond'
expect "begin and end, with the file" \
    told '^sample: an empty prompt begins after token 116 \(config.json\); texts end with token 104 \(config.json\)$'
made ends eos_token_id=104
echo '{"eos_token_id": 111, "bos_token_id": 10, "temperature": 0.25, "repetition_penalty": 1.5, "top_k": 0, "suppress_tokens": [], "novel": 1}' > "$WORK/ends/generation_config.json"
first=$(says plain prompt=q temperature=1 tokens=60 seed=3)
expect "generation_config.json comes first" same "${first%%o*}" "$(says ends prompt=q temperature=1 tokens=60 seed=3)"
expect "settings that are not used, with the key that does the same" \
    told 'not used: repetition_penalty 1.5 \(not computed here\), novel 1 \(not known here\)$'
expect "eval names the tokens, too" same "$(loss_of plain)" "$(loss_of ends)"
expect "from the file" \
    told '^eval: an empty prompt begins after token 10 \(generation_config.json\); texts end with token 111'
"$TRAIN" sample "$WORK/ends" tokens=1 > /dev/null 2> "$WORK/err"
expect "temperature is named where the user gives none" \
    told 'not used: temperature 0.25 \(temperature=0.25\), repetition_penalty'
made large
"$TRAIN" train-tokenizer "$WORK/text.txt" out="$WORK/one-more" vocab_size=257 > /dev/null
expect "a tokenizer of one id more: an empty prompt would begin after it" \
    exits 64 'an empty prompt begins after token 256, and the vocabulary of this model ends at 255.*give a prompt' \
    "$TRAIN" sample "$WORK/large" tokenizer="$WORK/one-more" tokens=2
expect "the prompt helps" quiet says large tokenizer="$WORK/one-more"
expect "no end is claimed that the model has not" told 'no token ends a text'
made large bos_token_id=116
expect "and so does bos_token_id" quiet says large tokenizer="$WORK/one-more" prompt=
made ends some_new_member=1; quiet says ends
expect "members that are not known are named" told 'config.json: these members are unknown to this program, which ignores them: "some_new_member"$'

# --- rotary positions: as transformers 5 finds them -------------------------------------------------------------------
FROM=$WORK/llama/checkpoints/step_00000003
L3='"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16'
made scaled rope_theta=DROP "rope_scaling={$L3, \"rope_theta\": 100.0}"
made both rope_theta=DROP "rope_scaling={$L3, \"rope_theta\": 100.0}" 'rope_parameters={"rope_type": "default", "rope_theta": 7.0}'
made outside rope_theta=100.0 "rope_scaling={$L3}" rope_parameters=null
made newer rope_theta=7.0 rope_scaling=null "rope_parameters={$L3, \"rope_theta\": 100.0}"
made other rope_theta=7.0 rope_scaling=DROP
expect "rope_scaling takes the place of rope_parameters" same "$(loss_of scaled)" "$(loss_of both)"
expect "one line says that they differ" \
    [ "$(grep -c 'rope_scaling and rope_parameters differ: only rope_scaling is used' "$WORK/err")" = 1 ]
expect "rope_theta beside it" same "$(loss_of scaled)" "$(loss_of outside)"
expect "rope_theta in it counts before that" same "$(loss_of scaled)" "$(loss_of newer)"
expect "another theta is another loss" [ "$(loss_of scaled)" != "$(loss_of other)" ]

# --- limits: no crash, no wait, no memory -----------------------------------------------------------------------------
FROM=$WORK/llama/checkpoints/step_00000003
limit() { # MEMBER=VALUE PATTERN
    made wide "$1"
    expect "$1" exits 65 "wide/(config.json|model.safetensors): .*$2" timeout 2 "$TRAIN" sample "$WORK/wide" tokens=2
}
limit num_hidden_layers=357913942 num_hidden_layers
limit num_hidden_layers=3 'num_hidden_layers is 3, but the weights in .* have 2 blocks'
limit num_hidden_layers=65536 num_hidden_layers
limit hidden_size=1073741824 hidden_size
limit num_attention_heads=1073741824 num_attention_heads
limit num_key_value_heads=2147483647 num_key_value_heads
limit head_dim=1000000007 head_dim
limit vocab_size=9007199254740992 vocab_size
limit vocab_size=255 'vocab_size'
limit intermediate_size=2147483647 intermediate_size
limit max_position_embeddings=0.5 max_position_embeddings
limit rms_norm_eps=1e308 rms_norm_eps
limit rope_theta=0 rope_theta
limit attention_bias=true attention_bias
limit 'quantization_config={"bits": 4}' quantization_config
limit 'rope_scaling={"rope_type": "linear", "factor": 2}' rope_type
limit 'tie_word_embeddings="no"' tie_word_embeddings
FROM=$WORK/gpt2/checkpoints/step_00000003
limit n_embd=1073741824 n_embd
limit n_layer=1048576 n_layer
limit n_positions=1073741824 n_positions
limit n_head=5 n_head
limit n_inner=7 n_inner
limit 'layer_norm_epsilon=null' layer_norm_epsilon
limit 'model_type="mamba"' model_type

# --- what is broken is refused alike on every way in ------------------------------------------------------------------
everywhere() { # everywhere NAME PATTERN: checks that every subcommand refuses $WORK/broken with a matching message
    expect "$1: sample" refused "$2" broken
    expect "$1: eval" exits 65 "$2" "$TRAIN" eval "$WORK/broken" data="$WORK/data/val_*.bin"
    expect "$1: init_from" exits 65 "$2" "$TRAIN" check "$WORK/tiny.json" run.dir="$WORK/never" model.init_from="$WORK/broken"
    [ "${3:-}" = weights ] && return
    expect "$1: inspect" exits 65 "$2" "$TRAIN" inspect "$WORK/broken"
    expect "$1: plan" exits 65 "$2" "$TRAIN" plan "$WORK/tiny.json" memory=1GiB model.init_from="$WORK/broken"
    expect "$1: inspect of the file" exits 65 "$2" "$TRAIN" inspect "$WORK/broken/${1%%,*}"
}
for file in config.json generation_config.json tokenizer_config.json; do
    made broken; [ -e "$WORK/broken/$file" ] || echo '{"bos_token": null}' > "$WORK/broken/$file"
    tr '\n' ' ' < "$WORK/broken/$file" | sed -E 's/\} *$/,}/' > "$WORK/other.json"; cp "$WORK/other.json" "$WORK/broken/$file"
    everywhere "$file, a comma too much" "broken/$file:1:[0-9]+: a comma before '}'"
done
made broken; echo '["temperature", 0.5]' > "$WORK/broken/generation_config.json"
everywhere "generation_config.json, a list" 'broken/generation_config.json is not a JSON object'
made broken; printf '\xef\xbb\xbf' | cat - "$WORK/plain/config.json" > "$WORK/broken/config.json"
everywhere "config.json, a byte-order mark" "tail -c .4 [^ ]*/broken/config.json > "
made broken; sed -i '1s/{/{"n_layer": 2,/' "$WORK/broken/config.json"
everywhere "config.json, a key twice" 'broken/config.json:[0-9]+:[0-9]+: duplicate key "n_layer"'
made broken 'architectures=["LlamaForCausalLM"]'
everywhere "another class" 'architectures names LlamaForCausalLM, but model_type is gpt2: correct' weights
sed -i 's/LlamaForCausalLM/GPT2LMHeadModel", "GPT2ForSomethingElse/' "$WORK/broken/config.json"
expect "a class for another use is no contradiction" quiet says broken
echo '{"peft_type": "LORA"}' > "$WORK/broken/adapter_config.json"; rm "$WORK/broken/model.safetensors"
everywhere "an adapter" 'python3 -c .from peft import .*merge_and_unload' weights
for value in nan inf; do
    made broken "poison=transformer.wte.weight:77:$value"
    expect "$value: sample" refused 'tensor transformer.wte.weight holds a value that is not finite at element 77' broken
done
expect "inf: eval" exits 65 'not finite at element 77' "$TRAIN" eval "$WORK/broken" data="$WORK/data/val_*.bin"
made broken wide=1 poison=transformer.wte.weight:77:1e300
expect "beyond fp32: sample" refused 'tensor transformer.wte.weight holds 1e[+]300 at element 77, which fp32 cannot hold' broken
expect "beyond fp32: init_from" exits 65 'which fp32 cannot hold' train run.dir="$WORK/r3" run.steps=1 model.init_from="$WORK/broken"
expect "check of a model's config.json says what to type" \
    exits 64 'describes a model of Hugging Face, not a run: .*model.init_from=[^ ]*/plain, or sample from it, ./train_gpt sample [^ ]*/plain$' "$TRAIN" check "$WORK/plain/config.json"

# --- memory for what the text needs -----------------------------------------------------------------------------------
FROM=$WORK/llama/checkpoints/step_00000003
made long max_position_embeddings=100000000
expect "100,000,000 positions: the same text" same "$(says llama)" "$(says long)"
short() { (ulimit -v 3000000; "$TRAIN" "$@" > "$WORK/out" 2> "$WORK/err"); }
if ! sanitized "memory for long texts" "needs more address space than ulimit -v leaves"; then
    short sample "$WORK/long" tokens=9000000; code=$?
    expect "memory for long texts is not there: 71, and the key" [ $code = 71 ]
    expect "named" told 'positions=[0-9]+'
    expect "the key helps" short sample "$WORK/long" tokens=5 positions=64
fi
expect "positions beyond the model's" exits 64 'positions=41.*40 positions' "$TRAIN" sample "$WORK/plain" positions=41
made plain
expect "a short window" same "$(says plain)" "$(says plain positions=23)"
expect "eval: a sample is longer than the data" \
    exits 65 'positions= 100000000.*smaller positions=' "$TRAIN" eval "$WORK/long" data="$WORK/data/val_*.bin"
expect "eval: the key helps" same "$(loss_of llama)" "$(loss_of long positions=40)"
exit "$STATUS"
