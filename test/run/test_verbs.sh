#!/usr/bin/env bash
# Command lines that do not train: help, version, check, schema, unknown subcommands. None of these starts MPI or writes
# a file.
# Timed: an answer has a limit of seconds.
. "$(dirname "$0")/lib/expect.sh"
ROOT=$PWD
TRAIN=$PWD/$B/train_gpt
cat > "$WORK/good.json" <<'JSON'
{ "run": {"steps": 600}, "data": {"train": "nowhere/train_*.bin"},
  "model": {"n_layer": 4, "n_head": 6, "n_embd": 192, "n_positions": 256, "vocab_size": 256},
  "batch": {"global_tokens": 12288, "micro_batch": 4} }
JSON
cd "$WORK" || exit 1

# says NAME CODE PATTERN COMMAND...: checks the exit code, and that stdout and stderr together match the pattern
says() {
    local name=$1 code=$2 pattern=$3 output status; shift 3
    output=$("$@" 2>&1); status=$?
    if [ $status -eq "$code" ] && grep -qE -- "$pattern" <<< "$output"; then echo "ok $name"; return; fi
    printf 'not ok %s: exit %d, wanted %d and /%s/; it said:\n%s\n' "$name" $status "$code" "$pattern" "$output"
}

says "-h" 0 '^Exit codes: 0 done  64 config' "$TRAIN" -h
says "help is on stdout" 0 'train-tokenizer' bash -c "'$TRAIN' --help 2>/dev/null"
"$TRAIN" --help > help.txt
says "--help fits a screen of 80 x 24, with its prompt" 0 '^ok$' awk 'length > 80 || NR > 23 { bad = 1 } END { print bad ? "lines of " NR : "ok" }' help.txt
verbs=$(sed -n 's/^  \([a-z-]*\)  .*/\1/p' help.txt)
says "--help has the verbs" 0 'check plan train-tokenizer tokenize sample eval export plot watch serve inspect diff doctor schema' echo $verbs
# checks that the help of each verb has an example that begins as one types it, and at most 80 columns
for verb in $verbs; do
    says "help $verb" 0 "^Example: \./train_gpt $verb" "$TRAIN" help "$verb"
    says "help $verb within 80 columns" 0 '^$' bash -c "'$TRAIN' help $verb | awk 'length > 80'; echo"
    says "$verb --help is the same" 0 '^same$' bash -c "cmp <('$TRAIN' help $verb) <('$TRAIN' $verb --help) && echo same"
done
has_keys() { local verb=$1 key; shift; for key; do "$TRAIN" help "$verb" | grep -qE "^  $key=" || echo "no $key"; done; }
says "help check has its keys" 0 '^ *$' has_keys check ranks
says "help plan has its keys" 0 '^ *$' has_keys plan ranks memory ledger gpu nodes price cluster search fit \
    mtbf_hours json kernels rates
says "help train-tokenizer has its keys" 0 '^ *$' has_keys train-tokenizer out vocab_size field pattern memory
says "help tokenize has its keys" 0 '^ *$' has_keys tokenize out tokenizer field val eot shard_tokens
says "help sample has its keys" 0 '^ *$' has_keys sample prompt tokens temperature top_k top_p min_p n seed stop eot tokenizer parallel.tensor parallel.context parallel.pipeline
says "help eval has its keys" 0 '^ *$' has_keys eval data tasks tokens batch tokenizer json parallel.tensor parallel.context parallel.pipeline
says "help export has its keys" 0 '^ *$' has_keys export out dtype shard_bytes
says "help plot has its keys" 0 '^ *$' has_keys plot out x csv
says "help watch has its keys" 0 '^ *$' has_keys watch once
says "help inspect has its keys" 0 '^ *$' has_keys inspect tensors json
says "help diff has its keys" 0 '^ *$' has_keys diff tensors
says "help doctor has its keys" 0 '^ *$' has_keys doctor run.dir
says "help config has every key" 0 '^ *$' bash -c "'$TRAIN' schema | python3 -c 'import json, sys
for name, part in json.load(sys.stdin)[\"properties\"].items():
    for key in part.get(\"properties\", {}):
        if key[0] != \"\$\": print(name + \".\" + key)' | while read -r key; do '$TRAIN' help config \$key | grep -q \"^\$key\$\" || echo \$key; done"
says "help config is wrapped to the terminal" 0 '^80 60 100$' bash -c 'for n in "" 60 100; do COLUMNS=$n "$0" help config | wc -L; done | tr "\n" " " | sed "s/ $//"' "$TRAIN"
says "help config, a section" 0 'schedule.warmup_steps .*0 ' "$TRAIN" help config schedule
says "and only that" 1 '^0$' bash -c "'$TRAIN' help config schedule | grep -c optimizer"
says "help config, a key" 0 'default +6e-4' "$TRAIN" help config optimizer.learning_rate
says "help of a key, without the word config" 0 'allowed +an integer from 1' "$TRAIN" help run.steps
says "help of a verb misspelt" 64 'the nearest is "sample": ./train_gpt help sample' "$TRAIN" help smaple
says "help of a key misspelt" 64 'the nearest is "optimizer.learning_rate"' "$TRAIN" help config optimizer.learning_rat
says "docs/config.md is the table" 0 '^$' bash -c "cd '$ROOT'; '$TRAIN' help config markdown | diff - docs/config.md; echo"
says "--key=value is key=value" 0 'steps +5 of 12,288 tokens' "$TRAIN" check good.json --run.steps=5
says "for a verb's own keys, too" 0 'on 3 ranks' "$TRAIN" check good.json --ranks=3
says "and for training" 65 'data.train: .nowhere' "$TRAIN" good.json --run.steps=5
says "--key value is refused: one word" 64 'expected key=value in one word' "$TRAIN" check good.json --run.steps 5
says "--version" 0 '^train_gpt [0-9]+\.[0-9]+\.[0-9]+ \(commit ' "$TRAIN" --version
says "--version names the backend" 0 '^backend +(cpu|cuda|emu)$' "$TRAIN" --version
says "no argument" 64 '^usage: train_gpt config.json' "$TRAIN"
says "usage is on stderr" 64 '^$' bash -c "'$TRAIN' 2>/dev/null; s=\$?; echo; exit \$s"
says "check" 0 'good.json: ok' "$TRAIN" check good.json
says "check in a batch script of many tasks prints no warning" 0 '^$' bash -c "SLURM_JOB_ID=5 SLURM_NTASKS=8 '$TRAIN' check good.json 2>&1 >/dev/null; echo"
says "check counts parameters" 0 '1,878,144 parameters' "$TRAIN" check good.json
says "check with ranks" 0 'on 3 ranks' "$TRAIN" check good.json ranks=3
says "check names data that is not there" 0 'data.train +no file .*"nowhere/train_\*.bin"' "$TRAIN" check good.json
says "check, too many ranks" 64 'good.json:3:30: error: batch.global_tokens = 12288 .* ranks \(5\) = 5120; .*: 10240 and 15360' "$TRAIN" check good.json ranks=5
says "check, bad ranks" 64 'ranks=many: a whole number from 1 to 1000000 is expected, as in ranks=8' "$TRAIN" check good.json ranks=many
says "check, override" 0 'steps +5 of 12,288 tokens' "$TRAIN" check good.json run.steps=5
says "check, unknown key" 64 'did you mean "run.steps"\?' "$TRAIN" check good.json run.step=5
says "check, no file" 64 '^none.json: error: .*: No such file or directory$' "$TRAIN" check none.json
says "check alone" 64 'needs a config' "$TRAIN" check
says "check prints a fault once" 64 '^1$' bash -c "'$TRAIN' check none.json 2>&1 | wc -l; exit 64"
says "the default run folder" 0 'run folder +runs/good$' "$TRAIN" check good.json
head -c 100 /dev/zero > zero.bin
says "check refuses, as a run does: a source that is not there" 65 'nowhere does not exist' "$TRAIN" check good.json model.init_from=nowhere
says "check refuses, as a run does: a tokenizer" 65 "tokenizer's file gpt2 is not there" "$TRAIN" check good.json data.tokenizer=gpt2
says "check refuses, as a run does: a prompt without one" 64 'sample.prompt is text' "$TRAIN" check good.json model.vocab_size=300 sample.every=1 sample.prompt=a
for verb in "check good.json" "plan good.json" schema --help --version; do says "$verb on a full disk" 74 'not be written' bash -c "'$TRAIN' $verb > /dev/full"; done
says "check opens data that is there" 65 'data.train.* 50 tokens' "$TRAIN" check good.json data.train=zero.bin
says "and does not say ok before" 1 '^$' bash -c "'$TRAIN' check good.json data.train=zero.bin 2>&1 | grep ': ok'"
says "schema" 0 '"additionalProperties":.*false' "$TRAIN" schema
says "schema takes nothing" 64 '"x" is one argument too many' "$TRAIN" schema x
says "a plan of many sequences takes seconds" 0 'total' timeout 60 "$TRAIN" plan good.json batch.global_tokens=$((2048 * 128)) batch.micro_batch=2048 batch.seq_len=128
says "the schema in configs/ is this one" 0 '^$' bash -c "cd '$ROOT'; '$TRAIN' schema | diff - configs/train_gpt.schema.json; echo"
says "a verb that is not built" 64 '"deploy" .*verb' "$TRAIN" deploy
says "a verb misspelt" 64 '"chek" .*; did you mean "check"\?' "$TRAIN" chek good.json
says "train" 64 'to train, type ./train_gpt config.json' "$TRAIN" train good.json
says "an unknown option" 64 'did you mean "--version"\?' "$TRAIN" --versoin
says "no config before the overrides" 64 'config comes first' "$TRAIN" run.steps=5
says "no such config" 64 '^none.json: error: cannot read' "$TRAIN" none.json
printed_by_ranks() { run_ranks 3 "$TRAIN" check good.json 2> /dev/null | grep -c ': ok'; }
says "under mpirun a verb prints once" 0 '^1$' printed_by_ranks
says "and says that the other ranks have nothing to do" 0 'check is done once, by rank 0; the other 2 processes' run_ranks 3 "$TRAIN" check good.json
# Under srun each task is a separate command, not a rank of one job, because it may have its own arguments, as in srun
# bash -c './train_gpt tokenize part_$SLURM_PROCID.txt ...'.
for task in 0 1 2; do
    echo "part $task" > "part_$task.txt"
    says "task $task of srun does its own verb" 0 ' bytes of text' env SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=$task SLURM_STEP_NUM_TASKS=3 "$TRAIN" tokenize "part_$task.txt" out="prepared_$task" val=0
    says "and writes its own shard" 0 "part $task" bash -c "tail -c +1025 prepared_$task/train_000000.bin | tr -d '\\0'"
done
for variable in OMPI_COMM_WORLD_RANK PMI_RANK PMIX_RANK; do
    rm -rf prepared_0
    says "$variable=1 without its launcher is named, and the verb done" 0 "$variable=1 says that a launcher" env $variable=1 "$TRAIN" tokenize part_0.txt out=prepared_0 val=0
    says "its shard is there" 0 'part 0' bash -c "tail -c +1025 prepared_0/train_000000.bin | tr -d '\\0'"
done
[ -e runs ] && echo "not ok nothing is written" || echo "ok nothing is written"

# The JSON schema and the program's parser agree on the table of bad values.
if ! python3 -c 'import jsonschema' 2> /dev/null; then echo "skip schema against bad values: no python3-jsonschema"; exit 0; fi
"$TRAIN" schema > schema.json
cat > agree.py <<'PY'
import json, re, sys
from jsonschema import Draft202012Validator
schema = json.load(open("schema.json"))
Draft202012Validator.check_schema(schema)
good = json.load(open("good.json"))
check = Draft202012Validator(schema)
assert check.is_valid(good), list(check.iter_errors(good))
assert not check.is_valid({**good, "optim": {}}) and not check.is_valid({k: v for k, v in good.items() if k != "data"})
assert not check.is_valid({**good, "model": {"n_layer": 4}}) and check.is_valid({**good, "model": {"preset": "gpt2-124m"}})
table = open(sys.argv[1]).read().split("BAD_VALUES[] = {")[1].split("};")[0]
rows = re.findall(r'^ *\{("(?:[^"\\]|\\.)*"), ("(?:[^"\\]|\\.)*"), ("(?:[^"\\]|\\.)*")', table, re.M)
assert len(rows) > 100
for key, value, says in (map(json.loads, row) for row in rows):
    config = json.loads(json.dumps(good))
    section, _, name = key.rpartition(".")
    (config.setdefault(section, {}) if section else config)[name] = json.loads(value)
    # skips values that are refused by rules between keys, which a schema does not have
    if key == "run.allow_change" and "string" not in says or "global_tokens =" in says: continue
    if key in ("run.dir", "data.train", "data.tokenizer") and any(mark in value for mark in ("~", "$", "//", "\\n")): continue
    assert not check.is_valid(config), (key, value)
PY
says "schema against bad values" 0 '^$' bash -c "python3 -W ignore agree.py '$ROOT/test/run/config/bad_configs.h' && echo"
says "make alone makes the program" 0 '^\.DEFAULT_GOAL := all$' make -C "$ROOT" -pn BACKEND=cpu help

# For each subcommand, a key that is given twice is refused before anything is written. skip= may be repeated, and so
# may keys of the config.
while read -r verb key first second; do
    says "$verb: $key= twice" 64 "^train_gpt: $verb: $key= is given twice, as $key=$first and as $key=$second: give it once$" "$TRAIN" "$verb" good.json "$key=$first" "$key=$second"
done <<'KEYS'
tokenize out a b
train-tokenizer vocab_size 300 400
sample tokens 1 1
eval json true false
export out a b
plot out a b
inspect json true true
check ranks 1 2
plan gpu h100 h200
KEYS
says "  and nothing is there" 0 '^good.json( |$)' bash -c 'ls | grep -vE "^(good.json|.*\.txt)$" | grep -xE "a|b" || echo good.json'
mkdir texts; echo some text > texts/a.txt; echo more > texts/b.md; echo and more > texts/c.rst
says "skip= may repeat" 0 'left out .*b.md' "$TRAIN" tokenize texts skip='*.md' skip='*.rst' out=shards val=0
says "of a key of the config the last one counts" 0 'steps +7 of' "$TRAIN" check good.json run.steps=5 run.steps=7
