#!/usr/bin/env bash
# scripts/fetch.sh with a local server: complete, cut, resumed, wrong and missing files; and without a network.
. "$(dirname "$0")/lib/tiny.sh"
command -v curl > /dev/null || { echo "skip fetch: curl is not installed"; exit 0; }
hub=$WORK/hub data=$WORK/fetched
mkdir "$hub"; echo '{}' > "$hub/faults.json"
python3 - "$hub" <<'PY'
import random, struct, sys
for name in ["fineweb_val_000000", "fineweb_train_000001", "fineweb_train_000002"]:
    tokens = random.Random(name).choices(range(50257), k=3000)
    open(f"{sys.argv[1]}/{name}.bin", "wb").write(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253) + struct.pack("<3000H", *tokens))
for i in (0, 6542):
    open(f"{sys.argv[1]}/shard_{i:05d}.parquet", "wb").write(b"PAR1" + b"x" * 100 + (b"PAR1" if i else b"cut "))
open(f"{sys.argv[1]}/input.txt", "w").write("not Shakespeare")
PY
python3 test/run/lib/hub.py "$hub" & server=$!
trap 'kill $server; rm -rf "$WORK"' EXIT
within 10 [ -e "$hub/port" ]
export FETCH_BASE=http://127.0.0.1:$(cat "$hub/port") http_proxy= no_proxy='*'
fault() { printf '%s' "$1" > "$hub/faults.json"; : > "$hub/requests"; }
fetch() { timeout 60 scripts/fetch.sh "$@" > "$WORK/out" 2> "$WORK/err"; }
same() { cmp "$hub/$1" "$data/$1"; }
no_rest() { [ -z "$(find "$data" -name '*.part')" ]; }

expect "fetch.sh alone lists its names, with size and use" eval 'fetch && [ $(grep -cE "^  (tinyshakespeare|tinystories|fineweb-10b|fineweb-edu|climbmix) +[a-zA-Z].*[0-9] [GM]B" "$WORK/out") = 5 ]'
for words in "nothing-such" "fineweb-10b shards=104" "fineweb-10b shards=0" "fineweb-10b shards=x" "fineweb-10b verbose=1" "fineweb-10b a b" "../x"; do
    expect "refused: $words" exits 64 "^fetch: " scripts/fetch.sh $words
done

expect "shards, with the validation shard" fetch fineweb-10b "$data" shards=1
expect "are what the server has" eval 'same fineweb_val_000000.bin && same fineweb_train_000001.bin && no_rest && [ ! -e "$data/fineweb_train_000002.bin" ]'
expect "their hashes were compared" eval '[ $(grep -c "SHA-256 is right" "$WORK/out") = 2 ]'
expect "the next command is said" grep -qF "train_gpt plan configs/gpt2-124m.json ranks=8 data.train='$data/*train_*.bin'" "$WORK/out"
: > "$hub/requests"
expect "again: nothing is asked for" eval 'fetch fineweb-10b "$data" shards=1 && [ ! -s "$hub/requests" ]'
expect "the program reads them" exits 65 "no whole sample|too few|data.val" "$TRAIN" configs/gpt2-124m.json data.train="$data/fineweb_train_*.bin" data.val="$data/none_*.bin" run.dir="$WORK/x"

fault '{"fineweb_train_000002.bin": {"cut": [1500, 2000]}}'
expect "a connection cut twice" fetch fineweb-10b "$data" shards=2
expect "went on at the byte where it was cut" eval 'same fineweb_train_000002.bin && grep -q "GET /cdn/fineweb_train_000002.bin bytes=1500-" "$hub/requests" && grep -q "bytes=3500-" "$hub/requests"'
rm "$data/fineweb_train_000002.bin"; head -c 4000 "$hub/fineweb_train_000002.bin" > "$data/fineweb_train_000002.bin.part"; fault '{}'
expect "the same command after a kill" fetch fineweb-10b "$data" shards=2
expect "goes on, too" eval 'same fineweb_train_000002.bin && grep -q "bytes=4000-" "$hub/requests"'
rm "$data/fineweb_train_000002.bin"; head -c 4000 "$hub/fineweb_train_000002.bin" > "$data/fineweb_train_000002.bin.part"
fault '{"fineweb_train_000002.bin": {"no_ranges": true}}'
expect "a server without ranges sends all of it" eval 'fetch fineweb-10b "$data" shards=2 && same fineweb_train_000002.bin'

rm "$data"/fineweb_train_000002.bin
fault '{"fineweb_train_000002.bin": {"sha256": "'$(printf '0%.0s' {1..64})'"}}'
expect "another hash than the server names" exits 65 "has SHA-256 [0-9a-f]{64}, not 0{64}: it is removed" scripts/fetch.sh fineweb-10b "$data" shards=2
expect "leaves nothing" eval 'no_rest && [ ! -e "$data/fineweb_train_000002.bin" ]'
expect "other bytes than this script knows" exits 65 "input.txt has SHA-256 .*, not 86c4e6aa" scripts/fetch.sh tinyshakespeare "$data"
fault '{"fineweb_train_000002.bin": {"size": 9999, "cut": [7024, 0, 0, 0, 0, 0]}}'
FETCH_TRIES=2 expect "fewer bytes than the server names" exits 69 "was cut 2 times without a byte more: 7024 of 9999" scripts/fetch.sh fineweb-10b "$data" shards=2
expect "stay for the next time" [ "$(stat -c %s "$data/fineweb_train_000002.bin.part")" = 7024 ]
fault '{"fineweb_train_000002.bin": {"size": 99999999999999999}}'
expect "more than the disk has room for" exits 74 "fineweb_train_000002.bin has [0-9.]+ GB, and .* has room for" scripts/fetch.sh fineweb-10b "$data" shards=2
fault '{"fineweb_train_000002.bin": {"status": 404}}'
expect "a file that is not there" exits 69 "refuses .*fineweb_train_000002.bin: .*404" scripts/fetch.sh fineweb-10b "$data" shards=2
fault '{}'
expect "a file that is not of its kind" exits 65 "shard_00000.parquet is not what its name says" scripts/fetch.sh climbmix "$data" shards=1
expect "the whole one before it stays" same shard_06542.parquet

expect "two at once" eval 'flock "$data" scripts/fetch.sh fineweb-10b "$data" 2>&1 | grep -q "another fetch.sh writes"'
FETCH_BASE=http://127.0.0.1:9 expect "no network" exits 69 "no way to 127.0.0.1:9 \(curl 7\): is there a network" scripts/fetch.sh fineweb-10b "$WORK/none" shards=1
mkdir "$WORK/bin"; for tool in bash dirname sed cut tr mkdir seq; do ln -s "$(command -v $tool)" "$WORK/bin/$tool"; done
expect "no curl" exits 69 "curl is not installed: apt-get install curl" env PATH="$WORK/bin" bash scripts/fetch.sh fineweb-10b "$WORK/none"
touch "$WORK/file"
expect "a folder that cannot be" exits 74 "cannot write into" scripts/fetch.sh fineweb-10b "$WORK/file/x"
exit $STATUS
