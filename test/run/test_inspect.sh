#!/usr/bin/env bash
# `inspect` and `diff`: each kind of file is recognized by its content, statistics equal those of another reader, and
# damage and differences are printed.
. "$(dirname "${BASH_SOURCE[0]}")/lib/tiny.sh"
cd "$WORK" || exit 1
inspect() { "$TRAIN" inspect "$@" 2>&1; }
# says NAME PATTERN COMMAND...: checks that a line of the command's output matches
says() { local name=$1 pattern=$2 text; shift 2; text=$("$@" 2>&1); grep -qE -- "$pattern" <<< "$text" || { echo "  no line like $pattern in:"; head -8 <<< "$text"; false; }; ok $? "$name"; }
train run.steps=6 > /dev/null && train run.steps=6 run.dir="$WORK/same" > /dev/null && train run.steps=8 schedule.name=constant optimizer.learning_rate=2e-3 checkpoint.every=6 run.dir="$WORK/other" > /dev/null || { echo "not ok the runs"; exit 1; }
last=run/checkpoints/step_00000006

# Writes files in the formats of other programs.
cat > make.py <<'PY'
import json, os, struct
def pack(kind, *values): return struct.pack("<%d%s" % (len(values), kind), *values)
tokens = [7] * 50 + [3] * 30 + list(range(100, 120))
open("raw.bin", "wb").write(pack("H", *tokens))
open("mega.bin", "wb").write(pack("i", *[70000] * 3))
open("mega.idx", "wb").write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, 1, 2) + struct.pack("<iqqq", 3, 0, 0, 1))
header = lambda *values: pack("i", *values, *[0] * (256 - len(values)))
open("wide.bin", "wb").write(header(20240801, 7, 3) + pack("I", 5, 128000, 5))
open("model.bin", "wb").write(header(20240326, 3, 1024, 50257, 12, 12, 768, 50304) + b"\0" * 64)
open("eval.bin", "wb").write(header(20240522, 1, 10042, 500))
open("state.bin", "wb").write(header(20240527, 1, 4, 2, 1, 0, 0, 0, 0, 0, 77))
open("vocabulary.json", "w").write(json.dumps({str(i): i for i in range(300)}))
os.mkdir("words"); open("words/tokenizer.json", "w").write(json.dumps({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
                                              "added_tokens": [{"id": 3, "content": "<|end|>", "special": True}]}))
open("model.safetensors.index.json", "w").write(json.dumps({"metadata": {"total_size": 12}, "weight_map": {"a": "x", "b": "y", "c": "x"}}))
open("picture.png", "wb").write(b"\x89PNG\r\n\x1a\n" + b"\0" * 20)
open("pickle.pt", "wb").write(b"PK\x03\x04" + b"\0" * 20)
def tensors(path, rows):
    head, at, body = {}, 0, b""
    for name, kind, values in rows:
        data = pack({"F32": "f", "I64": "q"}[kind], *values)
        head[name] = {"dtype": kind, "shape": [len(values)], "data_offsets": [at, at + len(data)]}
        at, body = at + len(data), body + data
    text = json.dumps(head).encode()
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + body)
nan, inf = float("nan"), float("inf")
open("evals.jsonl", "w").write("".join('{"kind":"%s","step":%d,"loss":%s}\n' % line for line in
                               [("eval", 0, "null"), ("train", 1, 5), ("eval", 2, 4.5), ("eval", 3, "null"), ("eval", 4, 4.75)]))
tensors("bad.safetensors", [("one", "F32", [3.0, -4.0, nan]), ("two", "F32", [inf, 12.0]), ("ids", "I64", [1, 2])])
tensors("none.safetensors", [("one", "F32", [nan, inf])])
tensors("near.safetensors", [("one", "F32", [3.0, -4.5, nan]), ("three", "F32", [1.0]), ("ids", "I64", [1, 3])])
PY
python3 make.py || { echo "not ok the files"; exit 1; }
: > empty.bin

says "a shard of ours" '^kind +llm.c token shard, version 1$' inspect data/train_000000.bin
says "  its tokens" "^tokens +$((($(stat -c %s data/train_000000.bin) - 1024) / 2))\$" inspect data/train_000000.bin
says "  its first tokens as text" '^begins +"the ' inspect data/train_000000.bin
says "tokens without a header" '^kind +tokens without a header' inspect raw.bin
says "  the commonest" '^commonest +7 .*50\.0 %, 3 .*30\.0 %, 100 .*1\.0 %' inspect raw.bin
says "  the largest" '^largest_id +119$' inspect raw.bin
says "tokens of four bytes" '^token_bytes +4$' inspect wide.bin
says "  of which the largest" '^largest_id +128000$' inspect wide.bin
says "Megatron's tokens" '^kind +Megatron tokens' inspect mega.bin
says "  by their index, too" '^sequences +1$' inspect mega.idx
says "a folder of shards" '^files +2$' inspect data
says "llm.c's model" '^kind +llm.c GPT-2 model$' inspect model.bin
says "  its layers" '^layers +12$' inspect model.bin
says "llm.c's eval file" '^examples +10042$' inspect eval.bin
says "llm.c's state" '^step +77$' inspect state.bin
says "tokenizer.json" '^entries +3$' inspect words/tokenizer.json
says "  its special tokens" '^special +1: <.end.>$' inspect words/tokenizer.json
says "its folder" '^kind +tokenizer.json of Hugging Face tokenizers, BPE$' inspect words
printf '{"text":"a"}\n{"text":"b"}\n' > texts.jsonl
printf '{"context":"a","choices":["b","c"],"gold":0}\n' > questions.jsonl
says "JSON Lines of texts" '^kind +JSON Lines of texts: tokens by ./train_gpt tokenize$' inspect texts.jsonl
says "  their number" '^lines +2$' inspect texts.jsonl
says "a task" '^kind +JSON Lines of questions with choices, a task of eval$' inspect questions.jsonl
says "metrics" '^kind +metrics of a run$' inspect evals.jsonl
echo 'no JSON' > none.jsonl
says "other lines" "^kind +none of this program's files" inspect none.jsonl
says "vocab.json" '^largest_id +299$' inspect vocabulary.json
says "an index of shards of weights" '^files +2$' inspect model.safetensors.index.json
says "a config" 'optimizer.learning_rate +0.001 \(default 0.0006\)$' inspect tiny.json
says "a Hugging Face config" '^model_type +"gpt2"$' inspect $last/config.json
says "metrics" '^last_loss +[0-9.]+ at step 6$' inspect run/metrics.jsonl
says "the best of evaluations that may be no number" '^best_val +4.5 at step 2, of 4 evaluations$' inspect evals.jsonl
says "a range of no values is none" '^min +nan$' inspect none.safetensors
says "values that are not finite are named" '^ +one .* 1 NaN, 0 Inf$' inspect bad.safetensors
says "  and counted" '^nan +1$' inspect bad.safetensors
says "  the norm is of the others" '^norm +13$' inspect bad.safetensors
says "  each tensor, when asked for" '^ +ids +\[2\] +I64' inspect bad.safetensors tensors=true
says "a run" '^checkpoints +1: step_00000006' inspect run
says "  its best validation" '^best_val .*at step 6, of 2 evaluations' inspect run
says "a checkpoint" '^verified +yes' inspect $last
says "  by its manifest" '^run_id +[0-9a-f]{16}' inspect $last/state.json
expect "figures agree with another reader's" python3 -c '
import json, math, struct, subprocess, sys
def read(path):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + size])
    return {k: struct.unpack("<%df" % ((v["data_offsets"][1] - v["data_offsets"][0]) // 4), data[8 + size + v["data_offsets"][0]:8 + size + v["data_offsets"][1]])
            for k, v in head.items() if k != "__metadata__"}
said = json.loads(subprocess.run(sys.argv[1:], capture_output=True, check=True).stdout)
model, moments = read(sys.argv[3] + "/model.safetensors"), read(sys.argv[3] + "/optimizer.safetensors")
def close(a, b): assert abs(a - b) <= 1e-12 * abs(b), (a, b)
def check(found, values):
    close(found["norm"], math.sqrt(sum(v * v for v in values)))
    assert found["min"] == min(values) and found["max"] == max(values) and found["nan"] == found["inf"] == 0
check(said["weights"], [v for t in model.values() for v in t])
check(said["m"], moments["m"]), check(said["v"], moments["v"])
assert said["verified"] is True and said["step"] == 6 and said["tokens"] == 2880 and said["config"]["run.steps"] == 6
assert "run.dir" not in said["config"] and "optimizer.eps" not in said["config"]
' "$TRAIN" inspect "$WORK/$last" json=true
expect "what is no file of ours: exit 65" exits 65 '^$' bash -c "'$TRAIN' inspect text.txt; s=\$?; echo >&2; exit \$s"
says "  it says what it looks like" 'UTF-8 text; text becomes tokens by ./train_gpt tokenize' inspect text.txt
says "  a picture" 'PNG' inspect picture.png
says "  PyTorch's own" 'safetensors' inspect pickle.pt
says "  an empty one" 'it is empty' inspect empty.bin
expect "nothing there: exit 65" exits 65 'nowhere .*No such file' "$TRAIN" inspect nowhere
mkfifo pipe
expect "a pipe: exit 65" exits 65 'pipe is a FIFO, not a file' timeout 60 "$TRAIN" inspect pipe
expect "a truncated shard: exit 65" exits 65 'is truncated' bash -c "head -c 2000 data/train_000000.bin > cut.bin; '$TRAIN' inspect cut.bin"
expect "no path" exits 64 'needs a file' "$TRAIN" inspect
expect "a word too many" exits 64 'did you mean .tensors.' "$TRAIN" inspect run tensor=true
cp -r $last damaged
printf x | dd of=damaged/model.safetensors bs=1 seek=9000 conv=notrunc 2> /dev/null
expect "a damaged checkpoint: exit 65" exits 65 '^$' bash -c "'$TRAIN' inspect damaged > said; s=\$?; echo >&2; exit \$s"
says "  it names the place" '^verified +no: model.safetensors is damaged: the hash of bytes' cat said
says "  and shows what it was" '^step +6$' cat said
printf '{' > damaged/state.json
says "a damaged manifest" '^verified +no: state.json' inspect damaged

# --- packed, marked and wide files, as tokenize reads them
"$TRAIN" train-tokenizer text.txt out=bpe vocab_size=300 > /dev/null
gzip -c bpe/tokenizer.json > tok.json.gz; { printf '\357\273\277'; cat bpe/tokenizer.json; } > mark.json; iconv -f utf-8 -t utf-16 bpe/tokenizer.json > wide.json
for file in bpe/tokenizer.json tok.json.gz mark.json wide.json; do
    says "$file is a tokenizer" '^entries +300$' inspect $file
    "$TRAIN" tokenize text.txt out=by tokenizer=$file val=0 > out 2>&1; ok $? "  for tokenize, too"
done
head -c 2000 text.txt | iconv -f ascii -t utf-16le > words.txt; cp words.txt words.bin
says "text in UTF-16 without a mark" '^kind +.*: utf-16le; text becomes tokens by ./train_gpt tokenize encoding=utf-16le' inspect words.txt
says "  of which nobody knows that it holds no tokens" "^kind +tokens without a header, as nanoGPT's, or text in utf-16le" inspect words.bin
says "  and a model of many ids does" 'words.bin has no header and looks like text in utf-16le: ./train_gpt tokenize words.bin encoding=utf-16le out=FOLDER' "$TRAIN" check tiny.json model.vocab_size=50257 data.train=words.bin data.val=

# --- diff: 0 the same, 1 other
differs() { local code=$1; shift; "$TRAIN" diff "$@" > said 2>&1; local s=$?; [ $s -eq "$code" ] || { echo "  exit $s:"; head -5 said; return 1; }; }
expect "a run and its twin: exit 0" differs 0 run same
says "  said so" '^nothing differs$' cat said
says "  the same losses" '^losses +the same numbers in all 6 common steps$' cat said
says "  the same bits" '^weights +28 tensors with the same bits, 0 that differ' cat said
expect "two runs: exit 1" differs 1 run other
says "  their keys" '^ +optimizer.learning_rate +0.001 . 0.002$' cat said
says "  how far they went" '^steps +6 . 8$' cat said
first=$(values run train loss > a; values other train loss > b; paste a b | awk '$1 != $2 { print NR; exit }')
says "  the first step that differs" "^first +step $first is the first .*: $(sed -n "${first}p" a) . $(sed -n "${first}p" b)\$" cat said
says "  where both end" "^at the end +step 6: $(sed -n 6p a) . $(sed -n 6p b), " cat said
says "  their tensors" '^ +transformer.wte.weight +\[256,42\] +max [0-9.e-]+ +relative [0-9.e-]+ +in [0-9]+ of 10752$' cat said
expect "two checkpoints of one run" differs 1 $last $last/../step_00000006/../../../other/checkpoints/step_00000006
says "  moments, too" '^ +v +\[55944\] +max ' cat said
expect "a checkpoint and its copy" differs 0 $last same/checkpoints/step_00000006
expect "two configs" differs 1 tiny.json "$WORK/../$(basename "$WORK")/run/config.json"
expect "a config and itself" differs 0 tiny.json tiny.json
expect "two files of weights" differs 1 bad.safetensors near.safetensors
says "  a value" '^ +one +\[3\] +max 0.5 +relative 0.1 +in 1 of 3$' cat said
says "  tensors of one alone" '^weights +0 tensors with the same bits, 2 that differ, 2 in one alone$' cat said
says "  of other types" '^ +ids +\[2\] +other bytes$' cat said
expect "a run and a config" exits 64 'give two of the same kind' "$TRAIN" diff run tiny.json
expect "one alone" exits 64 'needs two' "$TRAIN" diff run
expect "what is nothing" exits 65 'nowhere' "$TRAIN" diff run nowhere
expect "a config with faults" exits 64 'unknown key' bash -c "echo '{\"runs\":{}}' > faulty.json; '$TRAIN' diff faulty.json tiny.json 2>&1 | grep 'unknown key' >&2; exit \${PIPESTATUS[0]}"
exit $STATUS
