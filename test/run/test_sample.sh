# ./train_gpt sample: options, output through a pipe, and equal text however it is computed.
. "$(dirname "$0")/lib/tiny.sh"

RUN=$WORK/run
SHORT="run.steps=24 checkpoint.every=12 optimizer.learning_rate=1e-2 eval.every=0"
# shellcheck disable=SC2086
trained() { train $SHORT run.dir="$RUN" "$@" > "$WORK/log" 2>&1 || { tail "$WORK/log"; exit 1; }; }
trained model.n_head=2 model.n_embd=32
sample() { "$TRAIN" sample "$RUN" "$@" 2> "$WORK/err"; }
plainly() { "$TRAIN" sample "$RUN" "$@"; }
to_full() { plainly "$@" > /dev/full; }
same() { [ -n "$1" ] && [ "$1" = "$2" ]; }
greedy() { sample prompt="the quick" temperature=0 "$@"; }
text=$(greedy tokens=100) # 100 tokens: two and a half times the model's 40 positions

expect "the prompt comes first" same "${text:0:9}" "the quick"
MODEL="2 layers of width 32, 0\.0[0-9] M parameters"
expect "the step and the model, on stderr" \
    grep -qE "^sample: step 24 of $RUN \(checkpoints/step_00000024\), $MODEL$" "$WORK/err"
expect "tokens and their rate, on stderr" grep -qE '^sample: 100 tokens in [0-9.]+ s, [0-9.]+ tokens/s$' "$WORK/err"
expect "the tokens that begin and end texts, and where that is written" \
    grep -qE '^sample: an empty prompt begins after token 10 \(the tokenizer\); no token ends a text$' "$WORK/err"
expect "nothing else there" [ "$(wc -l < "$WORK/err")" = 3 ]
for path in checkpoints/step_00000024 checkpoints/step_00000024/model.safetensors; do
    from_there=$("$TRAIN" sample "$RUN/$path" prompt="the quick" temperature=0 tokens=100 2> "$WORK/err")
    expect "$path" same "$text" "$from_there"
    expect "$path: its step" grep -q "^sample: step 24 of $RUN (checkpoints/step_00000024)" "$WORK/err"
done
expect "an earlier step" exits 0 "^sample: step 12 of $RUN .checkpoints" \
    "$TRAIN" sample "$RUN/checkpoints/step_00000012" tokens=1

# The prompt can come from the command line, a file or standard input.
printf 'the quick' > "$WORK/prompt"
printf 'the quick\n' > "$WORK/line"
expect "prompt=@FILE" same "$text" "$(sample prompt=@"$WORK/prompt" temperature=0 tokens=100)"
expect "prompt=-" same "$text" "$(sample prompt=- temperature=0 tokens=100 < "$WORK/prompt")"
printf '\357\273\277' | cat - "$WORK/prompt" > "$WORK/marked"
expect "a byte-order mark is passed over" same "$text" "$(sample prompt=@"$WORK/marked" temperature=0 tokens=100)"
expect "a final newline stays" [ "$(sample prompt=@"$WORK/line" tokens=0 | wc -c)" = 11 ]
expect "the same in front of --" same "$text" "$(sample --prompt="the quick" --temperature=0 --tokens=100)"
expect "a prompt that is not there" exits 65 "nowhere" plainly prompt=@"$WORK/nowhere"
long=$(head -c 100 "$WORK/text.txt")
expect "a long prompt is printed whole" same "$long" "$(sample prompt="$long" tokens=0)"
expect "and the model sees its end" \
    grep -q '^sample: the prompt has 100 tokens, and the model 40 positions: it sees the last 40$' "$WORK/err"

# Tests the options that limit the tokens from which one is drawn: top_k, top_p, min_p.
expect "top_k=1 is greedy" same "$text" "$(sample prompt="the quick" top_k=1 temperature=2 tokens=100)"
expect "top_p=0 is greedy" same "$text" "$(sample prompt="the quick" top_p=0 temperature=2 tokens=100)"
expect "min_p=1 is greedy" same "$text" "$(sample prompt="the quick" min_p=1 temperature=2 tokens=100)"
expect "top_p=1 and min_p=0 leave nothing out" same "$(sample tokens=50)" "$(sample tokens=50 top_p=1 min_p=0 top_k=0)"
hot=$(sample tokens=50 temperature=3)
expect "top_p leaves something out" [ "$hot" != "$(sample tokens=50 temperature=3 top_p=0.5)" ]
expect "min_p leaves something out" [ "$hot" != "$(sample tokens=50 temperature=3 min_p=0.2)" ]
sample tokens=30 n=3 seed=42 > "$WORK/three"
for i in 1 2 3; do
    printf -- '--- %d of 3, seed %d ---\n' $i $((41 + i))
    sample tokens=30 seed=$((41 + i))
done > "$WORK/each"
expect "n texts are those of n seeds" cmp "$WORK/three" "$WORK/each"

# Stop texts: every token is a byte, so any stop text spans several tokens. ends_before STOP OPTION...: the text ends
# before the first occurrence of STOP after the prompt.
ends_before() {
    local after=${text:9} stop=$1 got; shift
    [[ $after == *"$stop"* ]] || return 1
    got=$(greedy tokens=100 "$@"; echo '|')
    same "the quick${after%%"$stop"*}"$'\n|' "$got"
}
word=${text:20:4} letter=${text:33:1}
expect "stop" ends_before "$word" stop="$word"
expect "stop does not look at the prompt" ends_before "$letter" stop="$letter" stop="e quick"
expect "stops in a list" ends_before "$word" stop="[\"zzz\", \"$word\"]"
expect "stop that never comes" same "$text" "$(greedy tokens=100 stop="never comes" stop="${text:50:5}Z")"

# Output through a pipe: text can be read while more is drawn, in whole characters only. If the reader ends, sample ends
# without a message.
sample tokens=10000000 temperature=100 | head -c 3000 > "$WORK/piped"
codes=("${PIPESTATUS[@]}")
expect "a reader that has enough ends an endless text" [ "${codes[0]}" = 0 -a "$(wc -c < "$WORK/piped")" = 3000 ]
expect "without a word of it" [ "$(grep -cv '^sample: ' "$WORK/err")" = 0 ]
sample tokens=400 temperature=100 prompt=$'caf\xc3\xa9' > "$WORK/bytes"
expect "whole UTF-8 characters" iconv -f UTF-8 -t UTF-8 "$WORK/bytes" -o /dev/null
expect "no control characters" [ "$(LC_ALL=C tr -d '\n\t\040-\176\200-\377' < "$WORK/bytes" | wc -c)" = 0 ]
expect "a disk that is full" exits 74 "standard output cannot be written" to_full tokens=5

# Sampling on a grid of ranks, and with other ways to compute, gives the same text.
for grid in "2 parallel.tensor=2" "2 parallel.pipeline=2" "4 parallel.tensor=2 parallel.pipeline=2"; do
    # shellcheck disable=SC2086
    of_ranks=$(run_ranks ${grid%% *} "$TRAIN" sample "$RUN" prompt="the quick" temperature=0 tokens=100 ${grid#* } \
        2> "$WORK/err")
    expect "on $grid" same "$text" "$of_ranks"
    expect "on $grid: one rank says so" [ "$(grep -c '^sample: ' "$WORK/err")" = 3 ]
done
of_ranks=$(run_ranks 2 "$TRAIN" sample "$RUN" prompt=- temperature=0 tokens=100 parallel.tensor=2 \
    < "$WORK/prompt" 2> "$WORK/err")
expect "a prompt from standard input for all ranks" same "$text" "$of_ranks"

# The model has 257 ids. It is sampled with two vocabularies: one of bytes and an end-of-text token, and one in which
# the ids of a letter and of the end-of-text token are exchanged. Where the first prints that letter, the second ends.
RUN=$WORK/ends
cp -r "$WORK/data" "$WORK/bare"; rm "$WORK/bare/tokens.json" # removes tokens.json, which says that the tokens are bytes
trained model.vocab_size=257 data.train="$WORK/bare/train_*.bin" data.val="$WORK/bare/val_*.bin"
# vocabulary FOLDER LETTER: writes the files vocab.json and merges.txt, with the ids of LETTER and of the end-of-text
# token exchanged. If LETTER is empty, nothing is exchanged.
vocabulary() {
    mkdir "$1"
    python3 - "$@" <<'PY'
import json, sys
own = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
rest = [b for b in range(256) if b not in own]
# the characters by which GPT-2's vocabulary stands for bytes
ids = {chr(b if b in own else 256 + rest.index(b)): b for b in range(256)}
ids["<|endoftext|>"] = 256
if sys.argv[2]:
    ids["<|endoftext|>"], ids[sys.argv[2]] = ids[sys.argv[2]], 256
json.dump(ids, open(sys.argv[1] + "/vocab.json", "w"))
open(sys.argv[1] + "/merges.txt", "w").write("#version: 0.2\n")
PY
}
ending() { sample prompt="the" temperature=1 tokens=100 "$@"; }
vocabulary "$WORK/plain" ""
text=$(ending tokenizer="$WORK/plain")
letter=$(printf %s "$text" | tr -cd 'a-df-gi-su-z' | tail -c 1)
vocabulary "$WORK/swapped" "$letter"
expect "a letter to end at" [ -n "$letter" ]
expect "the end-of-text token ends a text" \
    same "${text%%"$letter"*}|" "$(ending tokenizer="$WORK/swapped" | tr '\n' '|')"
expect "eot=false goes on" same "${text//"$letter"/<|endoftext|>}" "$(ending tokenizer="$WORK/swapped" eot=false)"
exit $STATUS
