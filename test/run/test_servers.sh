# Several servers, each with a part of the model. The bits equal those of one server. If a server is lost, the run ends
# with 77 and can continue. Servers whose parts or configs do not fit together are refused.
. "$(dirname "$0")/lib/tiny.sh"
cd "$WORK" || exit 1
trap 'kill -9 $(jobs -p) 2> /dev/null; rm -rf "$WORK"' EXIT
sed -i 's/"n_head": 3/"n_head": 2/; s/"checkpoint": {"every": 6, "keep": 3}/"checkpoint": {"every": 4, "keep": 100}/; s/"eval": {"every": 6/"eval": {"every": 0/' tiny.json

list() { local k=0 names=; while [ $k -lt "$1" ]; do names+=${names:+,}127.0.0.1:$((PORT + k)); k=$((k + 1)); done; echo $names; }
all_end() { local code=$1 job; shift; for job; do ends "$job" "$code" || return 1; done; }

# serves SERVERS DIR WORDS...: starts that many servers in the background, ${server[@]}, and waits until the first
# prints that it serves.
serves() {
    local n=$1 dir=$2 k; shift 2
    servers=$(list "$n") server=()
    rm -f "$dir".[0-9]
    for k in $(seq 0 $((n - 1))); do
        "$TRAIN" serve tiny.json run.dir="$dir" outer.server="$servers" $([ "$n" -gt 1 ] && echo part=$k/$n) "$@" > "$dir.$k" 2>&1 & server+=($!)
    done
    says "$dir.0" "serving $dir on"
}
# begin RANKS DIR WORDS...: starts an island (training job) in the background; its process id is in $job.
begin() {
    local ranks=$1 dir=$2; shift 2
    if [ "$ranks" -eq 1 ]; then "$TRAIN" tiny.json run.dir="$dir" outer.server="$servers" "$@" > "$dir.out" 2>&1 & job=$!
    else run_ranks "$ranks" "$TRAIN" tiny.json run.dir="$dir" outer.server="$servers" "$@" > "$dir.out" 2>&1 & job=$!; fi
}
# trains SERVERS NAME WORDS...: runs two islands (training jobs), of 1 and 2 ranks, which join in this order. All
# processes must end with 0.
trains() {
    local n=$1 name=$2 one; shift 2
    serves "$n" "$name" outer.least_islands=2 "$@" || return 1
    begin 1 "$name-a" "$@"; one=$job
    says "$name.0" 'island 0 .* has joined' || return 1
    begin 2 "$name-b" "$@"
    all_end 0 $one $job "${server[@]}" || { tail -n 4 "$name".[0-9] "$name"-?.out; return 1; }
}
same() { same_weights "$1" "$2" step_00000004 && same_weights "$1" "$2" step_00000012; }

# --- the same bits ------------------------------------------------------------------------------------------------------
DELTAS="outer.every=4"
GRADIENTS="outer.every=1 outer.send=gradients"
expect "one server" trains 1 one $DELTAS
expect "two servers" trains 2 two $DELTAS
expect "three servers" trains 3 three $DELTAS
expect "two servers compute the bits of one" same one two
expect "three servers compute the bits of one" same one three
grep -q 'part 2 of 3: .* parameters' three.2; ok $? "a server says how much it holds"
expect "one server of gradients" trains 1 one-g $GRADIENTS
expect "three servers of gradients" trains 3 three-g $GRADIENTS
expect "gradients on several servers have the bits of one" same one-g three-g

expect "one server of bf16 changes" trains 1 one-c $DELTAS outer.compress=bf16
expect "three servers of bf16 changes" trains 3 three-c $DELTAS outer.compress=bf16
expect "changes on several servers have the bits of one" same one-c three-c
expect "and islands hold them" cmp three-c/checkpoints/step_00000012/model.safetensors three-c-b/checkpoints/step_00000012/model.safetensors

# alone SERVERS NAME WORDS...: runs one island (training job) with outer.wait=none. The deltas (changes of the weights)
# of a single island arrive in the same order each time, so the bits can be compared.
alone() {
    local n=$1 name=$2; shift 2
    serves "$n" "$name" outer.wait=none "$@" && begin 1 "$name-a" outer.wait=none "$@" && all_end 0 $job "${server[@]}"
}
expect "deltas at once, on one server and on three" eval 'alone 1 one-n $DELTAS && alone 3 three-n $DELTAS && same one-n three-n'
BF16="$GRADIENTS outer.compress=bf16"
expect "gradients at once, in bf16, on one server and on two" eval 'alone 1 one-gn $BF16 && alone 2 two-gn $BF16 && same one-gn two-gn'

# --- another server comes before the first, and before its key ----------------------------------------------------------
mkdir early; server=() servers=$(list 2)
(cd early && exec "$TRAIN" serve ../tiny.json outer.server="$servers" part=1/2 $DELTAS > ../early.1 2>&1) & server=$!
sleep 0.2
(cd early && exec "$TRAIN" serve ../tiny.json run.dir=run outer.server="$servers" part=0/2 $DELTAS > ../early.0 2>&1) & server+=($!)
says early.1 'serving on'; ok $? "it waits for both"
kill -TERM ${server[1]}
expect "and stops with the first" all_end 75 ${server[@]}

# --- a lost server ------------------------------------------------------------------------------------------------------
long="outer.every=4 run.steps=4000 outer.patience_seconds=20 checkpoint.every=40"
serves 2 lost $long; begin 1 lost-a $long; island=$job
says lost.0 'saved lost/checkpoints/step_' ; strike KILL ${server[1]}
ends ${server[0]} 77; ok $? "the first server ends with 77 when another is lost"
expect "and says which part" grep -q 'part 1 of the model is lost' lost.0
saved=$(ls lost/checkpoints | grep '^step_' | tail -n 1)
serves 2 lost $long run.steps=4000
expect "started again they go on" says lost.0 "serving lost on .* at step [1-9]"
says lost-a.out 'joins again'; says lost.0 'has joined'; says lost.0 '^round'; ok $? "the island has waited, and trains on"
kill -TERM ${server[0]}
expect "a stop of the first stops all" all_end 75 ${server[@]}
expect "its weights are saved" [ "$(ls lost/checkpoints | grep '^step_' | tail -n 1)" \> "$saved" ]
kill -9 $island 2> /dev/null; wait $island 2> /dev/null

serves 2 first $long; begin 1 first-a $long; says first.0 '^round'; strike KILL ${server[0]}
ends ${server[1]} 77; ok $? "the others end with 77 when the first is lost"
kill -9 $job 2> /dev/null; wait 2> /dev/null

# --- what does not fit --------------------------------------------------------------------------------------------------
two=$(list 2); few="outer.every=4 outer.patience_seconds=0.3"
expect "a list needs part=" exits 64 'outer.server names 2 servers: add part=0/2 to the command of the first, up to part=1/2' "$TRAIN" serve tiny.json outer.server=$two $few
expect "part= is k/n" exits 64 'part=2/2: k/n with k from 0' "$TRAIN" serve tiny.json outer.server=$two part=2/2 $few
expect "part= is of the list" exits 64 'part=1/3 is of 3 servers, and outer.server names 2' "$TRAIN" serve tiny.json outer.server=$two part=1/3 $few
expect "too many servers for a model" exits 64 'too many for a model of 55944 parameters' "$TRAIN" serve tiny.json run.dir=many outer.server=$(list 60) part=0/60 $few
sanitized "a part that memory cannot hold" "needs more address space than ulimit -v leaves" ||
    expect "a part that memory cannot hold" exits 71 "a server of a part of this model takes .* GiB of memory" bash -c "ulimit -v 8000000; exec $TRAIN serve tiny.json outer.server=$two part=1/2 $few model.n_embd=16128"
expect "a missing server is waited for" exits 77 'the server with part=1/2 has not connected' "$TRAIN" serve tiny.json run.dir=alone outer.server=$two part=0/2 $few
expect "a missing first server, too" exits 77 '127.0.0.1' "$TRAIN" serve tiny.json outer.server=$two part=1/2 $few
serves 2 fit outer.every=4; says fit.1 'serving on'
expect "a part that is there already" exits 64 'has part 1, which another has' "$TRAIN" serve tiny.json outer.server=$two part=1/2 listen=127.0.0.1:$((PORT + 7)) outer.every=4
expect "another model" exits 64 'has a model of' "$TRAIN" serve tiny.json outer.server=$two part=1/2 listen=127.0.0.1:$((PORT + 7)) outer.every=4 model.n_layer=1
expect "another config" exits 64 'outer.every is 2, and the server has 4' "$TRAIN" serve tiny.json outer.server=$two part=1/2 listen=127.0.0.1:$((PORT + 7)) outer.every=2
expect "a list in another order" exits 64 'in the order of their parts' "$TRAIN" tiny.json run.dir=wrong outer.every=4 outer.server=127.0.0.1:$((PORT + 1)),127.0.0.1:$PORT
expect "a list without a server" exits 64 'in the order of their parts' "$TRAIN" tiny.json run.dir=wrong outer.every=4 outer.server=127.0.0.1:$PORT
kill -TERM ${server[0]}
expect "all end when the first is asked to" all_end 75 ${server[@]}
exit $STATUS
