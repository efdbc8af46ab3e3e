#!/usr/bin/env bash
# Memory that runs out. In a start, a resume and subcommands, one allocation of the program, the C library or libcjson
# fails in each try. Other cases: limits of the system, and a failure on one of two ranks.
#   test/run/test_memory.sh [EVERY]     every EVERY-th of the places that allocate, 12 if not given; `make soak` tries all
every=${1:-12}
. "$(dirname "${BASH_SOURCE[0]}")/lib/tiny.sh"
sanitized memory "has its own malloc" && exit 0
PRELOAD=$WORK/memory.so
gcc -O1 -shared -fPIC -o "$PRELOAD" test/preload/memory.c || { echo "not ok the preloaded library"; exit 1; }
tried=0 missed=0
args="run.steps=4 checkpoint.every=2 eval.every=2"

# allocations COMMAND...: runs the command and prints the place in the program of each allocation, one a line. The
# output is in whole.out and whole.err, the exit code in whole.
allocations() {
    rm -f "$WORK/places"
    LD_PRELOAD=$PRELOAD TRAIN_GPT_MALLOC_LOG=$WORK/places "$@" > "$WORK/whole.out" 2> "$WORK/whole.err"
    echo $? > "$WORK/whole"
    cat "$WORK/places"
}
places() { sort -u <<< "$1" | wc -l; }
# drawn PLACES: PLACES lists the place in the program of each allocation. Takes every EVERY-th place, picks one of its
# allocations at random, and prints the number of that allocation.
drawn() {
    awk -v every="$every" -v seed="$RANDOM" 'BEGIN { srand(seed); skip = int(rand() * every) } { if (!n[$1]++) place[++places] = $1; if (rand() * n[$1] < 1) at[$1] = NR }
        END { for (i = 1 + skip; i <= places; i += every) print at[place[i]] }' <<< "$1"
}
# without N COMMAND...: runs the command while its Nth allocation fails. It must end with 71 and a message about memory;
# 74 is allowed if only the last checkpoint is lost. It may also do without that memory and end like the command without
# the failure; then GOT_THROUGH=1.
without() {
    local n=$1; shift
    rm -f "$WORK/struck"
    LD_PRELOAD=$PRELOAD TRAIN_GPT_MALLOC_FAIL=$n TRAIN_GPT_MALLOC_STRUCK=$WORK/struck "$@" > "$WORK/out" 2> "$WORK/err"
    local status=$?
    GOT_THROUGH=0 tried=$((tried + 1))
    # with threads a run may allocate less often than the run in which calls were counted
    [ -e "$WORK/struck" ] || missed=$((missed + 1))
    if [ "$status" -eq "$(cat "$WORK/whole")" ]; then GOT_THROUGH=1; return; fi
    { [ "$status" = 71 ] || [ "$status" = 74 ]; } && grep -qE "^train_gpt: .*memory" "$WORK/err" && return
    echo "not ok exit $status without allocation $n of $*: $(head -3 "$WORK/err")"; return 1
}

train $args run.dir="$WORK/whole.run" > /dev/null
starts=$(allocations train $args) bad=0
for n in $(drawn "$starts"); do
    rm -rf "$WORK/run"
    without "$n" "$TRAIN" "$WORK/tiny.json" $args && { [ $GOT_THROUGH = 0 ] || same_weights "$WORK/run" "$WORK/whole.run" step_00000004; } || bad=$((bad + 1))
done
expect "of the $(places "$starts") places that allocate in a start every ${every}th fails" [ "$bad" -eq 0 -a "$(places "$starts")" -gt 100 ]

cp -r "$WORK/whole.run" "$WORK/half"; rm -r "$WORK/half/checkpoints/step_00000004"
rm -rf "$WORK/run"; cp -r "$WORK/half" "$WORK/run"
resumes=$(allocations train $args) bad=0
for n in $(drawn "$resumes"); do
    rm -rf "$WORK/run"; cp -r "$WORK/half" "$WORK/run"
    without "$n" "$TRAIN" "$WORK/tiny.json" $args && quiet train $args 2> /dev/null && same_weights "$WORK/run" "$WORK/whole.run" step_00000004 || { echo "not ok allocation $n of a resume"; bad=$((bad + 1)); }
done
expect "of the $(places "$resumes") places that allocate in a resume every ${every}th fails, and the next start goes on to the same weights" [ "$bad" -eq 0 -a "$(places "$resumes")" -gt 100 ]

timeless() { grep -v ' tokens/s$' "$1"; } # timeless FILE: prints the lines without those that contain a speed
# verb NAME WORD ARGS...: tests a subcommand while one of its allocations fails. If it ends as it does without the
# failure, it must also print the same (except plan, which measures).
verb() {
    local name=$1 asks bad=0; shift
    asks=$(allocations "$TRAIN" "$@")
    for n in $(drawn "$asks"); do
        without "$n" "$TRAIN" "$@" && { [ $GOT_THROUGH = 0 ] || [ "$1" = plan ] || { cmp "$WORK/out" "$WORK/whole.out" && diff <(timeless "$WORK/err") <(timeless "$WORK/whole.err"); } ||
            { echo "not ok $name without allocation $n prints something else"; false; }; } || bad=$((bad + 1))
    done
    expect "of the $(places "$asks") places that allocate in $name every ${every}th fails" [ "$bad" -eq 0 -a "$(places "$asks")" -gt 5 ]
}
# Writes a config with one fault of each kind: in the text, in keys and values, between keys. Messages about faults need
# memory.
echo '{"run": {"steps": 1e400, "stepps": 3}, "data": {"train": ["a", 5]}, "model": {"preset": "gpt2-124m"}, "batch": {"global_tokens": 5, "micro_batch": 1}}' > "$WORK/bad.json"
verb check check "$WORK/tiny.json" 'data.val=["'"$WORK"'/data/val_*.bin"]' run.dir=elsewhere optimizer.learning_rate=0.30000000000000004
verb "check of a bad config" check "$WORK/bad.json" optimizer.lr=3 eval=no
verb plan plan "$WORK/tiny.json"
verb schema schema
verb sample sample "$WORK/whole.run" tokens=2 prompt=a
# makes an earlier result: each call below replaces the files of the call before, and prints that
"$TRAIN" tokenize "$WORK/text.txt" out="$WORK/again" > /dev/null
verb tokenize tokenize "$WORK/text.txt" out="$WORK/again"

expect "of $tried allocations that were to fail, at most one in twenty was not asked for: $missed" [ $tried -gt 20 -a $((20 * missed)) -le $tried ]

bad=0
for n in $(seq $((RANDOM % 20 + 1)) $(($(wc -l <<< "$starts") / 8)) "$(wc -l <<< "$starts")"); do
    rm -f "$WORK/struck"
    run_ranks 2 bash -c '[ "$OMPI_COMM_WORLD_RANK" != 1 ] || export LD_PRELOAD='"$PRELOAD"' TRAIN_GPT_MALLOC_FAIL='"$n"' TRAIN_GPT_MALLOC_STRUCK='"$WORK/struck"'; exec "$@"' _ "$TRAIN" "$WORK/tiny.json" $args run.dir="$WORK/two.$n" \
        > "$WORK/out" 2> "$WORK/err"
    case $? in 0) [ -e "$WORK/struck" ] || echo "# allocation $n was not asked for" ;; 71 | 74) grep -q "memory" "$WORK/err" ;; *) false ;; esac || { echo "not ok 2 ranks, rank 1 without allocation $n: $(grep train_gpt: "$WORK/err" | head -2)"; bad=$((bad + 1)); }
done
expect "one rank without memory ends both" [ "$bad" -eq 0 ]

expect "a limit of the system ends it with 71" \
    bash -c ". test/run/lib/tiny.sh; ulimit -v 700000; exits 71 'train_gpt: no memory for' train model.n_embd=1536 model.n_head=12 model.n_layer=12 run.dir=$WORK/limit"
expect "before the first step" [ ! -s "$WORK/limit/metrics.jsonl" ]
exit $STATUS
