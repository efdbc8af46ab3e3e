# Mistakes of a user: one clear sentence, the right exit code, no repetition, no file overwritten, no rank left hanging.
# Timed: a fault must end all ranks at once.
. "$(dirname "$0")/lib/tiny.sh"

expect "unknown key" exits 64 'tiny.json|optimizer.learing_rate.*optimizer.learning_rate' train optimizer.learing_rate=1
expect "no such config" exits 64 'nowhere.json' "$TRAIN" "$WORK/nowhere.json"
echo '{ "run": {"steps": 10,} }' > "$WORK/syntax.json"
expect "syntax fault with line and column" exits 64 'syntax.json:1:[0-9]+: ' "$TRAIN" "$WORK/syntax.json"
# A config may begin with a byte-order mark, be UTF-16 or UTF-32, or be compressed. The program refuses it and prints a
# command. That command, typed as printed, makes a valid config.
mkdir "$WORK/it's mine"; named=$WORK/it\'s\ mine/run.json
cd "$WORK" || exit 1
formed() {
    case $1 in
        mark) printf '\357\273\277'; cat ;; gzip | zstd | xz | bzip2) $1 -c ;; utf-16 | utf-32) iconv -t "$1" ;; utf-*) iconv -t "$1" ;; esac
}
for form in mark utf-16 utf-16le utf-16be utf-32 utf-32le gzip zstd xz bzip2; do
    case $form in gzip | zstd | xz | bzip2) command -v $form > /dev/null || { echo "skip a config packed by $form, which is not installed"; continue; } ;; esac
    formed $form < tiny.json > "$named"
    expect "a config in $form is called that" exits 64 "run.json:1:1: error: (starts with a byte-order|is UTF-|is packed by $form)" "$TRAIN" check "$named"
    rm -f NEW.json; eval "$(grep -oE '(tail|iconv|gzip|zstd|xz|bzip2) -.*> NEW.json' err)"
    expect "  and its command makes the config" cmp NEW.json tiny.json
done
cd - > /dev/null || exit 1
expect "batch that ranks do not divide" exits 64 'global_tokens.*480' train batch.micro_batch=5
expect "too many ranks for the batch, said once" exits 64 'global_tokens' train_ranks 4 batch.micro_batch=6
at=$SECONDS; train_ranks 3 nonsense.key=1 > /dev/null 2>&1; expect "a config fault ends all ranks at once" [ $((SECONDS - at)) -le 30 ]

expect "no shard" exits 65 'data.train.*nothing_here' train data.train="$WORK/nothing_here_*.bin"
expect "no shard, 3 ranks: said once" exits 65 'data.train.*nothing_here' train_ranks 3 data.train="$WORK/nothing_here_*.bin"
shard=$WORK/data/train_000000.bin
head -c 5000 "$shard" > "$WORK/short.bin"
expect "truncated shard" exits 65 'short.bin' train data.train="$WORK/short.bin"
{ head -c 1024 "$shard"; printf '\xff\xff'; tail -c +1027 "$shard"; } > "$WORK/foreign.bin"
expect "token outside the vocabulary" exits 65 'foreign.bin.*65535' train data.train="$WORK/foreign.bin"
for ranks in 1 2; do # A data file is cut while a run trains. The run ends with 74 and loses nothing, whichever rank notices the cut first.
    cp "$shard" "$WORK/gone.bin"
    ( train_ranks $ranks data.train="$WORK/gone.bin" run.dir="$WORK/gone$ranks" run.steps=1000000 schedule.name=constant eval.every=0 checkpoint.every=5 checkpoint.keep=2 > /dev/null 2> "$WORK/err" ) & job=$!
    await_step "$WORK/gone$ranks"; sleep 0.5
    truncate -s 5000 "$WORK/gone.bin"; wait $job; status=$?
    expect "a shard that is cut while training, $ranks ranks: exit 74, its name and the byte" [ $status -eq 74 -a "$(grep -cE 'gone.bin .* byte [0-9]+ of [0-9]+' "$WORK/err")" -eq 1 ]
    cp "$shard" "$WORK/gone.bin"
    expect "brought back, it goes on" quiet train_ranks $ranks data.train="$WORK/gone.bin" run.dir="$WORK/gone$ranks" schedule.name=constant eval.every=0 checkpoint.every=5 checkpoint.keep=2 run.steps=$(($(values "$WORK/gone$ranks" train step | tail -n 1) + 5))
done
printf 'hello' > "$WORK/odd.bin"
expect "foreign file" exits 65 'odd.bin' train data.train="$WORK/odd.bin"
( cd "$WORK"; tar -cf a.tar text.txt; printf 'SQLite format 3\0abcd' > a.sqlite )
for name in a.tar a.sqlite; do # files of other programs; tokens may be in files without a header, so these could be mistaken for tokens
    expect "$name is no token file, by name" exits 65 "$name is not a file of tokens but a" train data.train="$WORK/$name" model.vocab_size=65536
done
expect "one file twice" exits 65 'twice' train data.train="[\"$shard\",\"$shard\"]"

expect "run folder under a file" exits 74 "tiny.json/run" train run.dir="$WORK/tiny.json/run"
train run.dir="$WORK/a" > /dev/null
before=$(find "$WORK/a" -type f -exec cat {} + | cksum)
expect "another model on the same folder names the key and both values" exits 64 'model.n_layer.*3.*2|model.n_layer.*2.*3' train run.dir="$WORK/a" model.n_layer=3
expect "another learning rate likewise" exits 64 'optimizer.learning_rate.*0.001' train run.dir="$WORK/a" optimizer.learning_rate=2e-3
expect "resume never" exits 64 "$WORK/a" train run.dir="$WORK/a" run.resume=never
expect "resume must, nothing there" exits 65 "$WORK/nothing" train run.dir="$WORK/nothing" run.resume=must
expect "nothing was written over" [ "$(find "$WORK/a" -type f -exec cat {} + | cksum)" = "$before" ]

"$TRAIN" "$WORK/tiny.json" run.dir="$WORK/busy" run.steps=100000 eval.every=0 checkpoint.every=0 log.every=100000 > /dev/null & pid=$!
await_step "$WORK/busy"
expect "a folder in use" exits 73 "$WORK/busy" train run.dir="$WORK/busy"
expect "a folder in use, run.resume=must" exits 73 "$WORK/busy" train run.dir="$WORK/busy" run.resume=must
expect "a folder in use, run.resume=never" exits 73 "$WORK/busy" train run.dir="$WORK/busy" run.resume=never
strike KILL $pid; wait $pid 2>/dev/null

# foreign NAME PATH CONTENT: puts a file of another program into a run folder, under a name that a run writes. The
# program must refuse the folder, change nothing in it, and propose a folder that does not exist yet.
foreign() { # NAME PATH CONTENT
    rm -rf "$WORK/foreign" "$WORK/foreign-2"; mkdir -p "$(dirname "$WORK/foreign/$2")"; printf '%s' "$3" > "$WORK/foreign/$2"; echo kept > "$WORK/foreign/slurm-12.out"
    local was; was=$(find "$WORK/foreign" -type f -exec cksum {} + | sort)
    expect "$1: refused by name, with a free run.dir" exits 64 "run.dir: $WORK/foreign/$2 .*run.dir=$WORK/foreign-2" train run.dir="$WORK/foreign" run.steps=1
    expect "$1: nothing in the folder is touched" [ "$(find "$WORK/foreign" -type f -exec cksum {} + | sort)" = "$was" ]
}
foreign "a Hugging Face config" config.json '{"architectures": ["GPT2LMHeadModel"], "n_layer": 2}'
foreign "a config that somebody wrote" config.json "$(cat "$WORK/tiny.json")"
foreign "metrics of another trainer" metrics.jsonl '{"step": 1, "loss": 3.2}
'
foreign "a log" log.txt 'my notes'
foreign "a picture" loss.svg '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"></svg>'
foreign "a lock of a package manager" lock '12345'
foreign "a checkpoint of another trainer" checkpoints/step_00000012/pytorch_model.bin 'weights'
foreign "a file in tb" tb/notes.md '# notes'
foreign "a file in place of the checkpoints" checkpoints 'weights'
train run.dir="$WORK/unmounted" run.steps=2 eval.every=0 > /dev/null 2>&1
mv "$WORK/unmounted/checkpoints" "$WORK/disk"; ln -s ../gone "$WORK/unmounted/checkpoints"; was=$(cksum < "$WORK/unmounted/metrics.jsonl")
expect "checkpoints on a disk that is not mounted" exits 64 "unmounted/checkpoints is a link to no folder" train run.dir="$WORK/unmounted" run.steps=2
expect "the metrics stay" [ "$(cksum < "$WORK/unmounted/metrics.jsonl")" = "$was" -a ! -e "$WORK/unmounted/metrics.jsonl.passed-over" ]
ln -sfn ../disk "$WORK/unmounted/checkpoints"
train run.dir="$WORK/unmounted" run.steps=2 eval.every=0 > "$WORK/said" 2>&1
expect "with the disk the run is done" grep -q "nothing to do" "$WORK/said"
foreign "algorithms" gemm.json '{"rows": 3}'
mkdir "$WORK/foreign-2"; expect "a folder that is there is not offered" exits 64 "run.dir=$WORK/foreign-3" train run.dir="$WORK/foreign" run.steps=1
expect "the folder that is offered works" quiet train run.dir="$WORK/foreign-3" run.steps=1
mkdir -p "$WORK/begun/checkpoints" "$WORK/begun/tb"; for name in config.json metrics.jsonl log.txt loss.svg lock; do : > "$WORK/begun/$name"; done; echo kept > "$WORK/begun/slurm-12.out"
expect "empty files that a killed start leaves, and a file of another name: the run begins" quiet train run.dir="$WORK/begun" run.steps=1
mkdir "$WORK/inside"; cp "$WORK/tiny.json" "$WORK/inside/config.json"
expect "the config that was given lies in its own run.dir" quiet "$TRAIN" "$WORK/inside/config.json" run.dir="$WORK/inside" run.steps=1
expect "and stays as it was written" cmp "$WORK/tiny.json" "$WORK/inside/config.json"

cp -r "$WORK/a" "$WORK/damaged"
printf 'x' | dd of="$WORK/damaged/checkpoints/step_00000012/model.safetensors" bs=1 seek=5000 conv=notrunc 2>/dev/null
expect "a damaged checkpoint is passed over, by name" exits 0 'step_00000012' train run.dir="$WORK/damaged"
expect "and training went on from the older one" same_losses "$WORK/damaged" "$WORK/a" 0
expect "init_from another shape" exits 65 'wte|wpe|c_attn|ln_' train run.dir="$WORK/i" model.init_from="$WORK/a/checkpoints/step_00000012" model.n_embd=84
expect "init_from nowhere" exits 65 'nowhere' train run.dir="$WORK/i2" model.init_from="$WORK/nowhere"
expect "before a folder is made" [ ! -e "$WORK/i2" ]
cp -r "$WORK/a/checkpoints/step_00000012" "$WORK/other"
for fault in 's/"n_head": *3/"n_head": 2/|n_head is 2; but model.n_head of this run is 3' 's/"gpt2"/"llama"/|model_type .*llama' 's/gelu_new/relu/|activation_function' 's/1e-05/1e-06/|layer_norm_epsilon'; do
    sed -E "${fault%%|*}" "$WORK/a/checkpoints/step_00000012/config.json" > "$WORK/other/config.json"
    expect "init_from another model: ${fault#*|}" exits 65 "${fault#*|}" train run.dir="$WORK/i2" model.init_from="$WORK/other"
done
train run.dir="$WORK/seeds" run.steps=1 run.seed=9007199254740991 > /dev/null
expect "a seed that is another by one" exits 64 'run.seed .*9007199254740990, .*9007199254740991' train run.dir="$WORK/seeds" run.steps=2 run.seed=9007199254740990
expect "standard files that are closed are not those of the run" quiet bash -c "'$TRAIN' '$WORK/tiny.json' run.dir='$WORK/closed' <&- >&- 2>&-"
expect "which it keeps to itself" [ "$(grep -cv '^{"kind":"' "$WORK/closed/metrics.jsonl")" -eq 0 ]
# as_with_open FOLDER OPEN: compares the files of a run in FOLDER, whose standard files were closed, with those of a run
# in OPEN whose standard files were open. They must be equal except for times. If descriptor 1 or 2 is closed, a file
# that the run opens could get that number, and then what is printed to the terminal. No line may be in log.txt twice.
as_with_open() {
    local name
    cmp <(cd "$1" && find . -type f ! -path './tb/*' | sort) <(cd "$2" && find . -type f ! -path './tb/*' | sort) || return 1
    while read -r name; do
        case $name in
            */log.txt) [ -z "$(sort "$1/$name" | uniq -d)" ] || { echo "$name: a line is there twice"; return 1; } ;;
            */metrics.jsonl | */state.json | */loss.svg | ./config.json | */lock)
                # files that contain times: only the number of lines is compared
                [ "$(wc -l < "$1/$name")" = "$(wc -l < "$2/$name")" ] || { echo "$name: another number of lines"; return 1; } ;;
            *) cmp "$1/$name" "$2/$name" || return 1 ;;
        esac
    done < <(cd "$1" && find . -type f ! -path './tb/*')
}
expect "each file is as with outputs that are open" as_with_open "$WORK/closed" "$WORK/a"
expect "a run that never is a number stops, 76" exits 76 'step [0-9]+' train run.dir="$WORK/nan" optimizer.learning_rate=1e30 optimizer.grad_clip=0 schedule.warmup_steps=0
expect "weights that overflow are not saved" exits 76 'not finite' train run.dir="$WORK/overflow" optimizer.learning_rate=1e30 optimizer.weight_decay=1e30 run.on_nonfinite=skip run.max_skips=100
expect "a beta that is 1 in fp32 is none in training" quiet train run.dir="$WORK/beta" optimizer.beta2=0.99999999 run.steps=3
expect "sample of nothing" exits 65 'nowhere' "$TRAIN" sample "$WORK/nowhere"
exit $STATUS
