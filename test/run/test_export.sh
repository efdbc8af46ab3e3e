# ./train_gpt export: the folder that it writes has the checkpoint's weights and can be loaded again. It is complete or
# does not exist.
. "$(dirname "$0")/lib/tiny.sh"
export_to() { local out=$1; shift; "$TRAIN" export "$WORK/run" out="$WORK/$out" "$@"; }
first_loss() { rm -rf "$WORK/from"; train run.dir="$WORK/from" run.steps=1 model.init_from="$WORK/$1" > /dev/null && values "$WORK/from" eval loss | head -n 1; }
nothing_of() { [ -z "$(find "$WORK" -maxdepth 1 -name "$1*")" ]; }
says() { grep -qF -- "$1" "$WORK/$2/README.md"; }
row() { printf '| %s | %s | %.4f |' "$1" "$2" "$3"; }
names() { LC_ALL=C ls "$1" | tr '\n' ' '; }

train run.dir="$WORK/run" optimizer.learning_rate=5e-3 eval.every=4 > /dev/null; ok $? "train 12 steps"
newest=$WORK/run/checkpoints/step_00000012
first_loss run/checkpoints/step_00000012 > "$WORK/wanted"

# An export as fp32 has the bits of the checkpoint.
expect "export" quiet export_to plain
expect "the weights are the checkpoint's, byte for byte" cmp "$newest/model.safetensors" "$WORK/plain/model.safetensors"
expect "the files of a folder" [ "$(names "$WORK/plain")" = "README.md config.json generation_config.json loss.svg model.safetensors tokenizer.json tokenizer_config.json " ]
expect "config.json says the type, by both names" [ "$(grep -cE '"(torch_)?dtype":\s*"float32"' "$WORK/plain/config.json")" = 2 ]
expect "weights to start from: the same first loss" [ "$(first_loss plain)" = "$(cat "$WORK/wanted")" ]
expect "sample takes the folder" cmp <("$TRAIN" sample "$WORK/plain" prompt="the" tokens=16) <("$TRAIN" sample "$WORK/run" prompt="the" tokens=16)

# An export with shard_bytes is written in several files, with an index. The limit is more than any single tensor has.
expect "export in several files" quiet export_to shards/deep shard_bytes=60000
expect "none is over the limit but for its header" [ "$(find "$WORK/shards/deep" -name 'model-*.safetensors' -size +61k | wc -l)" = 0 ]
count=$(find "$WORK/shards/deep" -name 'model-*.safetensors' | wc -l)
expect "their names count them" [ "$count" -gt 2 -a -e "$WORK/shards/deep/model-00001-of-0000$count.safetensors" -a ! -e "$WORK/shards/deep/model.safetensors" ]
expect "the index has the size of all tensors" grep -q "\"total_size\": $((4 * 55944))" "$WORK/shards/deep/model.safetensors.index.json"
expect "weights to start from, in several files" [ "$(first_loss shards/deep)" = "$(cat "$WORK/wanted")" ]
expect "and by the index's own name" [ "$(first_loss shards/deep/model.safetensors.index.json)" = "$(cat "$WORK/wanted")" ]
expect "on two ranks" quiet run_ranks 2 "$TRAIN" "$WORK/tiny.json" run.dir="$WORK/ranks" run.steps=1 model.init_from="$WORK/shards/deep"
mv "$WORK/shards/deep/model-00002-of-0000$count.safetensors" "$WORK/away"
expect "a part that is not there" exits 65 "model-00002-of-0000$count.safetensors does not exist" train run.dir="$WORK/x" model.init_from="$WORK/shards/deep"
expect "check says so, too" exits 65 "model-00002-of-0000$count.safetensors does not exist" "$TRAIN" check "$WORK/tiny.json" run.dir="$WORK/x" model.init_from="$WORK/shards/deep"

# An export as bf16 rounds to nearest, ties to even.
expect "export as bf16" quiet export_to bf16 dtype=bf16
expect "export as fp16" quiet export_to fp16 dtype=fp16 shard_bytes=1 # a file for each tensor
python3 - "$WORK" <<'PY'
import glob, json, struct, sys
def tensors(folder):
    found = {}
    for path in glob.glob(folder + "/*.safetensors"):
        data = open(path, "rb").read()
        n, = struct.unpack_from("<Q", data)
        header = json.loads(data[8:8 + n])
        assert header.pop("__metadata__") == {"format": "pt"}
        found.update({name: (t["dtype"], t["shape"], data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]) for name, t in header.items()})
    return found
def bf16(bits):  # returns the nearest bf16 value of the bits of an fp32 number; at a tie the one whose last bit is 0
    low, rest = bits >> 16, bits & 0xffff
    return low + (rest > 0x8000 or (rest == 0x8000 and low & 1))
def words(data, code): return struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data)
work = sys.argv[1]
exact, b, f = (tensors(f"{work}/{name}") for name in ("plain", "bf16", "fp16"))
assert exact.keys() == b.keys() == f.keys() and len(exact) == 28
for name, (_, shape, data) in exact.items():
    assert b[name][:2] == ("BF16", shape) and f[name][:2] == ("F16", shape), name
    assert list(words(b[name][2], "H")) == [bf16(bits) for bits in words(data, "I")], name
    assert f[name][2] == struct.pack(f"<{len(data) // 4}e", *words(data, "f")), name
PY
ok $? "each value is rounded to nearest, ties to even"
expect "config.json of bf16" [ "$(grep -cE '"(torch_)?dtype":\s*"bfloat16"' "$WORK/bf16/config.json")" = 2 ]
first_loss bf16 > "$WORK/narrow"; expect "weights to start from, in bf16: nearly the same first loss" near "$WORK/narrow" "$WORK/wanted" 1e-3
first_loss fp16 > "$WORK/narrow"; expect "and in fp16" near "$WORK/narrow" "$WORK/wanted" 1e-3

# A value that is too large for fp16 is refused.
python3 - "$WORK" <<'PY'
import struct, sys
path = sys.argv[1] + "/plain/model.safetensors"
data = bytearray(open(path, "rb").read())
data[-4:] = struct.pack("<f", -70000)  # changes the last element of ln_f.bias to a number too large for fp16
open(sys.argv[1] + "/huge.safetensors", "wb").write(data)
PY
train run.dir="$WORK/huge" run.steps=1 optimizer.learning_rate=0 model.init_from="$WORK/huge.safetensors" > /dev/null
expect "a value beyond fp16" exits 64 'dtype=fp16 cannot hold element 41 of tensor transformer.ln_f.bias, -70000' "$TRAIN" export "$WORK/huge" out="$WORK/none" dtype=fp16
expect "bf16 has it" quiet "$TRAIN" export "$WORK/huge" out="$WORK/huge-bf16" dtype=bf16

# The model card (README.md) of an export describes the run.
best=$(values "$WORK/run" eval loss | sort -g | head -n 1)
expect "the card: kind, size and step" says "A language model of type gpt2 with 55944 parameters" plain
expect "  losses: training" says "$(row 'training, last' 12 "$(values "$WORK/run" train loss | tail -n 1)")" plain
expect "  losses: validation" says "$(row 'validation, last' 12 "$(values "$WORK/run" eval loss | tail -n 1)")" plain
expect "  losses: the best" grep -q "| validation, best | .* | $(printf %.4f "$best") |" "$WORK/plain/README.md"
expect "  tokens, data and the optimizer" eval 'says "| tokens | 5760 |" plain && says "| train_000000.bin | 34783 |" plain && says "| optimizer.learning_rate | 0.005 |" plain'
expect "  the program" says "Exported by train_gpt $("$TRAIN" --version | sed -n '1s/^train_gpt //p')" plain
expect "  the picture is the run's" eval 'says "(loss.svg)" plain && cmp "$WORK/run/loss.svg" "$WORK/plain/loss.svg"'
expect "  how to load it" eval 'says "AutoModelForCausalLM.from_pretrained(\"plain\")" plain && says "AutoTokenizer.from_pretrained(\"plain\")" plain'
"$TRAIN" export "$WORK/run/checkpoints/step_00000006/" out="$WORK/six" > "$WORK/said"
expect "an older checkpoint: its own step and losses" eval 'grep -q "step 6 of" "$WORK/said" && says "after step 6 of 12" six && says "$(row "training, last" 6 "$(values "$WORK/run" train loss | sed -n 6p)")" six && ! says "training, last | 12" six'
expect "the tokenizer is the checkpoint's" eval 'cmp "$newest/tokenizer.json" "$WORK/plain/tokenizer.json" && cmp "$newest/tokenizer_config.json" "$WORK/plain/tokenizer_config.json"'
cp -r "$newest" "$WORK/alone"
expect "a checkpoint away from its run" quiet "$TRAIN" export "$WORK/alone" out="$WORK/lone" dtype=bf16
expect "has no losses and no picture" eval '[ ! -e "$WORK/lone/loss.svg" ] && ! says "## Losses" lone && ! says loss.svg lone'
"$TRAIN" export test/golden/1.0 out="$WORK/old" > "$WORK/said"
expect "a checkpoint without a tokenizer: the card says so" eval 'grep -q "without a tokenizer" "$WORK/said" && [ ! -e "$WORK/old/tokenizer.json" ] && ! says AutoTokenizer old && says "no tokenizer" old'

# Wrong arguments are refused before anything is written.
before=$(find "$WORK/plain" -type f -exec cat {} + | cksum)
expect "a full folder" exits 64 "$WORK/plain is not empty: " export_to plain
expect "a file of that name" exits 64 "$WORK/huge.safetensors" export_to huge.safetensors
expect "nothing was written over" [ "$(find "$WORK/plain" -type f -exec cat {} + | cksum)" = "$before" ]
mkdir "$WORK/empty"
expect "an empty folder gives way" quiet export_to empty
expect "no out=" exits 64 'out=FOLDER' "$TRAIN" export "$WORK/run"
expect "another type" exits 64 'dtype=int8.*fp32, bf16, fp16' export_to none dtype=int8
expect "no size" exits 64 'shard_bytes=0' export_to none shard_bytes=0
expect "an unknown option" exits 64 'did you mean "dtype"' export_to none dtyp=bf16
expect "nothing to export" exits 65 "$WORK/data is neither" "$TRAIN" export "$WORK/data" out="$WORK/none"
cp -r "$WORK/run" "$WORK/damaged"
printf x | dd of="$WORK/damaged/checkpoints/step_00000012/model.safetensors" bs=1 seek=5000 conv=notrunc 2> /dev/null
expect "a damaged checkpoint is passed over by name" exits 0 'step_00000012 is not used' "$TRAIN" export "$WORK/damaged" out="$WORK/older"
expect "for the one before" says "after step 6 of 12" older
expect "named itself it is refused" exits 65 'is neither' "$TRAIN" export "$WORK/damaged/checkpoints/step_00000012" out="$WORK/none"

# An export that is interrupted leaves no file.
for fault in io.write@1:ENOSPC io.write@5:ENOSPC io.write@20:EDQUOT io.fsync@3:EIO io.rename@1:EIO io.mkdir@1+:EACCES; do
    expect "$fault" exits 74 "$WORK/none" env TRAIN_GPT_FAIL="$fault" "$FAILING" export "$WORK/run" out="$WORK/none" shard_bytes=1
done
expect "a limit on the size of files" exits 74 'cannot write .*none/model.safetensors' bash -c "ulimit -f 100; exec '$TRAIN' export '$WORK/run' out='$WORK/none'"
TRAIN_GPT_FAIL="io.write@2+:slow" "$FAILING" export "$WORK/run" out="$WORK/none" shard_bytes=1 > /dev/null 2>&1 & job=$!
for _ in $(seq 1500); do [ -n "$(find "$WORK" -maxdepth 1 -name 'none.tmp*')" ] && break; sleep 0.02; done
kill -TERM $job; wait $job; expect "asked to stop: exit 75" [ $? -eq 75 ]
expect "of none of these anything is left" nothing_of none

told_step() { "$TRAIN" export "$1" out="$2" 2> "$WORK/err" | grep -qE "^exported  step [0-9]+ of $1 as fp32"; }
# An export is complete even if the run trains, saves and deletes old checkpoints meanwhile.
"$TRAIN" "$WORK/tiny.json" run.dir="$WORK/live" run.steps=100000 schedule.name=constant eval.every=0 checkpoint.every=1 checkpoint.keep=2 log.every=100000 > /dev/null & job=$!
within 30 [ -e "$WORK/live/checkpoints/step_00000003" ]
for i in 1 2 3; do
    expect "export of a run in progress" told_step "$WORK/live" "$WORK/live-$i"
done
strike KILL $job; wait $job 2> /dev/null
expect "each is whole" eval '[ "$(first_loss live-1)" ] && [ "$(first_loss live-3)" ]'
exit $STATUS
