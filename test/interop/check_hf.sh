#!/usr/bin/env bash
# make check-hf, and the end of make test-interop. A checkpoint folder and the program's exports load in Hugging Face
# transformers unchanged, with the same logits (1e-4 in fp32) and the same greedy text. Models that transformers made
# load in the program. Installs transformers into a virtual environment under build/. Prints "skipped: ..." and ends
# with 0 if it cannot.
. "$(dirname "$0")/../run/lib/tiny.sh"
. test/interop/venv.sh
with_modules hf "transformers, torch" torch transformers
"$PYTHON" -c 'import transformers, torch' 2> "$WORK/log" || skip "transformers does not start: $(tail -n 1 "$WORK/log")"

make --no-print-directory B="$B" "$B/test/run/dump_logits" > "$WORK/log" 2>&1 || { tail "$WORK/log"; exit 1; }
TOKENS="116 104 101 32 113 117 105 99 107 32 98 114 111 119 110 32 102 111 120 0 255 46 10 32 97 32 108 97 122 121 32 100 111 103"
VERSION=$("$PYTHON" -c 'import transformers; print(transformers.__version__)')
# same NAME FOLDER [DTYPE] [OTHER]: checks that the program computes the same logits from FOLDER as transformers from
# OTHER (FOLDER if not given).
same() {
    # shellcheck disable=SC2086
    "$B/test/run/dump_logits" "$2" $TOKENS > "$WORK/ours" && "$PYTHON" test/interop/check_hf.py logits "${4:-$2}" "${3:-float32}" $TOKENS > "$WORK/theirs" &&
        awk -f test/interop/compare_logits.awk "$WORK/ours" "$WORK/theirs"
    ok $? "transformers $VERSION gives the same logits: $1"
}
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error HF_HUB_DISABLE_PROGRESS_BARS=1

# said NAME FOLDER: checks that the program and transformers sample the same greedy text.
said() {
    "$TRAIN" sample "$2" prompt="the quick" temperature=0 tokens=31 > "$WORK/ours" 2> "$WORK/log" &&
        "$PYTHON" test/interop/check_sample.py "$2" 31 "the quick" > "$WORK/theirs" 2>> "$WORK/log" &&
        cmp "$WORK/ours" "$WORK/theirs"
    ok $? "and the same greedy text${1:+: $1}"
}

for grid in "1" "4 model.n_head=2 model.n_embd=32 parallel.tensor=2 parallel.pipeline=2"; do
    # shellcheck disable=SC2086
    train_ranks $grid run.dir="$WORK/${grid%% *}" optimizer.learning_rate=5e-3 > "$WORK/log" 2>&1 || { tail "$WORK/log"; exit 1; }
    folder=$WORK/${grid%% *}/checkpoints/step_00000012
    same "a checkpoint of ${grid%% *} rank(s)" "$folder"
    said "" "$folder"
done
. "$(dirname "$0")/check_hf_kinds.sh"

# Exports of the program are read by transformers.
for form in "fp32 float32" "bf16 bfloat16" "fp16 float16" "fp32 float32 shard_bytes=60000" "bf16 bfloat16 shard_bytes=30000"; do
    read -r word dtype shards <<< "$form"
    out=$WORK/$word${shards:+-sharded}
    # shellcheck disable=SC2086
    "$TRAIN" export "$WORK/1" out="$out" dtype=$word $shards > "$WORK/log" 2>&1 || { cat "$WORK/log"; exit 1; }
    same "export ${form/ */} $shards" "$out" "$dtype"
    case $word$shards in bf16 | fp16) expect "export $word: rounded as torch does" "$PYTHON" test/interop/check_hf.py rounded "$WORK/fp32" "$out" "$dtype" ;; esac
done

# Models made by transformers are read by the program.
"$PYTHON" test/interop/check_hf.py make "$WORK/made" || exit 1
same "its own model in several files" "$WORK/made/sharded"
same "its own model as bfloat16 in several files" "$WORK/made/bf16" bfloat16
same "a stored head, old masks and names without a prefix" "$WORK/made/quirks" float32 "$WORK/made/sharded"
theirs=$(sed 's/"vocab_size": 256/"vocab_size": 300/; s/"n_layer": 2, "n_head": 3, "n_embd": 42/"n_layer": 3, "n_head": 8, "n_embd": 64/' "$WORK/tiny.json")
echo "$theirs" > "$WORK/tiny.json"
for made in sharded quirks bf16; do
    expect "trained on from $made" quiet train run.dir="$WORK/from-$made" model.init_from="$WORK/made/$made" run.steps=1 optimizer.learning_rate=0
done
expect "from several files and from one: the same weights" same_weights "$WORK/from-sharded" "$WORK/from-quirks" step_00000001
expect "sample takes its folder" quiet "$TRAIN" sample "$WORK/made/sharded" tokens=8
expect "a head of its own is refused" exits 65 'lm_head.weight is not the embedding' train run.dir="$WORK/untied" model.init_from="$WORK/made/untied"

# Tests the tokenizers in checkpoint folders: bytes, one learnt here, and a .tiktoken file converted to tokenizer.json.
make --no-print-directory B="$B" "$B/test/data/dump_ids" > "$WORK/log" 2>&1 || { tail "$WORK/log"; exit 1; }
python3 -c 'print("Zo\u00eb: \u4f60\u597d\U0001f600\n\t  It'"'"'s 12,345 words\u2026 the quick brown fox jumps   over 3.14\n\n  end")' > "$WORK/prose"
"$TRAIN" train-tokenizer "$WORK/text.txt" "$WORK/prose" out="$WORK/bpe" vocab_size=320 > /dev/null
mkdir -p "$WORK/ranks" && "$PYTHON" - "$WORK/bpe/tokenizer.json" "$WORK/ranks/gpt2.tiktoken" << 'PY'
import base64, json, sys
printable = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
rest = [b for b in range(256) if b not in printable]
byte = {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(rest)}
vocab = json.load(open(sys.argv[1]))["model"]["vocab"]
with open(sys.argv[2], "w") as out:
    for token, rank in sorted(vocab.items(), key=lambda item: item[1]):
        if token != "<|endoftext|>":
            out.write(base64.b64encode(bytes(byte[c] for c in token)).decode() + f" {rank}\n")
PY
for tokenizer in "" "$WORK/bpe" "$WORK/ranks/gpt2.tiktoken"; do
    run=$WORK/tokens${tokenizer##*/} eot=; [ "${tokenizer##*.}" = tiktoken ] && eot=eot=none
    "$TRAIN" tokenize "$WORK/text.txt" out="$run.data" val=0.1 $eot ${tokenizer:+tokenizer="$tokenizer"} > /dev/null
    train data.train="$run.data/train*" data.val="$run.data/val*" run.dir="$run" run.steps=2 model.vocab_size=$([ -n "$tokenizer" ] && echo 320 || echo 256) > "$WORK/log" 2>&1 || { tail "$WORK/log"; exit 1; }
    folder=$run/checkpoints/step_00000002
    { wc -c < "$WORK/prose"; cat "$WORK/prose"; } | "$B/test/data/dump_ids" "$folder/tokenizer.json" | tr " " "\n" > "$WORK/ids"
    said=$("$PYTHON" test/interop/check_hf_tokenizer.py "$folder" "$WORK/prose" "$WORK/ids" 2>&1)
    ok $? "transformers $VERSION loads a checkpoint's tokenizer, ${tokenizer##*/}: $(tail -n 1 <<< "$said")"
done
bash test/interop/check_eval.sh || STATUS=1 # compares the scores of eval with those of lm-eval
exit $STATUS
