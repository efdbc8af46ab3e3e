# test_texts.sh - the inputs of tokenize: documents in text, JSON Lines, folders, packed by gzip, zstd and xz. Also the
# text that it holds out, and its message for every file that it cannot read. Parquet: test/data/test_parquet.c.
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
# a gzip file of two members, which are read as one text
open("rows.jsonl.gz", "wb").write(gzip.compress(lines[:30000]) + gzip.compress(lines[30000:]))
open("rows.ndjson.xz", "wb").write(lzma.compress(lines))
def zstd(data):  # returns a zstd frame of uncompressed blocks
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
open("some", "wb").write(b"A plain line.\n" * 39 + b"caf\xe9 cr\xe8")
open("wide", "wb").write("wide text \u4f60\n".encode("utf-16"))
for name in "utf-16le", "utf-16be", "utf-32le", "utf-32be": open("bare-" + name, "wb").write("wide text \u4f60\n".encode(name.replace("le", "-le").replace("be", "-be")))
open("rows.utf16", "wb").write(lines.decode().encode("utf-16"))
open("mac.jsonl", "wb").write(b'{"text":"a"}\r{"text":"b"}\r')
open("pretty.json", "w").write(json.dumps({"text": "a", "n": [1, 2]}, indent=1))
open("pretty.jsonl", "w").write(json.dumps({"text": "a", "n": [1, 2]}, indent=1))
open("nan.jsonl", "w").write('{"text": "a", "score": NaN}\n')
open("koi8", "wb").write("\u043f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440\n".encode("koi8-r") * 50)
open("latin.jsonl", "wb").write(b'{"text":"fine"}\n{"text":"caf\xe9"}\n')
open("late", "wb").write(b'\n \n{"pad":"' + b"x" * 200000 + b'","text":"behind 64 KiB"}\n')
open("twice.gz", "wb").write(gzip.compress(gzip.compress(b"text\n")))
open("mixed.gz", "wb").write(gzip.compress(lzma.compress(b"text\n")))
bits = bytearray(gzip.compress(text)); bits[-6] ^= 1
open("crc.gz", "wb").write(bits)
os.makedirs("hub/.git"); os.makedirs("hub/img")
for name, content in [("hub/a.jsonl", b'{"text":"a"}\n'), ("hub/README.md", b"---\n"), ("hub/info.json", b'{\n "a": 1\n}\n'), ("hub/img/b.png", b"\x89PNG\r\n\x1a\n"), ("hub/.git/HEAD", b"x"), ("hub/run", b"\x7fELF\2\1\1\0")]:
    open(name, "wb").write(content)
os.symlink("..", "hub/img/up")
os.mkfifo("hub/pipe")
os.makedirs("many")
for i in range(700): open(f"many/{i:04}.txt", "w").write(f"text {i}\n")
for i in range(7): open(f"many/p{i}.gif", "wb").write(b"GIF89a\1\0\1\0\0\0\0;")
open("many/rows", "w").write('{"text":"a row"}\n')
os.makedirs(b"odd")
for name in b"odd/caf\xe9", b"odd/two\nlines", b"odd/\x1b[31m\"q\"": open(name, "wb").write(b"x\n")
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
expect "a few bytes that are no UTF-8 are kept" eval 'tokenize some out=tree val=0 > said; text_of tree/train_*.bin | cmp - some'
expect "and counted" eval 'grep -q "^  2 bytes are not valid UTF-8, kept unchanged" said && grep -q "some: text, utf-8, 1 document, 554 bytes, 2 of them" said'
expect "more are another encoding" exits 65 'latin: 100 of 550 bytes are not UTF-8, the first at byte 3.*encoding=latin-1.*format=text keeps' tokenize latin out=new val=0
expect "  which can be given" eval 'tokenize latin encoding=latin-1 out=tree val=0 > said; text_of tree/train_*.bin | cmp - <(iconv -f latin1 -t utf-8 latin)'
if command -v iconv > /dev/null; then
    expect "  another one" eval 'iconv -f ISO-8859-1 -t utf-8 latin > NEW; tokenize NEW out=tree val=0 > said; text_of tree/train_*.bin | cmp - NEW'
    iconv -f utf-8 -t ISO-2022-JP > jis <<< "日本語"
    expect "text of seven bits" exits 65 "jis is text in ISO-2022, which is not read: iconv -f ISO-2022-JP" tokenize jis out=new val=0
fi
for text in 'Привет, мир. Как дела сегодня?' 'مرحبا بالعالم كيف الحال' 'नमस्ते दुनिया आप कैसे हैं'; do for encoding in utf-16le utf-16be utf-32le; do
    iconv -f utf-8 -t $encoding > bare <<< "$text"
    expect "a script whose bytes are mostly ASCII, $encoding" exits 65 "bare looks like UTF-.. without a byte-order mark: encoding=$encoding reads it" tokenize bare out=new val=0
    expect "  and the cure" eval 'tokenize bare encoding=$encoding out=tree val=0 > /dev/null; [ "$(text_of tree/train_*.bin)" = "$text" ]'
done; done
mkdir two; printf 'Una ma\303\261ana plain, with more words to the end of the line, so that it is long enough\n' > two/a.txt
for encoding in utf-16le utf-32be latin-1; do
    iconv -f utf-8 -t ${encoding/latin-1/ISO-8859-1} > two/b.txt <<< 'plain ñ, text é, and ü, ö, ä'
    expect "UTF-8 beside $encoding is not read as that" exits 65 "two/a.txt is text in UTF-8, and encoding=$encoding is given.*iconv -f .* -t utf-8 < OTHER > NEW; skip='a.txt'" tokenize two encoding=$encoding out=new val=0
    expect "  and the cure" eval 'cure=$(tokenize two encoding=$encoding out=new 2>&1 | grep -oE "iconv.*> NEW"); (cd two; eval "${cure/OTHER/b.txt}"; mv NEW b.txt); tokenize two out=tree val=0 > said; text_of tree/train_*.bin | cmp - <(cat two/*)'
done
expect "ASCII is Latin-1 as well" eval 'tokenize code.c encoding=latin-1 out=tree val=0 > /dev/null; text_of tree/train_*.bin | cmp - code.c'
expect "another script is not offered Latin-1, which would read it" exits 65 'koi8: .* bytes are not UTF-8.*encoding=utf-16le, .*KOI8-R' tokenize koi8 out=new val=0
expect "  and its iconv cures" eval 'iconv -f KOI8-R -t utf-8 koi8 > NEW; tokenize NEW out=tree val=0 > said; text_of tree/train_*.bin | cmp - NEW'
expect "  or the bytes are kept" eval 'tokenize latin format=text out=tree val=0 > said; text_of tree/train_*.bin | cmp - latin'

rows_of() { tokenize "$ROOT/test/data/parquet/$1" out=rows val=0 > /dev/null; text_of rows/train_*.bin | cksum; }
expect "the rows of a parquet file, however they are packed" [ "$(for name in snappy_v1_dictionary gzip_v2_dictionary zstd_v1_dictionary; do rows_of $name.parquet; done | sort -u | wc -l)" -eq 1 ]
expect "a parquet file without the column" exits 65 'beside.parquet has no column "body"; its columns are' tokenize "$ROOT/test/data/parquet/beside.parquet" field=body out=new

train_own() { "$TRAIN" train-tokenizer text.txt out=own vocab_size=300 > /dev/null; }
train_own
tokenize rows.jsonl out=ids val=0.1 tokenizer=own > /dev/null
expect "each document has its end-of-text" [ "$(tail -q -c +1025 ids/train_000000.bin ids/val_000000.bin | od -An -v -tu2 -w2 | grep -c ' 299$')" -eq 999 ]
for packed in short.gz short.zst short.xz; do
    expect "$packed, cut short" exits 65 "$packed cannot be unpacked to its end.*was cut off.*copy or make it again" tokenize $packed out=new
done
expect "a wrong checksum" exits 65 'crc.gz is damaged before byte [0-9]* .gzip, member 1.: incorrect data check' tokenize crc.gz out=new
(cat packed.gz; head -c 512 /dev/zero) > padded.gz
expect "zeros behind the last member" exits 65 'padded.gz has bytes after gzip member 1, from byte [0-9]* on.*gzip -dc < padded.gz > NEW keeps what is before them' tokenize padded.gz out=new
expect "  and the cure" eval 'gzip -dc < padded.gz > NEW 2> err; cmp NEW text.txt'
expect "packed twice" exits 65 'twice.gz is packed twice: gzip -dc < twice.gz > NEW' tokenize twice.gz out=new
expect "  in two ways" exits 65 'mixed.gz is packed twice: gzip -dc < mixed.gz > NEW' tokenize mixed.gz out=new
expect "  and once" eval 'gzip -dc < twice.gz > once.gz; tokenize once.gz out=tree val=0 > /dev/null; [ "$(text_of tree/train_*.bin)" = text ]'
for packer in bzip2 lz4; do
    if ! command -v $packer > /dev/null; then echo "skip $packer is not there"; continue; fi
    $packer -c < rows.txt > "packed.$packer"
    expect "$packer, and its cure" exits 65 "packed.$packer is packed by $packer, which is not read: $packer -dc < packed.$packer > NEW unpacks it" tokenize "packed.$packer" out=new
    expect "  works" eval '$packer -dc "packed.$packer" > new.txt; tokenize new.txt out=unpacked val=0 > /dev/null; cmp unpacked/train_000000.bin plain/train_000000.bin'
done
printf '\050\265\057\375\000\250\031\000\000hi\n' > wide.zst # a window of 2 GiB, as of zstd --long=31
expect "a wide window of zstd is read" eval 'tokenize wide.zst out=tree val=0 > said; [ "$(text_of tree/train_*.bin)" = hi ]'
little_memory() { (ulimit -v 2000000; exits 71 "$@"); }
sanitized "a wide window without memory" "needs more address space than ulimit -v leaves" ||
    expect "  where there is the memory" little_memory 'wide.zst was packed by zstd with a window of 2048 MiB .zstd --long=31.* this machine has [0-9]+ MiB left' tokenize wide.zst out=new val=0
tar -czf folder.tar.gz folder
expect "a packed tar archive" exits 65 'folder.tar.gz is a tar archive: tar -xf folder.tar.gz unpacks it' tokenize folder.tar.gz out=new
expect "a line without the field" exits 65 'missing.jsonl: line 2 has no field "text"; its fields are url, body: give field=NAME' tokenize missing.jsonl out=new
expect "a field that no line has" exits 65 'rows.jsonl: line 1 has no field "body"' tokenize rows.jsonl field=body out=new
expect "a JSON array that is to be rows" exits 65 "array.json: line 1 is an array.*jq -c '.*' < array.json > NEW.jsonl" tokenize array.json field=text out=new
expect "a JSON array that nobody calls rows is text, and that is said" eval 'tokenize array.json out=tree val=0 > said; grep -q "read .*array.json: text, utf-8, a JSON array, not rows" said && text_of tree/train_*.bin | cmp - array.json'
expect "one value over several lines, too" eval 'tokenize pretty.json out=tree val=0 > said; grep -q "read .*pretty.json: text, utf-8, one JSON value over several lines" said'
cp pretty.json book.ipynb; printf '[Verse 1]\n{ int a; }\n' > song
expect "  by any name, unless it only looks so" eval 'tokenize book.ipynb song out=tree val=0 > said; grep -q "book.ipynb: text, utf-8, one JSON value over" said && grep -q "song: text, utf-8, 1 document" said'
expect "  which is no JSON Lines" exits 65 'pretty.jsonl: line 1 .*several lines.*jq -c . < pretty.jsonl > NEW.jsonl' tokenize pretty.jsonl out=new
if command -v jq > /dev/null; then
    jq -c . pretty.jsonl > NEW.jsonl; jq -c '.[]' array.json >> NEW.jsonl
    expect "  and its cure works, as that of an array" eval 'tokenize NEW.jsonl out=tree val=0 > said; [ "$(text_of tree/train_*.bin | tr "\n" " ")" = "a a b " ]'
fi
expect "  or it is text" eval 'tokenize pretty.jsonl format=text out=tree val=0 > said; text_of tree/train_*.bin | cmp - pretty.jsonl'
expect "lines that end in CR alone" exits 65 'mac.jsonl: line 1 has text after a carriage return.*tr ' tokenize mac.jsonl out=new
expect "  by any name" eval 'cp mac.jsonl mac; exits 65 "mac: line 1 has text after a carriage return" tokenize mac out=new'
expect "  and the cure" eval 'tr "\r" "\n" < mac > NEW; tokenize NEW out=tree val=0 > said; [ "$(text_of tree/train_*.bin | tr "\n" " ")" = "a b " ]'
expect "NaN" exits 65 'nan.jsonl: line 1 holds NaN or Infinity' tokenize nan.jsonl out=new
expect "a byte that is no UTF-8 in a row" exits 65 'latin.jsonl: line 2 holds the byte 0xE9.*column 13.*encoding=latin-1' tokenize latin.jsonl out=new
cp latin.jsonl unnamed
expect "  also where the name says nothing" exits 65 'unnamed: line 2 holds the byte 0xE9' tokenize unnamed out=new
expect "  with the encoding it is read" eval 'tokenize unnamed encoding=latin-1 out=tree val=0 > said; [ "$(text_of tree/train_*.bin | tr "\n" " ")" = "fine café " ]'
expect "a first row behind blank lines, longer than what is looked at first" eval 'tokenize late out=tree val=0 > said; [ "$(text_of tree/train_*.bin)" = "behind 64 KiB" ]'
expect "field= beside plain text" exits 65 'text.txt is plain text, and field=text is for rows.*leave field= out' tokenize text.txt field=text out=new
expect "field= beside format=text" exits 64 'field=text is for rows, and format=text has no rows' tokenize rows.jsonl field=text format=text out=new
expect "a format that is none" exits 64 'format=csv: text, jsonl or parquet is expected' tokenize rows.jsonl format=csv out=new
expect "an encoding that is none" exits 64 'encoding=ascii: utf-8, utf-16le, .* or latin-1 is expected' tokenize rows.jsonl encoding=ascii out=new
expect "text named .txt is rows where the user says so" eval 'cp rows.jsonl named.txt; tokenize named.txt format=jsonl out=tree val=0 > said; cmp tree/train_000000.bin plain/train_000000.bin'
expect "words named JSON Lines" exits 65 'words.jsonl: line 1 is not a JSON object' tokenize words.jsonl out=new
expect "UTF-16 behind a mark" eval 'tokenize wide out=tree val=0 > said; grep -q "read .*wide: text, utf-16le" said; [ "$(text_of tree/train_*.bin)" = "wide text 你" ]'
expect "rows in it" eval 'tokenize rows.utf16 out=tree val=0 > said; cmp tree/train_000000.bin plain/train_000000.bin'
for encoding in utf-16le utf-16be utf-32le utf-32be; do
    expect "$encoding without a mark" exits 65 "bare-$encoding looks like UTF-.* without a byte-order mark: encoding=$encoding reads it" tokenize bare-$encoding out=new
    expect "  and its cure" eval 'tokenize bare-$encoding encoding=$encoding out=tree val=0 > said; [ "$(text_of tree/train_*.bin)" = "wide text 你" ]'
done
expect "a mark of another encoding" exits 65 'wide begins with the byte-order mark of utf-16le, and encoding=utf-16be is given' tokenize wide encoding=utf-16be out=new
mkdir -p hub/odd
expect "a folder as it was downloaded: what is text, and a word of all else" eval 'tokenize hub out=tree val=0 > said; [ "$(text_of tree/train_*.bin | tr "\n" "/")" = "---/a/{/ \"a\": 1/}/" ]'
for line in "hub/README.md: text" "hub/a.jsonl: JSON Lines" "hub/info.json: text, utf-8, one JSON value over several lines"; do expect "  read: $line" grep -q "^  read     $line" said; done
for line in "hub/.git (hidden)" "hub/img/b.png (a PNG picture)" "hub/img/up (a link to a folder above it)" "hub/pipe (a pipe" "hub/run (a program"; do expect "  left out: $line" grep -qF "  left out $line" said; done
expect "  in the notes, too" eval 'python3 -c "import json; n = json.load(open(\"tree/tokens.json\")); assert [i[\"format\"] for i in n[\"inputs\"]] == [\"text\", \"jsonl\", \"text\"] and len(n[\"left_out\"]) == 5, n"'
expect "named, the picture is refused" exits 65 'hub/img/b.png is a PNG picture' tokenize hub/img/b.png out=new
expect "skip= leaves files out" eval "tokenize hub skip='*.md' skip=info.json out=tree val=0 > said; [ \"\$(text_of tree/train_*.bin)\" = a ]"
expect "  and says so" grep -q '^  left out hub/README.md (skip=\*.md)' said
expect "  by path, too" eval 'tokenize folder skip="b/deep/*" out=tree val=0 > said; [ "$(text_of tree/train_*.bin | tr "\n" " ")" = "alpha beta zeta " ]'
expect "skip= that leaves nothing out" exits 64 'skip=..rst leaves nothing out' tokenize hub skip='*.rst' out=new
expect "plain text in a folder beside field=" exits 65 "hub/README.md is plain text.*skip='README.md' leaves it out" tokenize hub field=text out=new
expect "  and its cure" eval "tokenize hub field=text skip='README.md' skip=info.json out=tree val=0 > said; [ \"\$(text_of tree/train_*.bin)\" = a ]"
tokenize many out=tree val=0 > said
expect "many files: a line for each kind" grep -qx '  read     700 files: text, utf-8, 700 documents, [0-9]* bytes' said
expect "  with the names of the rare ones" eval 'grep -q "read     1 file: JSON Lines, utf-8, 1 document, 5 bytes: many/rows$" said && grep -q "left out 7 (a GIF picture): many/p0.gif, .*many/p4.gif and 2 more$" said'
expect "  and notes that every program reads" eval '[ "$(wc -c < tree/tokens.json)" -lt 65536 ] && [ "$(wc -l < tree/tokens.inputs.jsonl)" -eq 708 ] && python3 -c "import json; [json.loads(l) for l in open(\"tree/tokens.inputs.jsonl\")]"'
tokenize odd out=tree val=0 > said
expect "names that are no UTF-8, or steer a terminal" eval '! grep -q $'"'\\033'"' said && python3 -c "import json; n = json.load(open(\"tree/tokens.json\"))[\"inputs\"]; assert sorted(i.get(\"path_hex\", i[\"path\"]) for i in n) == [\"6f64642f636166e9\", \"odd/\\x1b[31m\\\"q\\\"\", \"odd/two\\nlines\"], n"'
expect "the long list of before is gone" [ ! -e tree/tokens.inputs.jsonl ]
expect "a zip" exits 65 'zip is a zip archive' tokenize zip out=new
head -c 3000 /dev/zero > zeros
expect "a binary file, where tokens are no bytes" exits 65 'zeros is binary .*not text' tokenize zeros out=new tokenizer=own
expect "an endless stream is judged by its start" exits 65 'standard input is binary .*not text' timeout 60 "$TRAIN" tokenize - out=new < <(exec cat /dev/zero 2> /dev/null)
expect "  a packed one by its first bytes" exits 65 'standard input is binary .*not text' timeout 60 "$TRAIN" tokenize - out=new < <(exec gzip -c < /dev/zero 2> /dev/null)
expect "  which may be text" eval 'for i in $(seq 40); do cat text.txt; done > longer; cat longer | tokenize - out=tree val=0 > said; text_of tree/train_*.bin | cmp - longer; cat longer | gzip | tokenize - out=tree val=0 > said; text_of tree/train_*.bin | cmp - longer'
expect "a device" exits 65 '/dev/zero is a device, not a file of text: name a file, or - for standard input' timeout 60 "$TRAIN" tokenize /dev/zero out=new
expect "  and where they are" exits 65 'zeros is binary .*not text: format=text reads its bytes' tokenize zeros out=new
expect "shards of bytes beside a byte-pair tokenizer" exits 64 'ids/tokenizer.json differs from the tokenizer of this command' tokenize rows.jsonl out=ids
"$TRAIN" train-tokenizer text.txt out=other vocab_size=280 > /dev/null
expect "or of another one" exits 64 'ids/tokenizer.json differs from the tokenizer of this command' tokenize rows.jsonl out=ids tokenizer=other
cp own/tokenizer.json named.json
tokenize rows.jsonl out=renamed tokenizer=named.json val=0 > /dev/null
expect "a tokenizer of another name is found beside its shards" cmp renamed/tokenizer.json own/tokenizer.json
head -n 50 rows.jsonl > few.jsonl
tokenize few.jsonl out=few tokenizer=own > /dev/null
expect "of few rows one is held out, whole" [ "$(tail -c +1025 few/val_000000.bin | od -An -v -tu2 -w2 | grep -c ' 299$')" -eq 1 ]
for _ in $(seq 500); do printf '\xe6\x97\xa5'; done > characters.txt
expect "no character is cut in two" eval 'tokenize characters.txt out=whole val=0.1 | grep -c "not valid UTF-8" | grep -qx 0; [ $(($(header_tokens whole/val_000000.bin) % 3)) -eq 0 ]'
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
# --- cures, typed as they are printed: the command of a message about a name with spaces and quotes, then the same file again
mkdir 'my "odd" it'"'"'s'; odd='my "odd" it'"'"'s'
# cures NAME FILE COMMAND READ WORDS [ALL]: tests a file that tokenize refuses with a message that contains a command.
# The printed command must match COMMAND and make the file READ, whose text must be WORDS. This is tested with FILE,
# with it packed by gzip, and on standard input. ALL adds zstd, xz, and a packed file on standard input.
cures() {
    local name=$1 plain=$odd/$2 pattern=$3 new=$4 words=$5 file
    cure_of "$name" "$plain"
    for packer in gzip ${6:+zstd xz}; do
        case $packer in gzip) file=$plain.gz ;; zstd) file=$plain.zst ;; *) file=$plain.xz ;; esac
        if command -v $packer > /dev/null; then $packer -c < "$plain" > "$file"; cure_of "  packed by $packer" "$file"; fi
    done
    cure_of "  from standard input" - "$plain"; if [ -n "${6:-}" ]; then cure_of "  packed" - "$plain.gz"; fi
}
# cure_of NAME FILE [INPUT]: tokenizes FILE, runs the command in the message of the refusal, and checks the text of what
# it makes. If FILE is -, INPUT is given on standard input.
cure_of() {
    local name=$1 file=$2 input=${3:-/dev/null} said command
    # standard input has no name, so the format is given
    local format=(); case $input in *.jsonl*) format=(format=jsonl) ;; esac
    said=$("$TRAIN" tokenize "$file" "${format[@]}" out=new val=0 2>&1 < "$input"); rm -f NEW NEW.*
    command=$(grep -oE -- "((\.\.\.|(gzip|zstd|xz) -dc( --long=31)?( <[^|]*)?) \| )*$pattern" <<< "$said" | head -1)
    expect "$name: a command that reads the file" [ -n "$command" ] || { echo "$said"; return; }
    command=${command/#.../cat '"$input"'}
    eval "$command" 2> cure.err; ok $? "  which works" || { echo "$command"; cat cure.err; }
    tokenize "$new" out=tree val=0 > said; expect "  and what it makes is read" [ "$(text_of tree/train_*.bin | tr '\n' ' ')" = "$words" ]
}
python3 - "$odd" <<'PY'
import gzip, json, sys
folder = sys.argv[1] + "/"
def put(name, text): open(folder + name, "wb").write(text.encode() if isinstance(text, str) else text)
put("python.jsonl", "{'text': 'it\\'s', 'n': None}\n{'text': \"b\", 'n': True}\n")
put("commas.jsonl", '{"text": "a"},\n{"text": "b"},\n')
put("joined.jsonl", '{"text": "a"}{"text": "b"}\n')
put("between.jsonl", '{"text": "a"}, {"text": "b"}\n')
put("strings.jsonl", '"a"\n"b"\n')
put("words.jsonl", '["a", "b"]\n["c"]\n')
put("lists.jsonl", '[[{"text": "a"}], [{"text": "b"}]]\n')
put("twice.gz", gzip.compress(gzip.compress(b"text\n")))
put("half.jsonl", '{"text":"a\\ud800b"}\n')
put("escape.jsonl", '{"text":"a\\xb \\\\ \\u0041"}\n')
put("tab.jsonl", '{"text":"a\tb"}\n')
put("comma.jsonl", '{"text":"a,}",}\n')
put("comment.jsonl", '{"text":"} // a"} // b\n')
put("number.jsonl", '{"text":7}\n')
put("list.jsonl", '{"text":["a","b"]}\n')
put("some.jsonl", '{"text":"a"}\n{"text":["b",["c"]]}\n{"text":[]}\n')
put("turns.jsonl", '{"text":[{"text":"a"},{"text":"b"}]}\n{"text":"c"}\n')
put("object.jsonl", '{"text":{"text":"a"}}\n')
put("sequence", '\x1e{"text":"a"}\n\x1e{"text":"b"}\n')
put("mac.jsonl", '{"text":"a"}\r{"text":"b"}\r')
put("wide.jsonl", '{"text":"a"}\r{"text":"b"}\r'.encode("utf-16"))
put("jis", "\u65e5\u672c\n".encode("iso2022_jp"))
put("latin", "caf\u00e9 ".encode("latin-1") * 9)
PY
if command -v jq > /dev/null; then
    cures "rows joined on one line" joined.jsonl 'jq -c \. .*NEW\.jsonl' NEW.jsonl "a b "
    cures "with commas between" between.jsonl 'sed .*NEW\.jsonl' NEW.jsonl "a b "
    cures "strings" strings.jsonl "jq -c '\{text.*NEW\.jsonl" NEW.jsonl "a b "
    cures "lists of strings" words.jsonl "jq -c '\.\[\].*NEW\.jsonl" NEW.jsonl "a b c "
    cures "a list of lists" lists.jsonl "jq -c '\.\[\].*NEW\.jsonl" NEW.jsonl "a b "
    cures "a number in the field" number.jsonl 'jq -c .*NEW\.jsonl' NEW.jsonl "7 "
    cures "a list" list.jsonl 'jq -c .*NEW\.jsonl' NEW.jsonl "a b "
    cures "a list in some of the rows" some.jsonl 'jq -c .*NEW\.jsonl' NEW.jsonl "a b c "
    cures "a list of objects" turns.jsonl 'jq -c .*NEW\.jsonl' NEW.jsonl "a b c "
    cures "an object" object.jsonl 'jq -c .*NEW\.jsonl' NEW.jsonl "a "
else echo "skip cures by jq: it is not installed"; fi
if command -v perl > /dev/null; then cures "a backslash that begins no escape" escape.jsonl 'perl .*NEW\.jsonl' NEW.jsonl 'a\xb \ A '; fi
cures "half of a surrogate pair" half.jsonl 'python3 -c .*NEW\.jsonl' NEW.jsonl $'a\xef\xbf\xbdb '
cures "a tab in a string" tab.jsonl 'python3 -c .*NEW\.jsonl' NEW.jsonl $'a\tb '
cures "a comma before the last brace" comma.jsonl 'sed .*NEW\.jsonl' NEW.jsonl "a,} "
cures "a comment behind an object" comment.jsonl 'python3 -c .*NEW\.jsonl' NEW.jsonl "} // a "
cures "a sequence of JSON texts" sequence "tr -d .*NEW\.jsonl" NEW.jsonl "a b "
cures "dicts of Python" python.jsonl 'python3 -c .*NEW\.jsonl' NEW.jsonl "it's b "
cures "commas behind rows" commas.jsonl 'sed .*NEW\.jsonl' NEW.jsonl "a b "
pattern='gzip -dc < .*> NEW' new=NEW words="text "; cure_of "packed twice" "$odd/twice.gz"; pattern='gzip -dc > NEW'; cure_of "  from standard input" - "$odd/twice.gz"
printf '\033[1;31mred\033[0m and plain\n' > "$odd/colours.txt"; printf 'N\bNA\bAM\bME\bE\n' > "$odd/name.1"
cures "colours of a terminal" colours.txt 'sed .*> NEW' NEW "red and plain "
if command -v col > /dev/null; then cures "a manual page with backspaces" name.1 'col -bx .*> NEW' NEW "NAME "; fi
(for i in $(seq 9000); do echo "a plain line"; done; for i in $(seq 4000); do echo $'\033[31mred'; done) > "$odd/later.txt"
cure=$(tokenize "$odd/later.txt" out=new val=0 2>&1 | grep -oE 'sed .*> NEW')
expect "  also far behind the start" eval 'eval "$cure"; tokenize NEW out=tree val=0 > said; ! text_of tree/train_*.bin | grep -q $'"'\033'"
printf ' \t\n' > "$odd/blank"
expect "a text of white space" exits 65 "blank holds nothing but white space: name a file with text" tokenize "$odd/blank" out=new
expect "  packed, from a pipe" exits 65 "standard input holds nothing but white space" eval 'gzip -c "$odd/blank" | tokenize - out=new'
mkdir spare; for name in a.txt b.txt.part c.jsonl.crdownload d.tmp e.txt~ '#f.txt#' g.swp h.bak i.partial j.download; do echo "${name:0:1}" > "spare/$name"; done
mkdir spare/x.tmp; echo x > spare/x.tmp/x.txt
expect "names of unfinished and spare files are left out of a folder" eval 'tokenize spare out=tree val=0 > said; [ "$(text_of tree/train_*.bin)" = a ] && [ "$(grep -c "left out spare/.* (by its name unfinished or a spare copy)" said)" = 10 ]'
expect "  and read if they are named" eval 'tokenize spare/b.txt.part "spare/#f.txt#" out=tree val=0 > said; [ "$(text_of tree/train_*.bin | tr "\n" " ")" = "b # " ]'
mkdir same; echo one > same/a.txt; ln same/a.txt same/b.txt; ln -s a.txt same/c.txt; echo one > same/d.txt
expect "a file is read once" eval 'tokenize same/a.txt same ./same/a.txt same/d.txt out=tree val=0 > said; [ "$(text_of tree/train_*.bin | tr "\n" " ")" = "one one " ] && grep -qxF "  left out same/b.txt (the same file as same/a.txt)" said && grep -qxF "  left out ./same/a.txt (the same file as same/a.txt)" said && [ "$(grep -c "same file as" said)" = 5 ]'
expect "the output within the folder that is read" eval 'tokenize same out=same/out val=0 > said; tokenize same out=same/out val=0 > said; [ "$(text_of same/out/train_*.bin | tr "\n" " ")" = "one one " ] && grep -qxF "  left out same/out (the folder of out=)" said'
mkdir blanks; cp "$odd/blank" blanks/a.txt; echo text > blanks/b.txt; cp "$odd/colours.txt" blanks/c.txt; gzip blanks/c.txt
expect "  in a folder it is left out, and colours are" eval 'tokenize blanks out=tree val=0 > said; [ "$(text_of tree/train_*.bin)" = text ] && grep -qF "left out blanks/a.txt (nothing but white space)" said && grep -qF "blanks/c.txt.gz (text with colours of a terminal (escape characters): gzip -dc < blanks/c.txt.gz | sed" said'
cures "lines that end in CR alone" mac.jsonl 'tr .*> NEW' NEW "a b " all
if command -v iconv > /dev/null; then
    pattern='iconv -f utf-16le .*tr .*> NEW' new=NEW words="a b "; cure_of "  in UTF-16" "$odd/wide.jsonl"
    cures "text of seven bits" jis 'iconv -f ISO-2022-JP .*> NEW' NEW "日本 "
    said=$(tokenize - out=new val=0 2>&1 < "$odd/latin")
    expect "text in another encoding, from standard input" grep -qF "(for another: ... | iconv -f NAME -t utf-8 > NEW)" <<< "$said"
fi
if command -v sqlite3 > /dev/null; then
    sqlite3 "$odd/base" 'create table t(text)'
    cures "a program that needs a file of its own" base '(cat > NEW|(gzip|zstd|xz) -dc( --long=31)? (< .*)?> NEW)?( && )?sqlite3 .* \.dump > NEW\.sql' NEW.sql "PRAGMA foreign_keys=OFF; BEGIN TRANSACTION; CREATE TABLE t(text); COMMIT; " all
fi
printf '["a", "b"]\n' > strings.json
expect "an array of strings, which is text: its note names the other command" eval 'tokenize strings.json out=tree val=0 | grep -qF "a JSON array, not rows (jq -c '"'.[] | {text: .}'"' < strings.json"'
expect "a shard that is text" exits 65 "is UTF-8 text, not tokens: ./train_gpt tokenize '$odd/note' 'out=datasets/note' makes|tokenize 'my \"odd\" it'.*/note' out=datasets/note makes" \
    eval 'echo some text > "$odd/note"; train data.train="$odd/note" data.val= run.dir=x'

for packer in gzip zstd xz; do
    if ! command -v $packer > /dev/null; then continue; fi
    $packer -c < plain/train_000000.bin > "$odd/shard.bin"; rm -f NEW.bin
    expect "a shard packed by $packer" exits 65 "is packed by $packer and holds no text: $packer -dc" train data.train="$odd/shard.bin" data.val= run.dir=x
    command=$(train data.train="$odd/shard.bin" data.val= run.dir=x 2>&1 | grep -oE "$packer -dc.* > NEW.bin")
    expect "  and its cure" eval 'eval "$command"; cmp NEW.bin plain/train_000000.bin; rm NEW.bin'
    command=$("$TRAIN" tokenize "$odd/shard.bin" out=new 2>&1 | grep -oE "$packer -dc.* > NEW.bin")
    expect "  of tokenize, too" eval 'eval "$command"; cmp NEW.bin plain/train_000000.bin; rm NEW.bin'
done

printf '{"text": "a"} {"text": "b"}' > row.json
for row in 'behind them:{"text": "a"},|{"text": "b"},' 'between them:{"text": "a"}, {"text": "b"},|{"text": "c"}'; do
    tr '|' '\n' <<< "${row#*:}" > rows.unnamed
    expect "objects with commas ${row%%:*} are called that" eval 'tokenize rows.unnamed out=tree val=0 > said; grep -q "JSON objects with commas ${row%%:*}, not rows (sed .* < rows.unnamed" said'
    if [ "${row%%:*}" = 'between them' ] && ! command -v jq > /dev/null; then echo "skip the command for objects with commas between them: jq is not installed"; continue; fi
    expect "  and the command makes rows of them" eval 'eval "$(grep -oE "sed .* > NEW\.jsonl" said)"; [ "$(wc -l < NEW.jsonl)" = "$(grep -o text rows.unnamed | wc -l)" ]; tokenize NEW.jsonl out=tree val=0 > /dev/null'
done
printf '{"text":"a"},\n' > NEW.jsonl
expect "a command does not empty the file that it reads" eval 'eval "$(tokenize NEW.jsonl out=new 2>&1 | grep -oE "sed .* > NEW2?\.jsonl")"; [ -s NEW.jsonl ] && [ -s NEW2.jsonl ]'
expect "several values on a line are called that" eval 'tokenize row.json out=tree val=0 | grep -qF "several JSON values on a line, not rows (jq -c . < row.json"'
printf '{"text": "a\nb"}\n' > broken.jsonl
expect "a line end within a text" exits 65 'broken.jsonl: line 1 ends in the middle of a string .column 1[12].: a line end in a text is written .n in JSON' tokenize broken.jsonl out=new
printf 'id,text\n1,"a, b"\n' > table.csv; gzip -c table.csv > table.tsv.gz; printf '<p>a</p>\n' > page.html
expect "tables and pages are text, and that is said" eval 'tokenize table.csv table.tsv.gz page.html out=tree val=0 > said; [ "$(grep -cE "text, utf-8, (a table, read as text with its commas|gzip, a table, read as text with its tabs|its tags are read as text)" said)" = 3 ]'
printf 'ARROW1\0\0\377\377\377\377' > "$odd/a.arrow"; printf '\377\377\377\377\160\0\0\0' > "$odd/b.arrow"
last_word() { local wanted=$2; eval "set -- $1"; [ "${*: -1}" = "$wanted" ]; }
for name in a b; do
    command=$("$TRAIN" tokenize "$odd/$name.arrow" out=new 2>&1 | grep -oE "python3 -c '.*arrow'" | head -1)
    expect "an Arrow file, and a command that names it ($name)" last_word "$command" "$odd/$name.arrow"
done
if python3 -c 'import pyarrow' 2> /dev/null; then
    python3 -c 'import pyarrow as a, pyarrow.feather as f, sys; t = a.table({"text": ["a", "b"]}); f.write_feather(t, sys.argv[1])' "$odd/c.arrow"
    cures "an Arrow file" c.arrow 'python3 -c .*\.arrow'"'" NEW.parquet "a b "
fi

# --- several files that are refused are named at once, and skip= of any name leaves them out
mkdir bad; for i in 1 2 3 4; do echo '{"text": "good"}' > "bad/a$i.jsonl"; echo '{"body": "bad"}' > "bad/b [$i]'s.jsonl"; done
expect "four files without the field: one sentence names them" exits 65 "line 1 has no field .*b \[1\]'s.jsonl.*; 3 more files are refused: bad/b \[2\]'s.jsonl, .*b \[4\]'s.jsonl$|b \[1\]'s.jsonl: line 1 has no field.*; 3 more files are refused: bad/b \[2\]'s.jsonl, bad/b \[3\]'s.jsonl, bad/b \[4\]'s.jsonl" tokenize bad out=new
again=(); for i in 1 2 3 4; do
    "$TRAIN" tokenize bad "${again[@]}" out=new 2> err; eval "again+=($(grep -oE "; \S*skip=.* leaves it out" err | sed -E 's/^; //; s/ leaves it out.*//'))"
done
expect "  the key of each message, typed as printed, leaves one out" eval 'tokenize bad "${again[@]}" out=tree val=0 > said; [ "$(text_of tree/train_*.bin | tr "\n" " ")" = "good good good good " ]'
mkdir reads; echo '{"text": "good"}' > reads/a.jsonl; ln -s /proc/self/mem reads/memory; ln -s gone reads/lost
expect "files that cannot be read are named at once, with skip=" exits 65 "cannot read reads/lost: No such file.*skip='lost' leaves it out of its folder; 1 more file is refused: reads/memory" tokenize reads out=new
expect "  an error of reading, too" exits 74 "reads/memory cannot be read: Input/output error; skip='memory' leaves it out" tokenize reads skip=lost out=new
expect "  and its cure" eval "tokenize reads skip=lost skip='memory' out=tree val=0 > said; [ \"\$(text_of tree/train_*.bin)\" = good ]"
expect "a file of /proc, which says that it is empty" eval 'tokenize /proc/version out=tree val=0 > said; text_of tree/train_*.bin | cmp - /proc/version'

expect "nothing half-written is left by any of them" [ -z "$(find new -type f 2> /dev/null)" ]
exit $STATUS
