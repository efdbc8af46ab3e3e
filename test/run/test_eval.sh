# ./train_gpt eval and eval.tasks: loss, bits per byte, tasks of every form, and nanochat's CORE score. Results are the
# same on any number of ranks. Also refusals.
. "$(dirname "$0")/lib/tiny.sh"

# Writes files of questions with made-up words: made.jsonl, open.jsonl, which.jsonl, and the first of them in llm.c's
# format.
python3 - "$WORK" << 'PY'
import json, random, struct, sys
work, draw = sys.argv[1], random.Random(5)
words = "the quick brown fox jumps over a lazy dog while rain falls on old stones".split()
def text(least, most): return " ".join(draw.choice(words) for _ in range(draw.randint(least, most)))
def lines(name, items): open(f"{work}/{name}.jsonl", "w").writelines(json.dumps(item) + "\n" for item in items)
made = [{"context": text(1, 6) + " " * (i % 3 == 0), "choices": [" " + text(1, 2) for _ in range(draw.randint(2, 4))], "gold": draw.randint(0, 1)} for i in range(41)]
lines("made", made)
lines("open", [{"context": text(0 if i == 0 else 1, 4), "continuation": draw.choice(["e", " r", "s", " "])} for i in range(30)])
lines("which", [{"contexts": [text(1, 3), text(1, 3)], "continuation": " " + draw.choice(words), "gold": i % 2} for i in range(9)])
lines("same", [{"context": "a", "choices": [c, "xxxxxx"], "gold": g} for c, g in ((" quick", 0), (" quick", 1), (" quick", 0))])
out = []
for i, item in enumerate(made[:20]):
    context = list(item["context"].strip().encode())
    words16 = [len(item["choices"]), len(context), *context]
    for choice in item["choices"]: words16 += [len(choice.encode()), *choice.encode()]
    out.append([65535, 2 * (len(words16) + 4), i, item["gold"], *words16])
with open(f"{work}/hella.bin", "wb") as file:
    file.write(struct.pack("<256i", 20240522, 1, len(out), max(x[1] for x in out), *[0] * 252))
    for x in out: file.write(struct.pack(f"<{len(x)}H", *x))
PY
TASKS=$WORK/made.jsonl,$WORK/open.jsonl,$WORK/which.jsonl,$WORK/hella.bin
LIST="[\"${TASKS//,/\",\"}\"]"
lines() { grep '"kind":"task"' "$1/metrics.jsonl"; }
score() { python3 -c 'import json,sys; r = json.load(sys.stdin); print(*[(t["task"], t["n"], round(t["acc"], 9), t.get("acc_norm") and round(t["acc_norm"], 9)) for t in r["tasks"]], sep="\n")'; }
get() { python3 -c 'import json,sys; r = json.load(sys.stdin); print(eval(sys.argv[1]))' "$1"; }
evaluated() { "$TRAIN" eval "$@" json=true 2> "$WORK/warned"; }

train eval.tasks="$LIST" optimizer.learning_rate=5e-3 > "$WORK/said" 2> "$WORK/warned"; ok $? "train with eval.tasks"
expect "a line of each task at steps 0, 6 and 12" [ "$(lines "$WORK/run" | sed -E 's/.*"step":([0-9]*),"task":"([a-z]*)","n":([0-9]*).*/\1\2\3/' | tr '\n' ' ')" = \
    "0made41 0open30 0which9 0hella20 6made41 6open30 6which9 6hella20 12made41 12open30 12which9 12hella20 " ]
expect "and on the terminal" grep -qE '^task +12/12 +100.0% \| made \| acc 0\.[0-9]{4} \(stderr 0\.[0-9]{4}\) \| acc_norm 0' "$WORK/said"
expect "cut texts are counted" grep -qE 'made.jsonl: [0-9]+ texts are longer than the 40 tokens of batch.seq_len' "$WORK/warned"

evaluated "$WORK/run" tasks="$TASKS" > "$WORK/eval.json"; ok $? "eval of the run"
expect "its loss is training's last" near <(values "$WORK/run" eval loss | tail -1) <(get 'r["loss"]' < "$WORK/eval.json") 1e-6
expect "perplexity and bits per byte follow" [ "$(get 'abs(r["perplexity"] / 2.718281828459045 ** r["loss"] - 1) < 1e-9 and abs(r["bpb"] / r["loss"] * 0.6931471805599453 - 1) < 1e-9 and r["tokens"] == 400' < "$WORK/eval.json")" = True ]
last() { lines "$WORK/run" | grep '"step":12,' | sed -E "s/.*\"$1\":([^,}]*).*/\1/"; }
expect "its scores are training's last" near <(last acc) <(get '"\n".join("%.9g" % t["acc"] for t in r["tasks"])' < "$WORK/eval.json") 1e-8
expect "with the same standard errors" near <(last stderr) <(get '"\n".join("%.9g" % t["stderr"] for t in r["tasks"])' < "$WORK/eval.json") 1e-7
expect "standard errors are of the mean" [ "$(get 'all(abs(t["stderr"] ** 2 * (t["n"] - 1) - t["acc"] * (1 - t["acc"])) < 1e-9 for t in r["tasks"])' < "$WORK/eval.json")" = True ]
for batch in 1 3 64; do
    evaluated "$WORK/run" data= tasks="$TASKS" batch=$batch > "$WORK/other.json"
    expect "batch=$batch gives the same scores" cmp <(score < "$WORK/eval.json") <(score < "$WORK/other.json")
    expect "and perplexity" near <(get 'r["tasks"][1]["perplexity"]' < "$WORK/eval.json") <(get 'r["tasks"][1]["perplexity"]' < "$WORK/other.json") 1e-6
done
"$TRAIN" eval "$WORK/run" tasks="$TASKS" > "$WORK/table" 2> /dev/null
expect "a table for people" grep -qE '^made +41 +0\.[0-9]{4}' "$WORK/table"
# same.jsonl has three questions with equal choices. The first, the second and the first choice are right. Any model
# picks the same choice three times, so it is right twice or once.
evaluated "$WORK/run" data= tasks="$WORK/same.jsonl" > "$WORK/two.json"
expect "acc and stderr of a case known beforehand" [ "$(get '[round(t["acc"], 6) for t in r["tasks"]] in ([0.666667], [0.333333]) and abs(r["tasks"][0]["stderr"] - (2 / 9 / 2) ** 0.5) < 1e-12' < "$WORK/two.json")" = True ]

# Two and three ranks print the results of one rank.
for ranks in 2 3; do
    train_ranks $ranks run.dir="$WORK/ranks$ranks" eval.tasks="$LIST" run.steps=6 optimizer.learning_rate=0 > /dev/null 2>&1
done
train run.dir="$WORK/ranks1" eval.tasks="$LIST" run.steps=6 optimizer.learning_rate=0 > /dev/null 2>&1
expect "2 ranks score as one does" cmp <(lines "$WORK/ranks1") <(lines "$WORK/ranks2")
expect "3 ranks, too" cmp <(lines "$WORK/ranks1") <(lines "$WORK/ranks3")
GRID="model.n_head=2 model.n_embd=32 run.steps=6 optimizer.learning_rate=0 eval.tasks=$LIST"
train $GRID run.dir="$WORK/plain" > /dev/null 2>&1
for grid in "2 parallel.tensor=2" "2 parallel.pipeline=2" "2 parallel.zero_stage=3"; do
    rm -rf "$WORK/grid"; train_ranks ${grid%% *} $GRID run.dir="$WORK/grid" ${grid#* } > /dev/null 2>&1
    expect "scores of one rank with ${grid#* }" cmp <(lines "$WORK/plain" | sed 's/"perp.*//') <(lines "$WORK/grid" | sed 's/"perp.*//')
done
run_ranks 2 "$TRAIN" eval "$WORK/plain" parallel.tensor=2 tasks="$TASKS" json=true > "$WORK/grid.json" 2> /dev/null
evaluated "$WORK/plain" tasks="$TASKS" > "$WORK/one.json"
expect "eval on a grid: the scores of one rank" cmp <(score < "$WORK/one.json") <(score < "$WORK/grid.json")
expect "and the loss" near <(get 'r["loss"]' < "$WORK/one.json") <(get 'r["loss"]' < "$WORK/grid.json") 2e-6
run_ranks 2 "$TRAIN" eval "$WORK/plain" data= tasks="$WORK/which.jsonl" json=true > "$WORK/alone.json"
expect "without a grid rank 0 alone answers" [ "$(wc -l < "$WORK/alone.json")" = 1 ]

# Tasks are scored every eval.tasks_every steps and at the end, also after a resume and without data.val.
train run.dir="$WORK/often" data.val= eval.tasks="[\"$WORK/which.jsonl\"]" eval.tasks_every=4 run.steps=10 > /dev/null
expect "tasks_every and the end, without data.val" [ "$(steps_of "$WORK/often" task)" = "0 4 8 10 " ]
train run.dir="$WORK/half" eval.tasks="$LIST" optimizer.learning_rate=5e-3 run.stop_step=7 > /dev/null 2>&1
train run.dir="$WORK/half" eval.tasks="$LIST" optimizer.learning_rate=5e-3 > "$WORK/said" 2>&1
expect "a resumed run has the lines of one that never stopped" cmp <(lines "$WORK/run") <(lines "$WORK/half")
expect "and takes them for its own" [ "$(grep -c 'not the program' "$WORK/said")" = 0 ]
mkdir "$WORK/cut"; touch "$WORK/cut/STOP"
train run.dir="$WORK/cut" data.val= eval.tasks="$LIST" optimizer.learning_rate=5e-3 > "$WORK/said" 2>&1; status=$?
expect "a request to stop cuts them short" [ $status = 75 -a "$(grep -c 'the evaluation after step 0 stops, because a stop was requested' "$WORK/said")" = 1 -a "$(lines "$WORK/cut" | wc -l)" = 0 ]
train run.dir="$WORK/cut" data.val= eval.tasks="$LIST" optimizer.learning_rate=5e-3 > /dev/null 2>&1
expect "and the next start does them first" cmp <(lines "$WORK/run") <(lines "$WORK/cut")

# With byte-pair tokens, eval computes bits per byte with the bytes_per_token in tokens.json of the data folder.
"$TRAIN" train-tokenizer "$WORK/text.txt" out="$WORK/bpe" vocab_size=300 > /dev/null && "$TRAIN" tokenize "$WORK/text.txt" out="$WORK/bpe" tokenizer="$WORK/bpe" val=0.1 > /dev/null
train run.dir="$WORK/merged" model.vocab_size=320 data.train="$WORK/bpe/train_*.bin" data.val="$WORK/bpe/val_*.bin" eval.tasks="[\"$WORK/made.jsonl\"]" > /dev/null 2>&1; ok $? "train with byte pairs"
evaluated "$WORK/merged" tasks="$WORK/made.jsonl" > "$WORK/bpe.json"
expect "bits per byte count its bytes" [ "$(get "abs(r['bpb'] * 0.6931471805599453 * $(sed -nE 's/.*"bytes_per_token": ([0-9.]*).*/\1/p' "$WORK/bpe/tokens.json") / r['loss'] - 1) < 1e-9" < "$WORK/bpe.json")" = True ]
expect "and its scores are training's" near <(values "$WORK/merged" task acc_norm | tail -1) <(get 'r["tasks"][0]["acc_norm"]' < "$WORK/bpe.json") 1e-8

# Writes a bundle of tasks in nanochat's format.
mkdir -p "$WORK/bundle/eval_data/some"
cat > "$WORK/bundle/core.yaml" << 'YAML'
icl_tasks:
- {label: pick, dataset_uri: some/pick.jsonl, num_fewshot: [2], icl_task_type: multiple_choice, continuation_delimiter: "\nAnswer: "}
- {label: who, dataset_uri: some/who.jsonl, num_fewshot: [0], icl_task_type: schema}
- {label: go_on, dataset_uri: some/go_on.jsonl, num_fewshot: [1], icl_task_type: language_modeling}
YAML
printf 'Eval Task,Task Category,Random baseline\npick,x,25\nwho,x,50.0\ngo_on,x,0\n' > "$WORK/bundle/eval_meta_data.csv"
python3 - "$WORK/bundle/eval_data/some" << 'PY'
import json, sys
def write(name, items): open(f"{sys.argv[1]}/{name}.jsonl", "w").writelines(json.dumps(item) + "\n" for item in items)
write("pick", [{"query": f"q{i}", "choices": [f"a{i}", f"b{i}", "c", "d"], "gold": i % 4} for i in range(5)])
write("who", [{"context_options": [f"he{i}", f"she{i}"], "continuation": "ran", "gold": i % 2} for i in range(4)])
write("go_on", [{"context": f"one two{i} ", "continuation": "three"} for i in range(3)])
PY
if python3 -c 'import yaml' 2> /dev/null; then
    python3 scripts/core_tasks.py "$WORK/bundle" "$WORK/core" > "$WORK/said"; ok $? "core_tasks.py"
    python3 - "$WORK" << 'PY'; ok $? "prompts, examples and order are nanochat's"
import json, random, sys
core = sys.argv[1] + "/core/"
def read(name): return [json.loads(line) for line in open(core + name + ".jsonl")]
def raw(name): return [json.loads(line) for line in open(f"{sys.argv[1]}/bundle/eval_data/some/{name}.jsonl")]
def shuffled(items): random.Random(1337).shuffle(items); return items
data = shuffled(raw("pick"))
head, *pick = read("pick")
assert head == {"task": "pick", "method": "core", "baseline": 0.25} and len(pick) == 5
for i, line in enumerate(pick):
    shots = [data[k] for k in random.Random(1234 + i).sample([k for k in range(5) if k != i], 2)]
    prompt = "".join(e["query"] + "\nAnswer: " + e["choices"][e["gold"]] + "\n\n" for e in shots) + data[i]["query"]
    assert line == {"context": prompt, "delimiter": "\nAnswer: ", "choices": data[i]["choices"], "gold": data[i]["gold"]}, line
data = shuffled(raw("who"))
assert read("who")[1:] == [{"contexts": d["context_options"], "delimiter": " ", "continuation": "ran", "gold": d["gold"]} for d in data]
data = shuffled(raw("go_on"))
for i, line in enumerate(read("go_on")[1:]):
    shot = data[random.Random(1234 + i).sample([k for k in range(3) if k != i], 1)[0]]
    assert line == {"context": shot["context"].strip() + " three\n\n" + data[i]["context"].strip(), "continuation": " three"}, line
PY
    python3 scripts/core_tasks.py "$WORK/bundle" "$WORK/few" 3 > /dev/null
    expect "N questions of each" [ "$(wc -l < "$WORK/few/pick.jsonl")" = 4 ]
    command=$(sed -n 's|^\./train_gpt eval RUN data= ||p' "$WORK/said")
    evaluated "$WORK/run" data= "$command" > "$WORK/core.json"; ok $? "eval with the words it prints"
    expect "CORE is the mean of what is above guessing" [ "$(get 'abs(r["core"] - ((r["tasks"][0]["acc_norm"] - 0.25) / 0.75 + (r["tasks"][1]["acc_norm"] - 0.5) / 0.5 + r["tasks"][2]["acc"]) / 3) < 1e-12' < "$WORK/core.json")" = True ]
    expect "no bundle" exits 65 'core.yaml: No such file' python3 scripts/core_tasks.py "$WORK/nowhere" "$WORK/core"
    sed -i 's/who,x,50.0/him,x,50/' "$WORK/bundle/eval_meta_data.csv"
    expect "a task without its baseline" exits 65 "who: no 'who' is known" python3 scripts/core_tasks.py "$WORK/bundle" "$WORK/core"
else
    echo "skip core_tasks.py: PyYAML is not installed"
fi

# bad LINE: scores a task file whose second line is LINE. The refusal must name the file and line 2.
bad() { printf '%s\n' '{"context":"a","choices":["b","c"],"gold":0}' "$1" > "$WORK/bad.jsonl"; "$TRAIN" eval "$WORK/run" data= tasks="$WORK/bad.jsonl"; }
expect "gold out of range" exits 65 'bad.jsonl:2: "gold" must be the number of the right entry of "choices", 0 to 1' bad '{"context":"a","choices":["b","c"],"gold":2}'
expect "no JSON" exits 65 'bad.jsonl:2: column 1' bad 'context: a'
expect "no UTF-8" exits 65 'bad.jsonl:2: .*UTF-8' bad "$(printf '{"context":"\377","choices":["b","c"],"gold":0}')"
expect "a continuation longer than the model" exits 65 'bad.jsonl:2: a continuation of 41 tokens is longer than the 40 positions' bad "{\"context\":\"a\",\"choices\":[\"b\",\"$(printf 'x%.0s' {1..41})\"],\"gold\":0}"
expect "the same in training" exits 65 'bad.jsonl:2: a continuation of 41' train run.dir="$WORK/none" eval.tasks="[\"$WORK/bad.jsonl\"]"
expect "and in check" exits 65 'bad.jsonl:2: a continuation of 41' "$TRAIN" check "$WORK/tiny.json" eval.tasks="[\"$WORK/bad.jsonl\"]"
: > "$WORK/empty.jsonl"
expect "no question" exits 65 'empty.jsonl holds no question' "$TRAIN" eval "$WORK/run" tasks="$WORK/empty.jsonl"
expect "no such file" exits 65 'gone.jsonl: the file of a task cannot be read' "$TRAIN" eval "$WORK/run" tasks="$WORK/gone.jsonl"
head -c 1100 "$WORK/hella.bin" > "$WORK/torn.bin"
expect "a torn llm.c file" exits 65 'torn.bin: question [0-9] of 20: ' "$TRAIN" eval "$WORK/run" tasks="$WORK/torn.bin"
cp -r "$WORK/data" "$WORK/bare"; rm "$WORK/bare/tokens.json" # removes tokens.json, which says that the tokens are bytes
expect "text for a model of ids" exits 64 'token ids only: a tokenizer has to turn the text into ids' train run.dir="$WORK/none" model.vocab_size=300 eval.tasks="[\"$WORK/made.jsonl\"]" \
    data.train="$WORK/bare/train_*.bin" data.val="$WORK/bare/val_*.bin"
expect "no data and no tasks" exits 64 'names no held-out data: give data=GLOB' "$TRAIN" eval "$WORK/run" data=
# With out=FILE, standard output goes to the file, completely or not at all. A file that already has content is not
# overwritten.
for form in true false; do
    "$TRAIN" eval "$WORK/run" tasks="$WORK/same.jsonl" json=$form > "$WORK/printed" 2> /dev/null
    expect "out=, json=$form: what is printed otherwise, and nothing printed" eval '[ -z "$("$TRAIN" eval "$WORK/run" tasks="$WORK/same.jsonl" json=$form out="$WORK/new.$form" 2> /dev/null)" ] && cmp "$WORK/printed" "$WORK/new.$form"'
done
run_ranks 2 "$TRAIN" eval "$WORK/run" tasks="$WORK/same.jsonl" json=true parallel.pipeline=2 out="$WORK/ranks.json" > "$WORK/printed" 2> /dev/null
expect "out= of two ranks: one line of JSON" [ "$(wc -l < "$WORK/ranks.json") $(get 'len(r["tasks"])' < "$WORK/ranks.json") $(wc -c < "$WORK/printed")" = "1 1 0" ]
cp "$WORK/new.true" "$WORK/before"
expect "out= of a file with content" exits 64 "out=$WORK/new.true exists, with [0-9]+ bytes, and is not overwritten: remove it, or name another" "$TRAIN" eval "$WORK/run" out="$WORK/new.true"
expect "which stays as it was" cmp "$WORK/new.true" "$WORK/before"
rm "$WORK/new.true"; expect "and its cures work: removed" eval 'quiet "$TRAIN" eval "$WORK/run" out="$WORK/new.true" && [ -s "$WORK/new.true" ]'
: > "$WORK/empty"; expect "an empty file is taken" eval 'quiet "$TRAIN" eval "$WORK/run" out="$WORK/empty" && [ -s "$WORK/empty" ]'
ln -s "$WORK/before" "$WORK/link"; mkfifo "$WORK/fifo"
for odd in "$WORK" /dev/null "$WORK/link" "$WORK/fifo"; do expect "out= that is no plain file, ${odd##*/}" exits 64 "out=$odd is a (directory|character device|symbolic link|FIFO), not a file: name a file, or print by giving no out=" "$TRAIN" eval "$WORK/run" out="$odd"; done
expect "out= in a folder that is missing" exits 64 "the folder $WORK/no/ is missing: make it" "$TRAIN" eval "$WORK/run" out="$WORK/no/x.json"
expect "no half file is left of an evaluation that fails" eval '! "$TRAIN" eval "$WORK/run" tasks="$WORK/nowhere.jsonl" out="$WORK/unborn" 2> /dev/null && [ ! -e "$WORK/unborn" ]'

expect "an unknown option" exits 64 'unknown option "task", did you mean "tasks"' "$TRAIN" eval "$WORK/run" task=x
expect "a batch of none" exits 64 'batch=0: a whole number from 1' "$TRAIN" eval "$WORK/run" batch=0
expect "no checkpoint" exits 65 'nowhere (does not exist|is neither a checkpoint)' "$TRAIN" eval "$WORK/nowhere"
expect "no run" exits 64 'needs a run folder or a checkpoint; usage: ./train_gpt eval ' "$TRAIN" eval
exit $STATUS
