# What tokenize reads: documents in text, JSON Lines, folders, packed by gzip, zstd and xz; what it holds out of them; and its word on
# every file that it cannot read. Parquet: test/data/test_parquet.c.
. "$(dirname "$0")/lib/tiny.sh"
tokenize() { "$TRAIN" tokenize "$@"; }
text_of() { for shard in "$@"; do tail -c +1025 "$shard" | tr -d '\000'; done; }
header_tokens() { od -An -td4 -j8 -N4 "$1" | tr -d ' '; }
ROOT=$PWD; cd "$WORK" || exit 1

python3 - <<'PY'
import gzip, json, lzma, os, struct
rows = [{"id": i, "meta": {"text": "not this"}, "text": f"row {i}: the quick brown fox; \u00e9\U0001f600\n\t\"q\"" + " word" * (i % 7)} for i in range(1000)]
rows[3]["text"] = ""
lines = "".join(json.dumps(r, ensure_ascii=i % 2 == 0) + ("\r\n" if i % 5 == 0 else "\n") for i, r in enumerate(rows)).encode()
open("rows.jsonl", "wb").write(lines)
open("rows.jsonl.gz", "wb").write(gzip.compress(lines[:30000]) + gzip.compress(lines[30000:]))  # two members are one text
open("rows.ndjson.xz", "wb").write(lzma.compress(lines))
def zstd(data):  # a frame of raw blocks
    out = b"\x28\xb5\x2f\xfd\x00\x58"
    for at in range(0, len(data), 1 << 16):
        block = data[at:at + (1 << 16)]
        out += struct.pack("<I", int(at + len(block) == len(data)) | len(block) << 3)[:3] + block
    return out
open("rows.jsonl.zst", "wb").write(zstd(lines))
text = open("text.txt", "rb").read()
open("packed.gz", "wb").write(gzip.compress(text))
open("short.gz", "wb").write(gzip.compress(text)[:-20])
open("short.zst", "wb").write(zstd(text)[:-20])
open("short.xz", "wb").write(lzma.compress(text)[:-20])
open("rows.txt", "w").write("".join(r["text"] + "\n" for r in rows if r["text"]))
held = [r for i, r in enumerate(r for r in rows if r["text"])]
open("held.txt", "w").write("".join(r["text"] + "\n" for i, r in enumerate(held) if (i + 1) * 99 // 999 > i * 99 // 999))
os.makedirs("folder/b/deep", exist_ok=True)
for name, content in [("folder/a.txt", "alpha\n"), ("folder/b/deep/c.md", "{gamma}\n"), ("folder/b/b.txt", "beta\n"), ("folder/.hidden", "hidden"), ("folder/z.jsonl", '{"text":"zeta"}\n')]:
    open(name, "w").write(content)
open("latin", "wb").write("caf\u00e9 cr\u00e8me\n".encode("latin-1") * 50)
open("wide", "wb").write("wide text".encode("utf-16"))
open("zip", "wb").write(b"PK\3\4" + bytes(60))
open("missing.jsonl", "w").write('{"text":"a"}\n{"url":"u","body":"b"}\n')
open("array.json", "w").write('[{"text":"a"},\n {"text":"b"}]\n')
open("words.jsonl", "w").write("not JSON at all\n")
open("code.c", "w").write("{ int a; }\n")
PY
tokenize rows.jsonl out=plain val=0 > /dev/null
text_of plain/train_*.bin > got
expect "the text of each line, a newline after it" cmp got rows.txt
for packed in rows.jsonl.gz rows.jsonl.zst rows.ndjson.xz; do
    tokenize "$packed" out=unpacked val=0 > /dev/null
    expect "the same of $packed" cmp unpacked/train_000000.bin plain/train_000000.bin
done
tokenize - field=text out=piped val=0 < rows.jsonl > /dev/null
expect "the same of a pipe with field=" cmp piped/train_000000.bin plain/train_000000.bin
tokenize - out=piped val=0 < rows.jsonl > /dev/null
expect "and of one whose first line is an object" cmp piped/train_000000.bin plain/train_000000.bin
tokenize rows.jsonl out=split val=0.1 > /dev/null
expect "whole documents are held out, spread over all" cmp <(text_of split/val_*.bin) held.txt
expect "and the others are not lost" [ $(($(header_tokens split/train_000000.bin) + $(header_tokens split/val_000000.bin))) -eq "$(header_tokens plain/train_000000.bin)" ]
tokenize packed.gz out=unpacked val=0.1 > /dev/null
tokenize text.txt out=split val=0.1 > /dev/null
expect "a packed text is the text" cmp unpacked/val_000000.bin split/val_000000.bin
tokenize folder out=tree val=0 > /dev/null
expect "a folder: all its files by name, hidden ones not" [ "$(text_of tree/train_*.bin | tr '\n' ' ')" = "alpha beta {gamma} zeta " ]
tokenize code.c out=tree val=0 > /dev/null
expect "text that begins with a brace is text" [ "$(text_of tree/train_*.bin)" = "{ int a; }" ]
expect "bytes that are no UTF-8 are kept" eval 'tokenize latin out=tree val=0 > said; text_of tree/train_*.bin | cmp - latin'
expect "and counted" grep -q '^  100 bytes are no UTF-8' said

rows_of() { tokenize "$ROOT/test/data/parquet/$1" out=rows val=0 > /dev/null; text_of rows/train_*.bin | cksum; }
expect "the rows of a parquet file, however they are packed" [ "$(for name in snappy_v1_dictionary gzip_v2_dictionary zstd_v1_dictionary; do rows_of $name.parquet; done | sort -u | wc -l)" -eq 1 ]
expect "a parquet file without the column" exits 65 'beside.parquet has no column "body"; its columns are' tokenize "$ROOT/test/data/parquet/beside.parquet" field=body out=new

train_own() { "$TRAIN" train-tokenizer text.txt out=own vocab_size=300 > /dev/null; }
train_own
tokenize rows.jsonl out=ids val=0.1 tokenizer=own > /dev/null
expect "each document has its end-of-text" [ "$(tail -q -c +1025 ids/train_000000.bin ids/val_000000.bin | od -An -v -tu2 -w2 | grep -c ' 299$')" -eq 999 ]
for packed in short.gz short.zst short.xz; do
    expect "$packed, cut short" exits 65 "$packed cannot be unpacked to its end.*copy or make it again" tokenize $packed out=new
done
expect "a line without the field" exits 65 'missing.jsonl: line 2 has no field "text"; its fields are url, body: field=NAME' tokenize missing.jsonl out=new
expect "a field that no line has" exits 65 'rows.jsonl: line 1 has no field "body"' tokenize rows.jsonl field=body out=new
expect "a JSON array" exits 65 'array.json: line 1 is an array' tokenize array.json out=new
expect "words named JSON Lines" exits 65 'words.jsonl: line 1 is no JSON object' tokenize words.jsonl out=new
expect "UTF-16" exits 65 'wide is UTF-16 text .iconv' tokenize wide out=new
expect "a zip" exits 65 'zip is a zip archive' tokenize zip out=new
head -c 3000 /dev/zero > zeros
expect "a binary file, where tokens are no bytes" exits 65 'zeros is binary .*not text' tokenize zeros out=new tokenizer=own
expect "shards of bytes beside a byte-pair tokenizer" exits 64 'ids/tokenizer.json is not the tokenizer asked for' tokenize rows.jsonl out=ids
"$TRAIN" train-tokenizer text.txt out=other vocab_size=280 > /dev/null
expect "or of another one" exits 64 'ids/tokenizer.json is not the tokenizer asked for' tokenize rows.jsonl out=ids tokenizer=other
cp own/tokenizer.json named.json
tokenize rows.jsonl out=renamed tokenizer=named.json val=0 > /dev/null
expect "a tokenizer of another name is found beside its shards" cmp renamed/tokenizer.json own/tokenizer.json
head -n 50 rows.jsonl > few.jsonl
tokenize few.jsonl out=few tokenizer=own > /dev/null
expect "of few rows one is held out, whole" [ "$(tail -c +1025 few/val_000000.bin | od -An -v -tu2 -w2 | grep -c ' 299$')" -eq 1 ]
for _ in $(seq 500); do printf '\xe6\x97\xa5'; done > characters.txt
expect "no character is cut in two" eval 'tokenize characters.txt out=whole val=0.1 | grep -c "no UTF-8" | grep -qx 0; [ $(($(header_tokens whole/val_000000.bin) % 3)) -eq 0 ]'
train data.train="$PWD/plain/train*" data.val= run.dir="$PWD/bytes" run.steps=1 > /dev/null 2>&1
tokenize text.txt out=again tokenizer=bytes/checkpoints/step_00000001 val=0.1 > /dev/null
expect "the tokenizer of a model of bytes makes bytes" cmp <(text_of again/train_*.bin again/val_*.bin) text.txt
train data.train="$PWD/ids/train*" data.val="$PWD/ids/val*" run.dir="$PWD/pairs" run.steps=1 model.vocab_size=300 > /dev/null 2>&1
expect "sample with another tokenizer than the model's" exits 65 'is not the tokenizer of the model' "$TRAIN" sample pairs tokenizer=other tokens=2
expect "and with its own" quiet "$TRAIN" sample pairs tokenizer=own tokens=2
mkdir nothing
expect "an empty folder" exits 65 'nothing is a folder without files' tokenize nothing out=new
(printf '{"text":"'; head -c 300000000 /dev/zero | tr '\0' 'a') > long.jsonl
expect "a line without an end" exits 65 'long.jsonl: line 1 is longer than 256 MiB' tokenize long.jsonl out=new
expect "nothing half-written is left by any of them" [ -z "$(find new -type f 2> /dev/null)" ]
exit $STATUS
