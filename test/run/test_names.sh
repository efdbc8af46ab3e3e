#!/usr/bin/env bash
# Names of files and sources. A name that exists as typed is that file, in data, run.dir, init_from and every
# subcommand. The tokenizer and tokens.json are found next to the opened files, for each source. Tokens outside of
# samples are reported and do not count for epochs.
. "$(dirname "$0")/lib/tiny.sh"
cd "$WORK" || exit 1
sed 's/the /die /g' text.txt > other.txt
"$TRAIN" train-tokenizer text.txt out=bpe vocab_size=280 > /dev/null && "$TRAIN" train-tokenizer other.txt out=bpe2 vocab_size=280 > /dev/null || exit 1
pairs() { "$TRAIN" tokenize "$1" tokenizer="$2" out="$3" val="${4:-0.1}" > /dev/null || echo "not ok tokenize $3"; }
odd='set [v2]/a*b=c' # a folder whose name would be a pattern
pairs text.txt bpe "$odd"; pairs text.txt bpe d/one; pairs other.txt bpe2 d/two
LLAMA=(model.arch=llama model.n_embd=32 model.n_head=2 model.n_inner=32 model.vocab_size=280 run.steps=2 eval.every=2 eval.tokens=0 checkpoint.every=2)
small() { train "${LLAMA[@]}" "$@"; }
# made RUN: prints what a run with other names of the same data must have in common: losses, bits per byte, and the
# names of the files in the last checkpoint.
made() { sed -E 's/.*("loss":[^,]*).*("bpb":[^,}]*).*/\1 \2/; s/.*("loss":[^,]*).*/\1/' "$1/metrics.jsonl" | grep loss; ls "$1/checkpoints/step_00000002"; }
same_run() { cmp <(made "$1") <(made "$2"); }

small run.dir=r data.train=d/one/train_000000.bin data.val=d/one/val_000000.bin > r.out 2>&1; ok $? "a run of two named files"
expect "it knows its tokenizer" [ -f r/checkpoints/step_00000002/tokenizer.json ]
expect "and its bits per byte" grep -q '"bpb":' r/metrics.jsonl
for pattern in 'd/*e/*_*.bin' 'd/[mno]ne/*_*.bin' './/d/on?//*_*.bin'; do
    rm -rf again; small run.dir=again data.train="${pattern/\*_/train_}" data.val="${pattern/\*_/val_}" > out 2>&1; ok $? "the same by $pattern"
    expect "to the same losses, bits per byte and files" same_run r again
done
weird=$'runs/-a "b" [c]*?=d\t\'e\''
small run.dir="$weird" data.train="$odd/train_*.bin" data.val="$odd/val_*.bin" > out 2>&1; ok $? "data in a folder with wildcards, run.dir with all that a name can hold"
expect "as of other folders" same_run r "$weird"
small run.dir="$weird" data.train="$odd/train_*.bin" data.val="$odd/val_*.bin" run.steps=4 run.resume=must > out 2>&1; ok $? "it resumes"
for verb in inspect eval sample diff; do
    second=(); [ $verb = diff ] && second=("$weird"); [ $verb = sample ] && second=(tokens=2)
    "$TRAIN" $verb "$weird" "${second[@]}" > out 2>&1; ok $? "$verb takes it"
done
"$TRAIN" export "$weird" out='e [1]*=' > out 2>&1; ok $? "export writes to such a name"
expect "inspect knows the weights there" grep -q 'a folder of safetensors weights' <("$TRAIN" inspect 'e [1]*=')
expect "and the tokens" grep -q 'a folder of token files' <("$TRAIN" inspect "$odd")
small run.dir=from model.init_from='e [1]*=' data.train="$odd/train_*.bin" data.val= > out 2>&1; ok $? "a run starts from there"
cp text.txt -- '-a=b.txt'; cp text.txt 'key=x'
"$TRAIN" tokenize -a=b.txt key=x out=both val=0 > out 2>&1; ok $? "texts whose names read like keys, where they are there"
expect "and keys where not" exits 64 'unknown option "ky"' "$TRAIN" tokenize text.txt ky=x out=both
mkdir '[x]'; cp "$odd"/* '[x]'
"$TRAIN" check tiny.json "${LLAMA[@]}" data.train='[x]/train_000000.bin' data.val= > out 2>&1; ok $? "a file in brackets as an override"
expect "a pattern there is taken for JSON" exits 64 'quote a name that begins like this: .data.train="..."' "$TRAIN" check tiny.json "${LLAMA[@]}" data.train='[x]/t*'
"$TRAIN" check tiny.json "${LLAMA[@]}" data.train='"[x]/train_*.bin"' data.val= > out 2>&1; ok $? "unless it is quoted, as the message says"
cp tiny.json -- -t.json; "$TRAIN" -t.json run.dir=dash run.steps=1 > out 2>&1; ok $? "a config whose name begins with a dash"

# --- sources of several tokenizers
refused() { exits 65 "d/one/tokenizer.json is not the tokenizer of the data, $1/tokenizer.json: $2" small run.dir=x "${@:3}"; }
expect "one pattern over two tokenizers" refused d/two 'from id 2.. on' data.train='d/*/train_*.bin' data.val=
expect "two patterns" refused d/two 'from id' 'data.train=["d/one/train_*.bin","d/two/train_*.bin"]' data.val=
expect "training and validation" refused d/two 'from id' data.train='d/one/train_*.bin' data.val='d/two/val_*.bin'
expect "a blend" refused d/two 'from id' 'data.train=[{"path":"d/one/train_*.bin","weight":0.5},{"path":"d/two/train_*.bin","weight":0.5}]' data.val=
cp -r d/one d/split; python3 - <<'PY'
import json
t = json.load(open("d/split/tokenizer.json")); m = t["model"]["merges"]
m[0], m[1] = m[1], m[0]
json.dump(t, open("d/split/tokenizer.json", "w"), indent=1)
v = {k: i for k, i in t["model"]["vocab"].items()} | {a["content"]: a["id"] for a in t["added_tokens"]}
m[0], m[1] = m[1], m[0]
import os; os.makedirs("d/pair")
json.dump(v, open("d/pair/vocab.json", "w"))
open("d/pair/merges.txt", "w").write("\n".join(x if isinstance(x, str) else " ".join(x) for x in m) + "\n")
PY
expect "as many ids, other merges" refused d/split 'their merges differ' data.train='d/one/train_*.bin' data.val='d/split/val_*.bin'
cp d/one/val_* d/one/tokens.json d/pair
small run.dir=pair data.train='d/one/train_*.bin' data.val='d/pair/val_*.bin' > out 2>&1; ok $? "vocab.json and merges.txt of the same tokenizer are the same"
expect "eval looks beside its own data" exits 65 "the model's own tokenizer is not the tokenizer of the data, d/two/tokenizer.json" "$TRAIN" eval r data='d/t*/val_*.bin'
# --- weights to start from, and the tokens that they were trained on
from() { local folder=$1; shift; small run.dir=x model.init_from="$folder" data.val= "$@"; }
differs() { exits 65 "model.init_from: $1/tokenizer.json is not the tokenizer of the data: $2" from "$3" data.train="$4"; }
step=r/checkpoints/step_00000002
expect "weights of another tokenizer" differs $step 'from id 2[0-9]+ on they differ' r 'd/two/train_*.bin'
expect "as many ids, other merges" differs $step 'their merges differ' $step 'd/split/train_*.bin'
expect "check refuses them too" exits 65 'is not the tokenizer of the data' "$TRAIN" check tiny.json "${LLAMA[@]}" model.init_from=r data.train='d/two/train_*.bin' data.val=
cure=$(sed -nE 's/.*\(\.\/train_gpt (tokenize TEXT out=FOLDER tokenizer=[^)]*)\).*/\1/p' err); cure=${cure/TEXT/other.txt}
eval "\"\$TRAIN\" ${cure/FOLDER/d\/cured}" > out 2>&1 && small run.dir=cured model.init_from=r data.train='d/cured/train_*.bin' data.val= > out 2>&1; ok $? "the command of the message makes the tokens that fit"
mkdir alone foreign piece; cp $step/model.safetensors $step/config.json alone; cp alone/* foreign; cp alone/* piece
small run.dir=alone.run model.init_from=alone data.train='d/two/train_*.bin' data.val= > out 2>&1; ok $? "weights without a tokenizer start from any tokens, as the message says"
expect "and no word is said" [ "$(grep -c 'model.init_from' out)" -eq 0 ]
echo '{"model": {"type": "Unigram", "vocab": [["a", 0.5]]}}' > foreign/tokenizer.json; echo x > piece/tokenizer.model
small run.dir=foreign.run model.init_from=foreign data.train='d/two/train_*.bin' data.val= > out 2>&1; ok $? "a tokenizer that is not read does not end the run"
expect "which says what is not known" grep -q 'warning: model.init_from: cannot check that the data were made with .*: foreign/tokenizer.json has a model of type Unigram' out
small run.dir=piece.run model.init_from=piece/model.safetensors data.train='d/two/train_*.bin' data.val= > out 2>&1
expect "and of a tokenizer.model" grep -q 'warning: model.init_from: cannot check that the data were made with the tokenizer piece/tokenizer.model' out
mkdir d/ids; cp d/one/train_* d/ids
ids() { small run.dir=$1 model.init_from=r data.train='d/ids/train_*.bin' data.val= "${@:2}" > out 2>&1; }
ids ids.run; ok $? "tokens without a tokenizer"
expect "warn" grep -q "warning: model.init_from: $step/tokenizer.json: cannot check that the data .* set data.tokenizer=$step/tokenizer.json" out
ids ids2.run data.tokenizer=$step/tokenizer.json && ! grep -q warning out; ok $? "and the key of the message says that they fit"
echo '{"vocab_size": 290}' > d/ids/tokens.json
expect "notes beside them say that another one made them" exits 65 "model.init_from: $step/tokenizer.json has 280 ids, but according to d/ids/tokens.json .* of 290 ids" from r data.train='d/ids/train_*.bin'

cp -r r moved; rm d/one/tokenizer.json; cp d/split/tokenizer.json d/one
expect "a resume with another tokenizer beside the same tokens" exits 65 'the tokenizer of the data is not the tokenizer of the checkpoint, moved/.*: their merges differ' \
    small run.dir=moved data.train=d/one/train_000000.bin data.val=d/one/val_000000.bin run.steps=3
small run.dir=moved data.train=d/one/train_000000.bin data.val=d/one/val_000000.bin run.steps=3 'run.allow_change=["data.train"]' > out 2>&1; ok $? "unless it is allowed, as the message says"
"$TRAIN" tokenize text.txt out=bytes val=0 > /dev/null; rm d/two/tokenizer.json
expect "tokens of two sizes of vocabulary, without their tokenizers" exits 65 'several tokenizers: one of 280 ids, according to d/two/tokens.json, and one of 256 ids, according to bytes/tokens.json' \
    small run.dir=x 'data.train=["d/two/train_*.bin","bytes/train_*.bin"]' data.val=

# --- shards that are links: the files of their own folder count where there are none beside the link
mkdir links; pairs text.txt bpe d/four; pairs other.txt bpe2 d/five
ln -s ../d/four/train_000000.bin links/train_0.bin; ln -s ../d/four/val_000000.bin links/val_0.bin
small run.dir=linked data.train='links/train_*.bin' data.val='links/val_*.bin' > out 2>&1; ok $? "a link to a shard"
expect "  knows its tokenizer" [ -f linked/checkpoints/step_00000002/tokenizer.json ]
expect "  and its bits per byte" grep -q '"bpb":' linked/metrics.jsonl
expect "  in inspect, too" grep -q '^begins  *"<|endoftext|>the ' <("$TRAIN" inspect links/train_0.bin)
ln -s ../d/five/train_000000.bin links/train_1.bin
expect "links to shards of two tokenizers" exits 65 '/d/four/tokenizer.json is not the tokenizer of the data, .*/d/five/tokenizer.json: from id' small run.dir=x data.train='links/train_*.bin' data.val=
rm links/train_1.bin; cp d/five/tokenizer.json links
expect "a tokenizer beside the link comes first" exits 65 "model's own tokenizer is not the tokenizer of the data, links/tokenizer.json" "$TRAIN" eval linked data='links/train_*.bin' tokens=40

# --- tokens that are never read: 10 files of 30 tokens hold no sample of 40, one of 100 holds two and a tail of 19
python3 - <<'PY'
import os, struct
os.makedirs("bits")
def shard(name, n): open("bits/" + name, "wb").write(struct.pack("<256i", 20240520, 1, n, *[0] * 253) + bytes(b for i in range(n) for b in (i % 200, 0)))
for i in range(10): shard(f"s_{i}.bin", 30)
shard("t.bin", 100)
open("bits/wide", "wb").write(struct.pack("<200I", *(i * 37 % 250 for i in range(200))))
PY
unread='never read: 300 tokens of 10 files shorter than a sample \(41 tokens\), 19 tokens after the last samples of other files'
bits=(data.train='bits/?*.bin' data.val= run.steps=1 batch.global_tokens=80 eval.every=0 checkpoint.every=0)
for verb in check plan; do
    "$TRAIN" $verb tiny.json "${bits[@]}" > out 2>&1
    expect "$verb says what is never read" grep -qE "2 samples.*: 1.00 epochs; $unread" out
done
train "${bits[@]}" run.dir=bits.run > out 2>&1; ok $? "a run of it"
expect "the banner, too" grep -qE "^data +400 tokens \(11 files\), 1.00 epochs; no validation; $unread" <(tr '\n' ' ' < out | sed -E 's/ +/ /g; s/.*(data 400)/\1/')
expect "one pass over all samples is epoch 1" [ "$(values bits.run train epoch)" = 1 ]
expect "tokens of uint32 without a header" exits 65 'bits/wide has no header and is read as uint16.*write it as uint16' train "${bits[@]}" data.train=bits/wide run.dir=x
train "${bits[@]}" data.train=bits/wide model.vocab_size=65600 run.dir=wide > out 2>&1; ok $? "are read where the vocabulary needs them"
expect "as so many" grep -q '200 tokens (1 file)' out
expect "and the banner says how they are read" grep -q '1 file without a header, read as uint32' out

# --- bytes that JSON cannot hold, quotes, control characters and long names
bad=$'b\xff"\x01\n\xe2\x82'
reads() { python3 -c 'import json, sys; json.loads(sys.stdin.buffer.read().decode("utf-8"))'; }
sed 's/, "dir": "[^"]*"//' tiny.json > "$bad.json"
expect "a config whose name is no UTF-8" exits 64 'run.dir is not given, and the name of this file, .* is not UTF-8: add run.dir=runs/NAME' "$TRAIN" "$bad.json" run.steps=1
"$TRAIN" "$bad.json" run.dir=runs/NAME run.steps=2 eval.every=0 > out 2>&1; ok $? "with the run.dir that was named it trains"
expect "and its files are JSON" eval 'reads < runs/NAME/config.json && reads < runs/NAME/checkpoints/step_00000002/state.json'
"$TRAIN" "$bad.json" run.dir=runs/NAME run.steps=3 eval.every=0 run.resume=must > out 2>&1; ok $? "it resumes"
expect "a run.dir that is no UTF-8" exits 64 'override "run.dir=.*: error: byte 0x.. of the value is not UTF-8, and a config holds nothing else' train run.dir="x$bad"
cp -r runs/NAME "$bad"
expect "a run in a folder that was renamed so" exits 64 'byte 0x.. of the value is not UTF-8, .*: give another name, or rename that file or folder' "$TRAIN" "$bad" run.steps=4
expect "its figures are JSON" eval '"$TRAIN" eval "$bad" data="data/val_*.bin" tokens=80 json=true 2> err | reads && "$TRAIN" inspect "$bad" json=true | reads'
echo '{"context": "the quick", "choices": [" brown", " x"], "gold": 0}' > "$bad.jsonl"
expect "those of a task of such a name, too" eval '"$TRAIN" eval "$bad" tasks="$bad.jsonl" json=true 2> err | reads'
"$TRAIN" plot "$bad" runs/NAME out=bad.svg csv=bad.csv > out 2>&1; ok $? "plot takes it"
expect "picture and table can be read" python3 -c 'import csv, xml.dom.minidom; xml.dom.minidom.parse("bad.svg"); assert len(list(csv.reader(open("bad.csv", encoding="utf-8")))) > 4'
mv "$bad" renamed; "$TRAIN" renamed run.steps=4 > out 2>&1; ok $? "renamed, as the message says, it goes on"
mkdir shards; long=$(printf 'l%.0s' $(seq 251))
for name in "$bad" $'t\x80' $'tab\t"q\\' "$long"; do cp data/train_000000.bin "shards/$name.bin"; done
for steps in 2 4; do
    train run.dir=shards.run data.train='shards/*.bin' run.steps=$steps eval.every=0 > out 2>&1; ok $? "shards of such names: step $steps"
done
expect "it resumed" grep -q '^resume .*at step 2,' out
expect "state.json is JSON" eval 'reads < shards.run/checkpoints/step_00000004/state.json'
mv "shards/$bad.bin" $'shards/b.bin'
expect "another name is another file" exits 64 'data.train: shard 0 is b.bin' train run.dir=shards.run data.train='shards/*.bin' run.steps=5 eval.every=0
mv shards/b.bin "shards/$bad.bin"
"$TRAIN" export shards.run out="$bad.model" > out 2>&1; ok $? "export"
expect "its card is UTF-8" python3 -c 'import glob; [open(f, encoding="utf-8").read() for f in glob.glob(b"*.model/README.md")[0:1] or [1 / 0]]'
expect "sweep.py refuses such a folder" exits 64 'is not UTF-8, and a config holds nothing else' python3 "$OLDPWD/scripts/sweep.py" space.json tiny.json --out "$bad"
# --- control characters in names: they could clear the screen or set its title, so each line prints them as \xNN
steers=$'st\e[2J\e[31m\a\x7f\xc2\x9bq'
mkdir "$steers"; cp text.txt "$steers/$steers.txt"; cp tiny.json "$steers/$steers.json"
# escaped CODE WORDS...: checks that the command ends with the code and prints the escaped name, and no raw control
# character except newline and tab
escaped() {
    local code=$1; shift
    NO_COLOR=1 "$TRAIN" "$@" > out 2> err; local status=$?
    [ $status -eq "$code" ] || { echo "exit $status: $*"; cat -v out err; return 1; }
    ! LC_ALL=C grep -qP '[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]' out err || { cat -v out err; return 1; }
    grep -qE 'st\\(x1b|u001b)\[2J\\(x1b|u001b)\[31m\\(x|u00)07\\x7f\\xc2\\x9bq' out err || { echo "no name: $*"; cat -v out err; return 1; }
}
expect "tokenize" escaped 0 tokenize "$steers/$steers.txt" out="$steers/data" val=0.1
expect "a run" escaped 0 "$steers/$steers.json" run.dir="$steers/run" run.steps=2 checkpoint.every=1
for verb in check plan; do expect "$verb" escaped 0 $verb "$steers/$steers.json" data.train="$steers/data/train_*.bin" run.dir="$steers/run"; done
expect "plan, without its data" escaped 0 plan tiny.json data.train="$steers/none" data.val=
for path in run run/metrics.jsonl data data/train_000000.bin; do expect "inspect $path" escaped 0 inspect "$steers/$path"; done
expect "inspect of a text" escaped 65 inspect "$steers/$steers.txt"
cp -r "$steers/run" "$steers/$steers"
expect "watch" escaped 0 watch "$steers/$steers" once=true
expect "sample" escaped 0 sample "$steers/run" tokens=1
expect "eval" escaped 0 eval "$steers/run"
expect "plot" escaped 0 plot "$steers/run" out="$steers/plot.svg" csv="$steers/plot.csv"
expect "export" escaped 0 export "$steers/run" out="$steers/export"
for verb in inspect watch sample eval plot; do expect "$verb of nothing" escaped 65 $verb "$steers/none"; done
for verb in plan check; do expect "$verb of nothing" escaped 64 $verb "$steers/none"; done
expect "export of nothing" escaped 65 export "$steers/none" out=nothing
expect "diff of nothing" escaped 65 diff "$steers/none" r
expect "an unknown verb" escaped 64 "$steers"
expect "an unknown key" escaped 64 tiny.json "run.$steers=1"
expect "a config that is none" escaped 64 "$steers/$steers.txt"
exit $STATUS
