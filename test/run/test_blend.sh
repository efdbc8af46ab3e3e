#!/usr/bin/env bash
# Blends: data.train lists several sources with weights. A run trains on the same samples on any number of ranks, after
# a resume and on islands (jobs that train one model through a server), and counts them by source.
. "$(dirname "$0")/lib/tiny.sh"
cd "$WORK" || exit 1

awk 'BEGIN { for (i = 0; i < 3000; i++) printf "%d and %d are %d\n", i % 17, i % 23, i % 17 + i % 23 }' > sums.txt
"$TRAIN" tokenize sums.txt out=sums val=0 > /dev/null || exit 1
head -c 1041 sums.txt > few.txt && "$TRAIN" tokenize few.txt out=few val=0 > /dev/null # 26 samples of 40 tokens
head -c 30 sums.txt > none.txt && "$TRAIN" tokenize none.txt out=none val=0 > /dev/null # too little for a sample
source_of() { echo "{\"path\": \"$1/train_*.bin\", \"weight\": $2${3:+, \"until_tokens\": $3}}"; }
blend="data.train=[$(source_of data 0.7), $(source_of few 0.3)]"
small() { train eval.every=0 "$@"; }
last_tokens() { sed -n '/"kind":"train"/s/.*"source_tokens":\(\[[0-9,]*\]\).*/\1/p' "$1/metrics.jsonl" | tail -n 1; }

small run.dir=plain run.steps=4 > plain.out 2>&1
small run.dir=one run.steps=4 "data.train=[$(source_of data 1)]" > one.out 2>&1
expect "one source of weight 1 trains as the plain list does" same_weights plain one step_00000004
! grep -q source_tokens plain/metrics.jsonl; ok $? "a plain list has no counts by source"

small run.dir=whole "$blend" > whole.out 2>&1; ok $? "a blend trains"
expect "its counts meet the weights" [ "$(last_tokens whole)" = "[4040,1720]" ] # 144 samples: 100.8 and 43.2
expect "the banner says what each source gives" [ "$(grep -cE '70.1 % from data/train_.*: 4,040 tokens|29.9 % from few/.*: 1,720 tokens, 1.65 epochs' whole.out)" -eq 2 ]
"$TRAIN" check tiny.json "$blend" > check.out 2>&1
expect "so does check" grep -qE '29.9 % from few/train_\*.bin: 1,720 tokens, 1.65 epochs' check.out
"$TRAIN" plan tiny.json "$blend" > plan.out 2>&1
expect "and plan" grep -qE '^data +1 file, 1,?041 tokens, 26 samples of 40: 1.65 epochs' plan.out
train_ranks 2 eval.every=0 run.dir=two "$blend" > two.out 2>&1; ok $? "two ranks train it"
expect "with the same losses" same_losses whole two 1e-5
expect "and the same counts" [ "$(last_tokens two)" = "[4040,1720]" ]
small run.dir=parts run.stop_step=6 "$blend" > parts.out 2>&1
small run.dir=parts "$blend" > parts.out 2>&1; ok $? "a stopped one goes on"
expect "to the same weights" same_weights whole parts step_00000012
expect "and counts" [ "$(last_tokens parts)" = "[4040,1720]" ]

small run.dir=staged run.stop_step=6 "$blend" > staged.out 2>&1
stages="data.train=[$(source_of data 0.7 2880), $(source_of few 0.3 2880), $(source_of sums 1)]"
expect "another blend on resume is refused, 64" exits 64 'data.train is 0.7 of source 0 until 2880, .*in the checkpoint 0.7 of source 0, 0.3 of source 1' \
    small run.dir=staged "$stages"
small run.dir=staged "$stages" 'run.allow_change=["data.train"]' > staged.out 2>&1; ok $? "a stage can be added where it is allowed"
expect "the first stage stands, the rest is the second's" [ "$(last_tokens staged)" = "[2000,880,2880]" ]

expect "weights that do not sum to 1 are refused, 64" exits 64 'weights sum to 0.8 and must sum to 1' \
    small run.dir=bad "data.train=[$(source_of data 0.7), $(source_of sums 0.1)]"
expect "an empty source, 65" exits 65 'the source "none/train_\*.bin" is too short for one sample' \
    small run.dir=bad "data.train=[$(source_of data 0.7), $(source_of none 0.3)]"
expect "a missing source, 65" exits 65 '"gone/train_\*.bin" names no file' small run.dir=bad "data.train=[$(source_of data 0.7), $(source_of gone 0.3)]"

# A single island (a job that trains through a server) gets the samples in their global order, so its token counts of
# the sources equal those of an ordinary run.
outer() { echo "outer.server=127.0.0.1:$PORT outer.every=4 eval.every=0"; }
"$TRAIN" serve tiny.json run.dir=served $(outer) "$blend" > served.out 2>&1 & server=$!
says served.out '^serving '
expect "an island with other weights is refused, 64" exits 64 'data.train is 0.5 of source 0, .*and the server has 0.7' \
    train run.dir=other $(outer) "data.train=[$(source_of data 0.5), $(source_of few 0.5)]"
train run.dir=island $(outer) "$blend" > island.out 2>&1; ok $? "an island trains the server's blend"
expect "the same samples of each source" [ "$(last_tokens island)" = "[4040,1720]" ]
kill $server 2> /dev/null; wait $server 2> /dev/null
exit $STATUS
