# test_newcomer.sh - mistakes of new users in their first hour. Each of them once went wrong without a message.
. "$(dirname "$0")/lib/tiny.sh"
said() { grep -qE "$1" "$WORK/err"; }
told() { "$@" > "$WORK/out" 2> "$WORK/err"; } # told COMMAND...: runs the command and keeps stdout and stderr in files
SHORT="eval.every=0 checkpoint.every=0 model.vocab_size=50257 sample.every=0"

# A text is given in place of tokens. The message has the command that makes tokens of it.
cp "$WORK/text.txt" "$WORK/book.txt"
for odd in "" x; do
    printf '%s' "$odd" >> "$WORK/book.txt"
    expect "text as data${odd:+, of an odd length}" exits 65 "book.txt is UTF-8 text, not tokens: ./train_gpt tokenize $WORK/book.txt out=datasets/book " train $SHORT data.train="$WORK/book.txt" run.dir="$WORK/x"
done
yes '{"text": "a line"}' | head -n 100 > "$WORK/lines.jsonl"; gzip -k "$WORK/lines.jsonl"
expect "JSON as data" exits 65 "lines.jsonl is JSON, not tokens: ./train_gpt tokenize" train $SHORT data.train="$WORK/lines.jsonl" run.dir="$WORK/x"
expect "gzip as data" exits 65 "lines.jsonl.gz is gzip, not tokens" train $SHORT data.train="$WORK/lines.jsonl.gz" run.dir="$WORK/x"
expect "plan says so, too" grep -q "book.txt is UTF-8 text" <<< "$("$TRAIN" plan "$WORK/tiny.json" data.train="$WORK/book.txt")"
expect "nothing was begun" [ ! -e "$WORK/x" ]

# With a larger run.steps at a resume the schedule changes, and with another eval.tokens evaluations read other tokens.
# A message says so.
quiet train run.dir="$WORK/more"
expect "run.steps raised on resume" told train run.dir="$WORK/more" run.steps=24
expect "both rates are said" said "run.steps is 24, in the checkpoint 12: the learning rate of step 13 is [0-9.e-]+, and with the old run.steps it would be 1.000e-04"
expect "eval.tokens changed on resume" told train run.dir="$WORK/more" run.steps=26 eval.tokens=800 schedule.name=constant run.allow_change=schedule
expect "is said" said "eval.tokens is 800, in the checkpoint 400: from step 24 on"
expect "as it was: nothing is said" eval 'told train run.dir="$WORK/more" run.steps=26 eval.tokens=800 schedule.name=constant; ! said warning'

# run.stop_step ends a run early. The learning rates stay those of all run.steps.
quiet train run.dir="$WORK/whole"
told train run.dir="$WORK/part" run.stop_step=7 log.every=5; status=$?
expect "run.stop_step: exit 75, saved there" [ $status -eq 75 -a "$(ls "$WORK/part/checkpoints" | tail -n 1)" = step_00000007 ]
expect "the last step has its line" grep -q "^step  7/12 .* ETA     0s$" "$WORK/out"
expect "it says so" grep -q "stopped at step 7 of 12, saved, as run.stop_step says" "$WORK/out"
told train run.dir="$WORK/part" run.stop_step=7; status=$?
expect "again: nothing to do, exit 0: a requeued job ends" [ $status -eq 0 ] && expect "  and says why" grep -q "at step 7 of run.stop_step = 7 already" "$WORK/out"
expect "without it the run goes on" told train run.dir="$WORK/part"
expect "with the rates and weights of one that did not stop" same_weights "$WORK/part" "$WORK/whole" step_00000012
expect "  and not a word of changed rates" eval '! said "learning rate"'

# A resume with a changed key is refused, and the message has the override that allows the change. goes_on NAME
# WORDS...: checks that the run is refused with 64, and does its next step with that override. Keys that are allowed
# already stay allowed.
goes_on() {
    local name=$1 cure; shift
    cp -r "$WORK/changed" "$WORK/$name"
    told train run.dir="$WORK/$name" run.stop_step=3 "$@"; [ $? -eq 64 ] || return 1
    cure=$(sed -n 's/.*or go on with the new values: //p' "$WORK/err")
    [ -n "$cure" ] || { cat "$WORK/err"; return 1; }
    eval "told train run.dir='$WORK/$name' run.stop_step=3 ${*@Q} $cure"; [ $? -eq 75 ] || { cat "$WORK/err"; return 1; }
    [ "$(values "$WORK/$name" train step | tail -n 1)" = 3 ]
}
told train run.dir="$WORK/changed" run.stop_step=2 eval.every=0
mkdir "$WORK/data2"; for name in "$WORK"/data/*.bin; do cp "$name" "$WORK/data2/other_${name##*/}"; done; cp "$WORK"/data/*.json "$WORK/data2" 2> /dev/null
expect "a changed rate" goes_on rate optimizer.learning_rate=2e-3
expect "another schedule and momentum" goes_on schedule optimizer.beta1=0.8 schedule.name=linear schedule.warmup_steps=1
expect "other tokens a step" goes_on tokens batch.global_tokens=960
expect "shorter sequences" goes_on length batch.seq_len=20
expect "another seed and order" goes_on seed run.seed=5 data.shuffle=false
expect "other heads of the same tensors" goes_on heads model.n_head=6
expect "other data, and a rate" goes_on shards data.train="$WORK/data2/other_train*" optimizer.eps=1e-7
mkdir "$WORK/data3"; cp "$WORK"/data/* "$WORK/data3"; printf 'q\0' | dd of="$WORK/data3/train_000000.bin" bs=1 seek=$(($(stat -c %s "$WORK/data3/train_000000.bin") - 2)) conv=notrunc status=none
expect "data of the same sizes" goes_on tokens_changed data.train="$WORK/data3/train_*"
expect "the message names the shard" exits 64 'data.train: shard 0, train_000000.bin, holds other tokens than in the checkpoint' train run.dir="$WORK/changed" data.train="$WORK/data3/train_*"
expect "one key is allowed already" goes_on allowed optimizer.beta1=0.8 optimizer.beta2=0.99 run.allow_change=optimizer.beta2
expect "a model of other tensors has no such cure" eval '! goes_on deeper model.n_layer=3 && grep -q "model.n_layer is 3, in the checkpoint 2. Set back what changed, or take another run.dir$" "$WORK/err"'
expect "nor has an optimizer of other state" eval '! goes_on muon optimizer.name=muon && grep -q "in the checkpoint the string \"adamw\". Set back what changed, or take another run.dir$" "$WORK/err"'

# A new run whose config does not set the warmup prints a line about it; 0 counts as set.
warmup() { told "$TRAIN" "$WORK/bare.json" run.dir="$WORK/bare$1" run.stop_step=1 eval.every=0 "${@:2}"; grep -c '^warmup  *none: step 1 has the full learning rate' "$WORK/out"; }
sed 's/"warmup_steps": 3, //' "$WORK/tiny.json" > "$WORK/bare.json"
expect "200 steps without a word on the warmup" [ "$(warmup 1 run.steps=200)" = 1 ]
expect "the line has what to type" eval 'grep -q "schedule.warmup_steps=20 " "$WORK/out" && [ "$(warmup 2 run.steps=200 schedule.warmup_steps=20)" = 0 ]'
expect "199 steps: no line" [ "$(warmup 3 run.steps=199)" = 0 ]
expect "0 that is set: no line" [ "$(warmup 4 run.steps=300 schedule.warmup_steps=0)" = 0 ]
expect "a resumed run: no line" [ "$(warmup 1 run.steps=200 run.stop_step=2)" = 0 ]
for verb in check plan; do
    expect "$verb prints the line, too" [ "$("$TRAIN" $verb "$WORK/bare.json" run.steps=200 | grep -c '^warmup  *none: step 1 has the full learning rate')" = 1 ]
    expect "  no line if the warmup is set" eval '"$TRAIN" $verb "$WORK/bare.json" run.steps=200 schedule.warmup_steps=0 > "$WORK/out" && ! grep -q "^warmup " "$WORK/out"'
done

# A run that is finished prints what to type next, and that command works for any name of the folder.
expect "a run is done" told train run.dir="$WORK/my runs/it's" run.steps=1 eval.every=0
expect "its curve is named" [ -s "$(sed -n 's/^curve  *//p' "$WORK/out")" ]
sed -nE 's/^(text|export) +//p' "$WORK/out" > "$WORK/next"
expect "text and export are named" [ "$(wc -l < "$WORK/next")" -eq 2 ]
ln -s "$TRAIN" "$WORK/train_gpt"
expect "and they work" eval '(cd "$WORK" && while read -r line; do eval "$line" < /dev/null || exit 1; done < next) > "$WORK/out" 2>&1 && [ -e "$WORK/models/it'"'"'s/model.safetensors" ]'
expect "a run that was stopped says none of it" eval '! (train run.dir="$WORK/halted" run.stop_step=1 eval.every=0 | grep -qE "^(text|curve|export) ")'

# If a data file is given for both training and evaluation, a warning names it.
expect "all files as both" told train run.dir="$WORK/both" run.steps=1 data.train="$WORK/data/*.bin" data.val="$WORK/data/val_*.bin"
expect "a warning names the file" said "warning: data.val names $WORK/data/val_000000.bin, and so does data.train"
expect "apart: no warning" eval 'told train run.dir="$WORK/apart" run.steps=1; ! said warning'

# A run's folder can be given in place of its config, and in place of its weights.
quiet train run.dir="$WORK/folder" run.stop_step=6
mv "$WORK/folder" "$WORK/moved"
expect "a run's folder resumes it" told "$TRAIN" "$WORK/moved" run.stop_step=0
expect "where it is now" grep -q "^resume .* step 6,.* $WORK/moved/checkpoints$" "$WORK/out"
expect "to its end" same_weights "$WORK/moved" "$WORK/whole" step_00000012
expect "on two ranks, too" quiet run_ranks 2 "$TRAIN" "$WORK/moved" run.stop_step=0 run.steps=13
expect "its config.json has what was said since" grep -qE '"steps":\s*13' "$WORK/moved/config.json"
expect "weights from a run's folder" told train run.dir="$WORK/from" model.init_from="$WORK/whole" run.steps=1 optimizer.learning_rate=0 sample.every=0
expect "are its newest checkpoint's" cmp "$WORK/from/checkpoints/step_00000001/model.safetensors" "$WORK/whole/checkpoints/step_00000012/model.safetensors"

# Configs may have comments, and sizes in the forms that people write.
sed 's/"run": {/"$comment": ["any", "value"], "run": {"$comment": "why so few steps", /; s/"eval": {/"eval": {"$comment": {"x": 1}, /' "$WORK/tiny.json" > "$WORK/commented.json"
expect "comments in any section" quiet "$TRAIN" check "$WORK/commented.json"
for size in 80G 80GiB 81920M 85899345920; do
    expect "plan memory=$size" grep -q "largest batch.micro_batch in 80.00 GiB" <<< "$("$TRAIN" plan "$WORK/tiny.json" memory=$size)"
done

# For missing data that scripts/fetch.sh knows, the message proposes it; for others it proposes tokenize.
names=$(scripts/fetch.sh | sed -n 's/^  \([a-z0-9-]*\)  .*/\1/p')
expect "fetch.sh lists its data" [ "$(wc -w <<< "$names")" -ge 5 ]
mkdir -p "$WORK/elsewhere/datasets/climbmix"
for name in $names; do
    expect "no data of $name" exits 65 "datasets/$name.*\(scripts/fetch.sh $name fetches these data\)" env -C "$WORK/elsewhere" "$TRAIN" "$WORK/tiny.json" run.dir="$WORK/x" data.train="datasets/$name/train_*.bin"
done
expect "a vocabulary larger than that of bytes: two commands" exits 65 "to make the data from a text: ./train_gpt train-tokenizer TEXT out=datasets/own vocab_size=300, then ./train_gpt tokenize TEXT out=datasets/own tokenizer=datasets/own;" \
    env -C "$WORK/elsewhere" "$TRAIN" "$WORK/tiny.json" run.dir="$WORK/x" data.train="datasets/own/train_*.bin" model.vocab_size=300
tr '\n' ' ' < "$WORK/err" | sed -E 's/.*from a text: (.*), then (.*); if there is.*/\1; \2/; s/TEXT/text.txt/g; s|./train_gpt|"$TRAIN"|g' > "$WORK/cure"
cp "$WORK/text.txt" "$WORK/elsewhere/"; (cd "$WORK/elsewhere" && . "$WORK/cure") > /dev/null 2>&1; ok $? "  both can be typed"
expect "  and then it trains" quiet env -C "$WORK/elsewhere" "$TRAIN" "$WORK/tiny.json" run.dir="$WORK/x" data.train="datasets/own/train_*.bin" data.val= model.vocab_size=300 run.steps=1 eval.every=0
expect "beside a tokenizer, it is named alone" exits 65 "from a text: ./train_gpt tokenize TEXT out=datasets/own tokenizer=datasets/own\)" \
    env -C "$WORK/elsewhere" "$TRAIN" "$WORK/tiny.json" run.dir="$WORK/x" data.train="datasets/own/none_*.bin" data.val= model.vocab_size=300
expect "no data of another name" exits 65 "tokenize TEXT out=datasets/climbmixed\)" env -C "$WORK/elsewhere" "$TRAIN" "$WORK/tiny.json" run.dir="$WORK/x" data.train="datasets/climbmixed/train_*.bin"

# A second call of scripts/demo.sh leaves the first demo unchanged, and prints commands that work. A stand-in for the
# program cuts each training short.
mkdir "$WORK/tree"; ln -s "$PWD/configs" "$PWD/scripts" "$WORK/tree"
cat > "$WORK/tree/short" <<SH
#!/usr/bin/env bash
case \$1 in configs/*) exec "$TRAIN" "\$@" run.steps=\${STEPS:-2} eval.every=0 sample.every=0 \${MORE:-} ;; *) exec "$TRAIN" "\$@" ;; esac
SH
chmod +x "$WORK/tree/short"; ln -s short "$WORK/tree/train_gpt"
demo() { TRAIN_GPT=./short "$WORK/tree/scripts/demo.sh" "$@" > "$WORK/out" 2> "$WORK/err"; }
contents() { (cd "$WORK/tree" && find "$1" "$2" -type f -exec cksum {} + | sort); }
mkdir -p "$WORK/tree/runs/demo" "$WORK/tree/datasets/demo-3"; touch "$WORK/tree/datasets/demo-3/kept"
expect "a demo in an empty folder" demo "$WORK/text.txt"
contents runs/demo datasets/demo > "$WORK/first"
expect "a second demo" demo "$WORK/text.txt"
expect "says where it trains" grep -q "an earlier demo stays as it is in runs/demo and datasets/demo: this one trains in runs/demo-2 with datasets/demo-2" "$WORK/out"
expect "and leaves the first one" eval 'contents runs/demo datasets/demo | cmp - "$WORK/first"'
command=$(sed -n 's/^== training: //p' "$WORK/out")
expect "its printed command is that run's" grep -q "runs/demo-2 is at step 2 of run.steps = 2 already" <<< "$(cd "$WORK/tree" && eval "$command" 2>&1)"
# simulates a run that was stopped at step 2 of 3
sed -i -E 's/("steps":[[:space:]]*)2/\13/' "$WORK/tree/runs/demo-2/config.json"
expect "a demo that was stopped goes on" eval 'STEPS=3 demo "$WORK/text.txt" && grep -q "an earlier demo of this text was stopped: it goes on in runs/demo-2 with datasets/demo-2" "$WORK/out"'
expect "  to its end" [ -e "$WORK/tree/runs/demo-2/checkpoints/step_00000003" ]
expect "a folder of data is as good as a run: the third takes 4" eval 'demo "$WORK/text.txt" && [ -e "$WORK/tree/runs/demo-4/config.json" -a -z "$(ls "$WORK/tree/datasets/demo-3" | grep -v kept)" ]'
expect "others can read the demo's text as they can any file of this user" [ "$(stat -c %a "$WORK/tree/datasets/demo-4/text.txt")" = "$(printf %o $((0666 & ~$(umask))))" ]
# simulates that demo-4 was stopped at step 2 and is in use: this shell has its lock
sed -i -E 's/("steps":[[:space:]]*)2/\13/' "$WORK/tree/runs/demo-4/config.json"
exec 8<> "$WORK/tree/runs/demo-4/lock"; flock 8
contents runs/demo-4 datasets/demo-4 > "$WORK/first"
expect "a demo that is at work is left to itself" eval 'demo "$WORK/text.txt" && [ -e "$WORK/tree/runs/demo-5/checkpoints/step_00000002" ]'
expect "  and nothing of it changes" eval 'contents runs/demo-4 datasets/demo-4 | cmp - "$WORK/first"'
exec 8<&-
contents runs/demo-4 datasets/demo-4 > "$WORK/first"
STEPS=3 MORE=model.n_embd=64 demo "$WORK/text.txt"
expect "a stopped demo of another model ends with the program's refusal" [ $? -eq 64 ]
expect "  and with what to type" grep -q "demo: to begin anew: mv runs/demo-4 runs/demo-4.old" "$WORK/err"
expect "  and nothing of it changes" eval 'contents runs/demo-4 datasets/demo-4 | cmp - "$WORK/first"'
mv "$WORK/tree/runs/demo-4" "$WORK/tree/runs/demo-4.old"
expect "what it says to type helps" eval 'MORE=model.n_embd=64 demo "$WORK/text.txt"'

# ./train_gpt links to the build that was requested last. Only make's goal `all` sets the link, and never to the
# emulator or a sanitizer.
mkdir -p "$WORK/cuda/bin"; printf '#!/bin/sh\n' > "$WORK/cuda/bin/nvcc"; chmod +x "$WORK/cuda/bin/nvcc"
links() { make -n DEPS=0 "$@" 2>&1 | sed -n 's/^\[ -e train_gpt \] || //; s/^ln -sfn \(.*\) train_gpt$/\1/p'; }
expect "make links the build of this machine" grep -q '^build/c.*/train_gpt$' <<< "$(links)"
expect "make BACKEND=cpu links that" [ "$(links BACKEND=cpu)" = build/cpu/train_gpt ]
expect "make BACKEND=cuda links that" [ "$(links BACKEND=cuda CUDA_HOME="$WORK/cuda")" = build/cuda/train_gpt ]
for goal in "SAN=-asan BACKEND=cpu" tests test-docs look check-hf "BACKEND=cpu build/cpu/train_gpt"; do
    expect "make $goal links nothing" [ -z "$(links $goal)" ]
done
expect "nor does a script or a test" [ -z "$(grep -rnE '\bmake (-\S+ |[A-Z]+=\S+ )*all\b' scripts test | grep -v 'BACKEND=emu')" ]
exit $STATUS
