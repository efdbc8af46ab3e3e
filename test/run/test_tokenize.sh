# ./train_gpt tokenize: every byte of the text is in one data file, the last part is held out, and a run that fails
# leaves the old files.
. "$(dirname "$0")/lib/tiny.sh"

tokenize() { "$TRAIN" tokenize "$@"; }
# prints the first three numbers of a shard's header: magic, version, tokens
header() { od -An -td4 -N12 "$1" | tr -s ' '; }
# prints the tokens of shards of byte tokens as text without zero bytes
bytes_of() { for shard in "$@"; do tail -c +1025 "$shard" | tr -d '\000'; done; }
names() { LC_ALL=C ls -A "$1" | tr '\n' ' '; }
state() { find "$1" -type f -exec cksum {} + | sort | cksum; }
unchanged() { [ "$(state "$OUT")" = "$BEFORE" ]; }
text=$WORK/text.txt size=$(wc -c < "$WORK/text.txt")
OUT=$WORK/shards

tokenize "$text" out="$OUT" val=0.05 > "$WORK/said"
held=$((size * 5 / 100))
expect "two shards" [ "$(names "$OUT")" = "tokens.json train_000000.bin val_000000.bin " ]
expect "llm.c header" [ "$(header "$OUT/train_000000.bin")" = " 20240520 1 $((size - held))" ]
expect "and what was read" grep -qx "  read     $text: text, utf-8, 1 document, $size bytes" "$WORK/said"
expect "  is in the notes" eval 'python3 -c "import json, sys; n = json.load(open(sys.argv[1])); assert n[\"inputs\"] == [{\"path\": sys.argv[2], \"format\": \"text\", \"encoding\": \"utf-8\", \"packing\": \"none\", \"documents\": 1, \"bytes\": int(sys.argv[3]), \"invalid_bytes\": 0}] and n[\"left_out\"] == []" "$OUT/tokens.json" "$text" "$size"'
expect "notes beside them" grep -q "\"vocab_size\": 256, \"train_tokens\": $((size - held)), \"val_tokens\": $held, \"bytes\": $size, \"bytes_per_token\": 1.000000" "$OUT/tokens.json"
expect "the last part is held out" [ "$(header "$OUT/val_000000.bin")" = " 20240520 1 $held" ]
bytes_of "$OUT/train_000000.bin" "$OUT/val_000000.bin" > "$WORK/back"
expect "every byte, in order" cmp "$WORK/back" "$text"
expect "prints its shards" grep -q "train .*$((size - held)) tokens .*$OUT/train_000000.bin" "$WORK/said"
expect "and the held-out part" grep -q "val .*$held tokens .*$OUT/val_000000.bin" "$WORK/said"

tokenize "$text" out="$OUT/" val=0.2 shard_tokens=7001 > "$WORK/said"
bytes_of "$OUT"/train_*.bin "$OUT"/val_*.bin > "$WORK/back"
expect "many shards hold the same bytes" cmp "$WORK/back" "$text"
expect "shards are of the size asked for" [ "$(header "$OUT/train_000000.bin")" = " 20240520 1 7001" ]
expect "shards but the last" [ "$(header "$OUT/val_000000.bin")" = " 20240520 1 7001" ]

for name in train_1.bin train_0000010.bin notes.txt train_000099.bin.tmp my_train_000099.bin val_000099.bin; do touch "$OUT/$name"; done
tokenize "$text" out="$OUT" val=0 > "$WORK/said"
expect "older shards are gone, other files stay" \
    [ "$(names "$OUT")" = "my_train_000099.bin notes.txt tokens.json train_000000.bin train_0000010.bin train_000099.bin.tmp train_1.bin " ]
expect "and it prints their number" grep -q 'replaced [0-9]* shards* .*, removed [0-9]' "$WORK/said"
cp -r "$OUT" "$WORK/mixed"; echo "my text" > "$WORK/mixed/train_000007.bin"; cat "$WORK"/mixed/*.bin > "$WORK/before"
expect "a file that no tokenize made is in the way" exits 64 "train_000007.bin .*in the way" tokenize "$text" out="$WORK/mixed" val=0
cat "$WORK"/mixed/*.bin > "$WORK/after"; expect "and nothing there is touched" cmp "$WORK/before" "$WORK/after"
# others NAME REASON: checks that `tokenize out=$WORK/others` is refused for REASON and changes nothing there. The
# message proposes another folder, and that one works.
others() {
    local before; before=$(state "$WORK/others")
    expect "$1" exits 64 "others.* is in the way: $2.*; take another folder, out=$WORK/others-2, or move it away" tokenize "$text" out="$WORK/others" val=0
    expect "  is left as it is" [ "$(state "$WORK/others")" = "$before" ]
}
for name in tokens.json tokens.inputs.jsonl; do
    mkdir "$WORK/others"; echo '{"mine": 1}' > "$WORK/others/$name"
    others "a $name of another program" "tokenize did not write it, and would replace it"; rm -r "$WORK/others"
done
mkdir "$WORK/others"; : > "$WORK/others/tokens.json"
tokenize "$text" out="$WORK/others" val=0 > /dev/null; ok $? "an empty one, as a killed call leaves it, is no fault"; rm -r "$WORK/others"
mkdir "$WORK/others"; cp "$OUT/train_000000.bin" "$WORK/others"
others "a shard of another program" "no tokens.json beside it says that tokenize wrote it"
echo '{"mine": 1}' > "$WORK/others/tokens.json"
others "with notes of another program" "no tokens.json beside it says that tokenize wrote it"
cp "$OUT/tokens.json" "$WORK/others"; cp "$OUT/train_000000.bin" "$WORK/others/val_000007.bin"
others "another one beside shards of tokenize" "the shards here hold more tokens than the tokens.json beside it counts"
rm "$WORK/others/val_000007.bin"; mkdir "$WORK/others/tokenize.tmp"; echo mine > "$WORK/others/tokenize.tmp/keep"
others "tokenize.tmp with other files" "tokenize did not make it, and would delete it, because it empties this folder"
rm -r "$WORK/others/tokenize.tmp"; echo mine > "$WORK/others/tokenize.tmp"
others "a file of that name" "it is not a folder"
rm "$WORK/others/tokenize.tmp"; mkdir "$WORK/others/tokenize.tmp"; touch "$WORK/others/tokenize.tmp/input_0"; cp "$OUT/train_000000.bin" "$WORK/others/val_000007.bin"
expect "but not what a tokenize left that was killed while it moved its shards" eval 'tokenize "$text" out="$WORK/others" val=0 && [ "$(names "$WORK/others")" = "tokens.json train_000000.bin " ]'
bytes_of "$OUT/train_000000.bin" > "$WORK/back"
expect "val=0 holds nothing out" cmp "$WORK/back" "$text"

head -c 5 "$text" > "$WORK/a"; tail -c +6 "$text" | head -c 500 > "$WORK/b"; : > "$WORK/empty"; tail -c +506 "$text" > "$WORK/c"
tokenize "$WORK/a" "$WORK/empty" "$WORK/b" "$WORK/c" out="$WORK/parts" val=0 > /dev/null
expect "several texts are one, in order" cmp "$WORK/parts/train_000000.bin" "$OUT/train_000000.bin"
tail -c +6 "$text" | head -c 500 | tokenize "$WORK/a" - "$WORK/c" out="$WORK/piped" val=0 > /dev/null
expect "standard input among them" cmp "$WORK/piped/train_000000.bin" "$OUT/train_000000.bin"
cat "$text" | tokenize - out="$WORK/piped" > /dev/null
tokenize "$text" out="$WORK/default" > /dev/null
held=$((size / 100))
expect "a pipe is held out like a file" cmp "$WORK/piped/val_000000.bin" "$WORK/default/val_000000.bin"
expect "1 % by default" [ "$(header "$WORK/default/val_000000.bin")" = " 20240520 1 $held" ]
# interrupted NAME SIGNAL BEGUN COMMAND...: runs the command and sends it SIGNAL as soon as the file BEGUN exists. It
# must end with 75 and leave no files.
interrupted() {
    local name=$1 signal=$2 begun=$3 before; shift 3; before=$(state "$OUT")
    ("$@" > "$WORK/out" 2> "$WORK/err") & job=$!
    within 30 [ -s "$begun" ]
    expect "$name: it has begun" [ -s "$begun" ]
    strike "$signal" $job || return; wait $job
    expect "  ends with 75, and a line" eval "[ $? = 75 ] && grep -qx 'train_gpt: tokenize: .* was not read to its end, because a signal asked the program to stop' '$WORK/err'"
    expect "  and leaves nothing" [ "$(state "$OUT")" = "$before" ]
    expect "  nor folders that it made" [ ! -e "${begun%/*}" ]
}
mkfifo "$WORK/slow"; exec 9<> "$WORK/slow"; cat "$text" >&9 # a pipe that never ends
slowly() { exec "$TRAIN" tokenize - out="$1" < "$WORK/slow" 9>&-; }
for i in $(seq 400); do cat "$text"; done > "$WORK/long"
"$TRAIN" train-tokenizer "$text" out="$WORK/bpe0" vocab_size=300 > /dev/null
longly() { exec "$TRAIN" tokenize "$WORK/long" out="$OUT" val=0 tokenizer="$WORK/bpe0" shard_tokens=100000; }
interrupted "a slow pipe" INT "$WORK/none/of/it/tokenize.tmp/input_0" slowly "$WORK/none/of/it"
expect "  above it" [ ! -e "$WORK/none" ]; exec 9>&-
mkfifo "$WORK/silent" # a pipe that nobody writes to
"$TRAIN" tokenize "$WORK/silent" out="$WORK/unheard" 2> "$WORK/err" & job=$!
within 30 [ -e "$WORK/unheard/tokenize.tmp/input_0" ]; strike TERM $job; wait $job
expect "a pipe without a writer: the first signal ends with 75, and a line" eval "[ $? = 75 ] && grep -q 'silent was not read to its end' '$WORK/err'"
expect "  and leaves nothing" [ ! -e "$WORK/unheard" ]
interrupted "a long text" TERM "$OUT/tokenize.tmp/train_000000.bin" longly
mkdir -p "$OUT/tokenize.tmp"; echo killed > "$OUT/tokenize.tmp/train_000777.bin"
tokenize "$text" out="$OUT" val=0 > "$WORK/said"; ok $? "what a killed job has left there"
expect "is replaced, and read by nobody" [ "$(names "$OUT" | grep -c -e tmp/ -e 777)" = 0 ]
rm "$WORK/long"
printf '{"text": "a"}\n{"body": "b"}\n' > "$WORK/bad.jsonl"
expect "a fault in a pipe is standard input's" exits 65 'tokenize: standard input: line 2 has no field "text"' eval 'cat "$WORK/bad.jsonl" | tokenize - out="$WORK/made/by/it" val=0'
expect "  and in a file by that way, too" exits 65 'tokenize: standard input: line 2 has no field "text"' eval 'tokenize - out="$WORK/made/by/it" val=0 < "$WORK/bad.jsonl"'
expect "  and for train-tokenizer" exits 65 'train-tokenizer: standard input: line 2 has no field "text"' eval 'cat "$WORK/bad.jsonl" | "$TRAIN" train-tokenizer - out="$WORK/made" vocab_size=300'
expect "an empty pipe is called so, too" exits 65 'tokenize: standard input holds no text' eval 'tokenize - out="$WORK/made" < <(true)'
expect "too little to hold out" exits 65 '5 bytes .*val=0.1' tokenize "$WORK/a" out="$WORK/made/by/it" val=0.1
expect "folders made for these are gone" [ ! -e "$WORK/made" ]
mkdir "$WORK/mine"; quiet exits 65 'no field' eval 'cat "$WORK/bad.jsonl" | tokenize - out="$WORK/mine/made" val=0'
expect "folders of before are not" [ "$(names "$WORK/mine")" = "" ] && expect "  and stand" [ -d "$WORK/mine" ]
expect "no copy of the pipe stays" [ "$(names "$WORK/piped")" = "tokens.json train_000000.bin val_000000.bin " ]
printf '\001\377\000\020\012\376' > "$WORK/binary"; tokenize "$WORK/binary" format=text out="$WORK/binary-out" val=0.5 > /dev/null
expect "all 256 bytes are tokens" [ "$(tail -c +1025 "$WORK/binary-out/train_000000.bin" | od -An -tu2)" = "     1   255     0" ]

BEFORE=$(state "$OUT")
expect "no text" exits 64 'it needs a text to read.*usage:' tokenize
expect "no folder" exits 64 'out= is missing: .*usage:' tokenize "$text"
expect "unknown option" exits 64 'unknown option "tokens": there are out=.*val=.*shard_tokens=' tokenize "$text" out="$OUT" tokens=3
expect "unknown flag" exits 64 'unknown option "--out"' tokenize "$text" --out "$OUT"
for value in 1 -0.1 2 nan inf x '' 0.5x; do
    expect "val=$value" exits 64 "val=$value: a number from 0 to 0.999 is expected, as in val=0.05" tokenize "$text" out="$OUT" val="$value"
done
for value in 0 -1 2147483648 99999999999999999999 1.5 ''; do
    expect "shard_tokens=$value" exits 64 "shard_tokens=$value: a whole number" tokenize "$text" out="$OUT" shard_tokens="$value"
done
expect "missing input" exits 65 'cannot read .*nowhere.txt: No such file' tokenize "$text" "$WORK/nowhere.txt" out="$OUT"
expect "shards as input" exits 65 'train_000000.bin is a shard of tokens already' tokenize "$OUT" out="$OUT"
expect "empty input" exits 65 'empty is empty' tokenize "$WORK/empty" out="$OUT"
expect "empty pipe" exits 65 'holds no text' tokenize - out="$OUT" < /dev/null
expect "too little to hold out" exits 65 '5 bytes .*val=0.1' tokenize "$WORK/a" out="$OUT" val=0.1
expect "a file where the folder should be" exits 74 "$WORK/a" tokenize "$text" out="$WORK/a"
expect "a folder under a file" exits 74 "$WORK/a/below" tokenize "$text" out="$WORK/a/below"
limited() { (ulimit -f 8; tokenize "$@"); }
expect "no room for the shards" exits 74 'cannot write .*train_000000.bin.*: File too large' limited "$text" out="$OUT"
expect "no room for a pipe" exits 74 'cannot write .*: File too large' limited - out="$OUT" < <(cat "$text")
if [ "$(id -u)" != 0 ]; then
    mkdir "$WORK/closed"; chmod 500 "$WORK/closed"
    expect "folder without permission" exits 74 "$WORK/closed" tokenize "$text" out="$WORK/closed/x"
    cp "$text" "$WORK/secret"; chmod 0 "$WORK/secret"
    expect "text without permission" exits 65 'secret: Permission denied' tokenize "$WORK/secret" out="$OUT"
else
    echo "skip permissions do not bind root"
fi
expect "after all these the shards are as they were" unchanged
# a temporary file that a killed run has left
mkdir -p "$OUT/tokenize.tmp"; echo rest > "$OUT/tokenize.tmp/train_000000.bin.tmp"
tokenize "$text" out="$OUT" val=0 > /dev/null
expect "leftovers of a killed run are cleared" unchanged
expect "help" eval 'tokenize --help | grep -q "out=FOLDER"'

# Tokenizes with a byte-level BPE tokenizer, whose merges are pairs of letters that are frequent in the text.
mkdir -p "$WORK/bpe"
python3 - "$WORK/bpe/tokenizer.json" <<'PY'
import json, sys
printable = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
rest = [b for b in range(256) if b not in printable]
chars = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(rest)}
vocab = {chars[b]: b for b in range(256)}
merges = [["t", "h"], ["th", "e"], ["\u0120", "the"], ["o", "n"], ["q", "u"], ["r", "i"], ["\u0120", "a"], ["s", "t"]]
for a, b in merges: vocab[a + b] = len(vocab)
json.dump({"added_tokens": [{"id": len(vocab), "content": "<|endoftext|>"}], "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
           "model": {"type": "BPE", "vocab": vocab, "merges": merges}}, open(sys.argv[1], "w"))
PY
B2=$WORK/bpe-shards
expect "tokenize with a tokenizer" eval 'tokenize "$text" out="$B2" tokenizer="$WORK/bpe" val=0.1 > "$WORK/said"'
expect "says bytes a token and the ids" grep -qE "[0-9.]+ a token, ids from 0 to 264" "$WORK/said"
expect "its files lie beside the shards" cmp "$WORK/bpe/tokenizer.json" "$B2/tokenizer.json"
ids() { tail -c +1025 "$1" | od -An -v -tu2 | tr -s ' \n' '\n\n' | grep .; }
expect "a text begins after <|endoftext|>" [ "$(ids "$B2/train_000000.bin" | head -n 1)" = 264 -a "$(ids "$B2/train_000000.bin" "$B2/val_000000.bin" | grep -c '^264$')" -eq 1 ]
for option in "eot=last 1" "eot=none 0"; do
    cp "$text" "$text.copy"; tokenize "$text" "$text.copy" out="$WORK/eot" tokenizer="$WORK/bpe" val=0 ${option% *} > /dev/null
    expect "two texts, ${option% *}" [ "$(ids "$WORK/eot/train_000000.bin" | grep -c '^264$')" -eq $((2 * ${option#* })) ]
done
tokenize "$text" out="$WORK/small" tokenizer="$WORK/bpe/tokenizer.json" val=0 eot=none shard_tokens=999 > /dev/null
tokenize "$text" out="$WORK/large" tokenizer="$WORK/bpe" val=0 eot=none > /dev/null
expect "many shards hold the same tokens" cmp <(for shard in "$WORK/small"/train_*.bin; do ids "$shard"; done) <(ids "$WORK/large/train_000000.bin")
expect "the same shards again, over those of before" tokenize "$text" out="$B2" tokenizer="$WORK/bpe" val=0.1
expect "a tokenizer that is not there" exits 65 "none is not there" tokenize "$text" out="$B2" tokenizer="$WORK/none"
expect "eot that is none of them" exits 64 'eot=x: first, last or none' tokenize "$text" out="$B2" tokenizer="$WORK/bpe" eot=x
head -c 3000 "$text" | tr -d '\n' > "$WORK/line"
expect "of one long line the end is held out, from a word on" eval 'tokenize "$WORK/line" out="$WORK/one-line" tokenizer="$WORK/bpe" > /dev/null; [ "$(ids "$WORK/one-line/val_000000.bin" | wc -l)" -gt 3 ]'
tr '\n' '\r' < "$text" > "$WORK/cr"; tokenize "$WORK/cr" out="$WORK/cr-shards" tokenizer="$WORK/bpe" val=0.1 > /dev/null
expect "a line may end in a carriage return" eval '[ "$(ids "$WORK/cr-shards/val_000000.bin" | wc -l)" -gt 3000 ] && ids "$WORK/cr-shards/train_000000.bin" | tail -n 1 | grep -qx 13'
MODEL="model.vocab_size=265 data.train=$B2/train_*.bin data.val=$B2/val_*.bin run.dir=$WORK/bpe-run"
expect "training finds it there" eval 'train $MODEL sample.every=6 sample.prompt="the quick" sample.tokens=20 > "$WORK/out"'
expect "and its samples are words, not ids" eval 'grep -q "the quick" "$WORK/out" && ! grep -qE "<[0-9]+>.*<[0-9]+>.*<[0-9]+>" <(sed -n "/^sample/,\$p" "$WORK/out")'
expect "sample finds it, too" eval '"$TRAIN" sample "$WORK/bpe-run" prompt="the quick" tokens=8 | grep -q "^the quick"'
expect "a folder with a star means the shards in it" quiet train $MODEL data.train="$B2/*" data.val= run.dir="$WORK/star"
sed 's/"st": /"sx": /' "$WORK/bpe/tokenizer.json" | sed 's/\["s", "t"\]/["s", "x"]/' > "$WORK/other.json"
expect "a tokenizer that is not the data's" exits 65 "other.json is not the tokenizer of the data, $B2/tokenizer.json: from id 263 on" train $MODEL run.dir="$WORK/x" data.tokenizer="$WORK/other.json"
expect "a tokenizer, and data of bytes" exits 65 "bpe/tokenizer.json has 265 ids, but according to $OUT/tokens.json the tokens beside that file were made with another tokenizer, of 256 ids" train model.vocab_size=265 data.train="$OUT/train_*.bin" data.val= run.dir="$WORK/x" data.tokenizer="$WORK/bpe/tokenizer.json"
expect "  data.val, too" exits 65 "bpe-shards/tokenizer.json has 265 ids, but according to $WORK/data/tokens.json the tokens beside that file were made with another tokenizer, of 256 ids" train $MODEL data.val="$WORK/data/val_*.bin" run.dir="$WORK/x"
expect "  in check and in eval" exits 65 "according to $WORK/data/tokens.json the tokens beside that file were made with another tokenizer, of 256 ids" "$TRAIN" check "$WORK/tiny.json" model.vocab_size=265 data.tokenizer="$WORK/bpe"
expect "  and of a trained model" exits 65 "according to $WORK/data/tokens.json the tokens beside that file were made with another tokenizer, of 256 ids" "$TRAIN" eval "$WORK/bpe-run" data="$WORK/data/val_*.bin"
# tokenize copies files that belong to the tokenizer to the output folder: tokenizer_config.json as it is, a packed
# tokenizer unpacked.
cp -r "$WORK/bpe" "$WORK/begin"; echo '{"bos_token": "<|endoftext|>", "add_bos_token": true}' > "$WORK/begin/tokenizer_config.json"
for form in begin begin/tokenizer.json; do
    rm -rf "$WORK/began"; tokenize "$text" out="$WORK/began" val=0.1 tokenizer="$WORK/$form" > /dev/null
    expect "tokenizer=$form: its tokenizer_config.json is there" cmp "$WORK/began/tokenizer_config.json" "$WORK/begin/tokenizer_config.json"
done
train $MODEL run.dir="$WORK/began-run" run.steps=1 eval.every=0 data.train="$WORK/began/train_*.bin" data.val= > "$WORK/out" 2>&1
for verb in "eval data=$WORK/began/val_*.bin" sample; do
    # shellcheck disable=SC2086
    expect "  the model of such tokens begins texts with it, by ${verb%% *}" grep -q 'each text begins with token 264 .*/began-run/.*/tokenizer_config.json: add_bos_token' \
        <(set -f; "$TRAIN" ${verb%% *} "$WORK/began-run" ${verb#"${verb%% *}"} tokens=40 2>&1)
done
gzip -c "$WORK/bpe/tokenizer.json" > "$WORK/packed.json.gz"
tokenize "$text" out="$WORK/unpacked" val=0 tokenizer="$WORK/packed.json.gz" > /dev/null
expect "a packed tokenizer is unpacked beside the shards" cmp "$WORK/unpacked/tokenizer.json" "$WORK/bpe/tokenizer.json"
# Writes tokenizer files that are packed, cut short, or in forms that are not supported.
python3 - "$WORK" <<'PY'
import base64, gzip, json, os, sys
at = sys.argv[1] + "/"
printable = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
rest = [b for b in range(256) if b not in printable]
vocab = {chr(b if b in printable else 256 + rest.index(b)): b for b in range(256)} | {"th": 256, "the": 257}
for name, merges in {"whole": "#version: 0.2\nt h\nth e\n", "cut": "#version: 0.2\nt h\n", "bare": ""}.items():
    os.makedirs(at + "pair-" + name)
    json.dump(vocab, open(at + "pair-" + name + "/vocab.json", "w"))
    open(at + "pair-" + name + "/merges.txt", "w").write(merges)
ranks = b"".join(base64.b64encode(bytes([b])) + b" %d\n" % b for b in range(256)) + base64.b64encode(b"th") + b" 256\n"
open(at + "gpt2.tiktoken.gz", "wb").write(gzip.compress(ranks))
os.makedirs(at + "pieces")
open(at + "pieces/tokenizer.model", "wb").write(b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02" + b"\n\x0c\n\x03abc\x15\0\0\x80\xbf" * 50)
PY
quietly() { tokenize "$text" out="$WORK/formed" val=0 eot=none "$@" > "$WORK/said" 2> "$WORK/err"; }
expect "a pair that is whole: no word" eval 'quietly tokenizer="$WORK/pair-whole" && [ ! -s "$WORK/err" ]'
for cut in cut bare; do
    rm -rf "$WORK/formed"
    expect "merges.txt $cut: a warning" eval 'quietly tokenizer="$WORK/pair-$cut" && grep -qE "warning: .*pair-$cut/merges.txt: [01] merges make at most as many of the 2 tokens" "$WORK/err"'
done
rm -rf "$WORK/formed"
expect "a packed .tiktoken" quietly tokenizer="$WORK/gpt2.tiktoken.gz"
expect "  is plain beside the shards, and found there" eval 'grep -q "^dGg= 256$" "$WORK/formed/gpt2.tiktoken" && "$TRAIN" inspect "$WORK/formed/train_000000.bin" | grep -q "^begins .*the "'
rm -rf "$WORK/formed"
expect "a model of SentencePiece is called that" exits 65 'tokenizer.model is a model of SentencePiece, which is not read: ' tokenize "$text" out="$WORK/formed" tokenizer="$WORK/pieces/tokenizer.model"
expect "  and its folder" exits 65 'pieces holds no tokenizer that this program reads: its tokenizer.model is a tokenizer of SentencePiece' tokenize "$text" out="$WORK/formed" tokenizer="$WORK/pieces"
bzip2 -c "$WORK/bpe/tokenizer.json" > "$WORK/t.json.bz2" 2> /dev/null &&
    expect "a tokenizer packed by bzip2: one sentence with its command" exits 65 "t.json.bz2 is packed by bzip2, which is not read: bzip2 -dc < $WORK/t.json.bz2 > NEW unpacks it$" tokenize "$text" out="$WORK/formed" tokenizer="$WORK/t.json.bz2"
# a model with more ids than 256 can be trained on bytes
train model.vocab_size=304 run.dir="$WORK/wide" run.steps=1 eval.every=0 > "$WORK/out" 2>&1; ok $? "bytes train a model with more ids"
"$TRAIN" sample "$WORK/wide" prompt="the quick" tokens=4 > "$WORK/out" 2> "$WORK/err"; ok $? "  which reads a prompt"
expect "  as bytes" grep -q '^the quick' "$WORK/out"
cp -r "$WORK/data" "$WORK/bare"; rm "$WORK/bare/tokens.json"
train model.vocab_size=304 run.dir="$WORK/bare-run" run.steps=1 eval.every=0 data.train="$WORK/bare/train_*.bin" data.val= > "$WORK/out" 2>&1; ok $? "tokens without notes"
expect "  are ids" exits 64 'has token ids only, no tokenizer that takes text: give tokenizer=FOLDER_OR_FILE' "$TRAIN" sample "$WORK/bare-run" prompt="the quick" tokens=4
"$TRAIN" sample "$WORK/bare-run" prompt="the quick" tokens=4 tokenizer="$WORK/wide/checkpoints/step_00000001" > "$WORK/out" 2> "$WORK/err"; ok $? "  and the key of the message helps"
mkdir "$WORK/unnoted"; cp "$WORK/data/"*.bin "$WORK/unnoted"
expect "without notes nothing is known" quiet train $MODEL data.val="$WORK/unnoted/val_*.bin" run.dir="$WORK/unnoted-run" run.steps=1
expect "a tokenizer with more ids than the model" exits 64 "has ids up to 264, and model.vocab_size is 260" train $MODEL run.dir="$WORK/x" data.tokenizer="$WORK/bpe" model.vocab_size=260

# --- a vocabulary is learnt from a text; the text is tokenized with it, and a model trained on it writes words
learn() { "$TRAIN" train-tokenizer "$@"; }
expect "a vocabulary is learnt" eval 'learn "$text" out="$WORK/own" vocab_size=320 > "$WORK/said"'
expect "its size, merges and the next command are said" grep -q "a vocabulary of 3[0-9]*: the bytes, [0-9]* merges" "$WORK/said"
expect "the same from the same text" eval 'learn "$text" out="$WORK/own2" vocab_size=320 > /dev/null; cmp "$WORK/own/tokenizer.json" "$WORK/own2/tokenizer.json"'
tokenize "$text" out="$WORK/own" tokenizer="$WORK/own" val=0.1 > "$WORK/said"
expect "its own tokens are longer than bytes" awk '/bytes of text/ { for (i = 1; i < NF; i++) if ($(i + 1) == "a" && $i > 2) good = 1 } END { exit !good }' "$WORK/said"
expect "a model is trained on them" quiet train model.vocab_size=320 data.train="$WORK/own/train_*.bin" data.val="$WORK/own/val_*.bin" run.dir="$WORK/own-run"
expect "and sampled" eval '"$TRAIN" sample "$WORK/own-run" prompt="fox" tokens=4 | grep -q "^fox"'
for pattern in cl100k_base o200k_base '\S+|\s+'; do expect "pattern=$pattern" eval 'rm -rf "$WORK/pattern"; learn "$text" out="$WORK/pattern" vocab_size=300 pattern="$pattern" > /dev/null'; done
was=$(cksum < "$WORK/own/tokenizer.json")
expect "a tokenizer that is there is not written over" exits 64 'own/tokenizer.json is there already, .*another out=' learn "$text" out="$WORK/own" vocab_size=300
expect "  and stays as it was" [ "$(cksum < "$WORK/own/tokenizer.json")" = "$was" ]
mkdir "$WORK/pair"; echo '{}' > "$WORK/pair/vocab.json"
expect "nor is one of two files joined by a third" exits 64 'pair/vocab.json is there already' learn "$text" out="$WORK/pair" vocab_size=300
expect "the cure, another out=" quiet learn "$text" out="$WORK/pair2" vocab_size=300
expect "a limit on the size of files: 74, and the file" eval '(ulimit -f 1; exits 74 "limited/tokenizer.json: File too large" learn "$text" out="$WORK/limited" vocab_size=320)'
expect "a pattern that is none" exits 64 'pattern=\(: the pattern .* is not a regular expression' learn "$text" out="$WORK/x" vocab_size=300 pattern='('
expect "no size" exits 64 'vocab_size= is missing: .*50304' learn "$text" out="$WORK/x"
expect "a size too small" exits 64 'vocab_size=256: a whole number from 257' learn "$text" out="$WORK/x" vocab_size=256
expect "no text to learn from" exits 64 'needs a text to read' learn out="$WORK/x" vocab_size=300
expect "an empty text" exits 65 'empty' learn "$WORK/empty" out="$WORK/x" vocab_size=300
# Writes texts that are longer than a chunk of the tokenizer, and tokenizers with patterns that only Oniguruma reads,
# with a pattern that backtracks without end, and with a begin token in the post_processor.
python3 - "$WORK" <<'PY'
import json, os, sys
work = sys.argv[1]
def write(name, pattern, **more):
    t = json.load(open(work + "/bpe/tokenizer.json"))
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    t["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}, level]}
    t["added_tokens"].append({"id": 265, "content": "on t", "normalized": False})
    t.update(more)
    os.makedirs(work + "/" + name)
    json.dump(t, open(work + "/" + name + "/tokenizer.json", "w"))
write("by-line", r"[^\n]+|\n")
write("by-word", r"\b\w+\b|[^\w&&[^!]]+|!")
write("runaway", r"(\w+)+!")
write("begins", "", pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False}, added_tokens=[{"id": 264, "content": "<|endoftext|>"}], post_processor={"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [], "special_tokens": {"x": {"id": "x", "ids": [264], "tokens": ["<|endoftext|>"]}}})
open(work + "/lines.txt", "w").write("the st\n" * 200000)
open(work + "/added.txt", "w").write("on t" * 300000)
open(work + "/words.txt", "w").write("a" * 40 + " !")
PY
counted() { rm -rf "$WORK/long"; tokenize "$WORK/$1" out="$WORK/long" tokenizer="$WORK/$2" val=0 eot=none > /dev/null; ids "$WORK/long/train_000000.bin" | sort -n | uniq -c | tr -s ' \n' ' '; }
expect "1.4 MB in lines: each has the ids of its own" [ "$(counted lines.txt by-line)" = " 200000 10 200000 32 200000 257 200000 263 " ]
expect "an added token with a space, 1.2 MB of it" [ "$(counted added.txt by-line)" = " 300000 265 " ]
expect "a pattern for Oniguruma, in 1.4 MB" [ "$(counted lines.txt by-word)" = " 200000 10 200000 32 200000 257 200000 263 " ]
expect "a pattern that runs away" exits 65 'runaway/tokenizer.json: the pattern .* backtracks without end at byte 0 of the text.*\(while reading .*words.txt\)' tokenize "$WORK/words.txt" out="$WORK/away" tokenizer="$WORK/runaway" val=0
expect "  in train-tokenizer, too" exits 65 'train-tokenizer: the pattern .* backtracks without end at byte 0.*\(while reading .*words.txt\)' learn "$WORK/words.txt" out="$WORK/x" vocab_size=300 pattern='(\w+)+!'
expect "a begin token is told, and not printed" eval '[ "$("$TRAIN" sample "$WORK/bpe-run" tokenizer="$WORK/begins" prompt=fox tokens=0 2> "$WORK/said")" = fox ] && grep -q "^sample: each text begins with token 264 .*endoftext.*begins/tokenizer.json: post_processor)" "$WORK/said"'
gzip -c "$text" > "$WORK/text.gz"
expect "the same from a packed text" eval 'learn "$WORK/text.gz" out="$WORK/own3" vocab_size=320 > /dev/null; cmp "$WORK/own/tokenizer.json" "$WORK/own3/tokenizer.json"'
expect "and from rows" eval 'python3 -c "import json, sys; print(json.dumps({\"body\": open(sys.argv[1]).read()}))" "$text" > "$WORK/one.jsonl"; learn "$WORK/one.jsonl" field=body out="$WORK/own4" vocab_size=320 > /dev/null; cmp "$WORK/own/tokenizer.json" "$WORK/own4/tokenizer.json"'
expect "binary files are refused" exits 65 'binary is binary.*format=text' learn "$WORK/binary" out="$WORK/x" vocab_size=300
expect "nothing was written for these" [ ! -e "$WORK/x" ]
exit $STATUS
