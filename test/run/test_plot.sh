#!/usr/bin/env bash
# The subcommand plot: several runs in one picture, all points in a table, and clear messages for faults.
. "$(dirname "$0")/lib/tiny.sh"
plot() { "$TRAIN" plot "$@"; }
has() { grep -qF -- "$2" "$1"; }

train run.dir="$WORK/one" > /dev/null
train run.dir="$WORK/two" run.steps=8 optimizer.learning_rate=2e-3 > /dev/null
cd "$WORK" || exit 1
expect "two runs" quiet plot one two csv=points.csv
expect "are named, with what differs" [ "$(grep -cE '>(one|two)</tspan> · steps=(12|8) · learning_rate=0.00[12]<' plot.svg)" -eq 2 ]
expect "the picture says how it is smoothed" has plot.svg "lines: mean over a twentieth of the run around each step"
train run.dir="$WORK/long" run.steps=90 eval.every=60 > /dev/null; plot long out=long.svg > /dev/null
expect "its last losses are those of loss.svg" eval 'losses=$(grep -oE ">[0-9.]{5,} · [0-9.]{5,}</text>" long.svg | grep -oE "[0-9.]{5,}") && [ "$(wc -w <<< "$losses")" -eq 2 ] && for loss in $losses; do grep -q ">$loss</text>" long/loss.svg || exit 1; done'
train run.dir="$WORK/cut" run.steps=90 run.stop_step=20 eval.every=60 > /dev/null
expect "a validation before the last step has its step" eval 'plot cut out=cut.svg > /dev/null && has cut.svg " (step 0)</text>"'
expect "and is made again with the same bytes" eval 'plot one two out=again.svg > /dev/null && cmp plot.svg again.svg'
expect "the table has every point" [ "$(wc -l < points.csv)" -eq $((1 + 12 + 3 + 8 + 3)) ]
expect "a step's loss is the log's" [ "$(sed -n 's/^"one",train,7,[0-9]*,[^,]*,\([^,]*\),.*/\1/p' points.csv)" = "$(values one train loss | sed -n 7p)" ]
expect "an evaluation has its tokens" grep -q '^"two",eval,6,2880,' points.csv
for x in tokens steps hours; do expect "over $x" eval "plot one two x=$x out=$x.svg > /dev/null && grep -q '>$x' $x.svg"; done
expect "the axes differ" [ "$(cat tokens.svg steps.svg hours.svg | grep -cE '>(5000|12|hours of training)</text>')" -ge 3 ]

mkdir old torn empty none
printf '{"kind":"train","step":1,"tokens":64,"loss":5.5,"lr":0.01,"grad_norm":0.6,"tokens_per_s":56,"mfu":1e-05,"ms":1127,"comm_ms":0,"comm_exposed_ms":0}\n' > old/metrics.jsonl
(cat one/metrics.jsonl; printf '{"kind":"train","step":13,"tok') > torn/metrics.jsonl
: > empty/metrics.jsonl
expect "a torn last line is not yet a step" quiet plot torn csv=torn.csv
expect "and the others are all there" [ "$(wc -l < torn.csv)" -eq $((1 + 12 + 3)) ]
expect "a log of an older program has no hours" exits 65 "old/metrics.jsonl has no hours at step 1, .*x=steps" plot one old x=hours
expect "and is drawn over tokens" quiet plot one old
expect "a folder without a log" exits 65 "none is not the folder of a run, because there is no none/metrics.jsonl" plot one none
expect "a log without a step" exits 65 "empty/metrics.jsonl holds no step" plot empty
expect "no run" exits 64 "it needs the folder of a run; usage: " plot
expect "another x" exits 64 "x=epochs: tokens, steps or hours is expected" plot one x=epochs
expect "another option" exits 64 "unknown option .smooth.: there are out=, x= and csv=" plot one smooth=3
expect "a picture that cannot be written" exits 74 "cannot write /dev/null/plot.svg: " plot one out=/dev/null/plot.svg
cp one/metrics.jsonl one/config.json .; cp metrics.jsonl kept
expect "out= at a run's metrics: refused, and nothing is written over" exits 64 "out=metrics.jsonl exists, with [0-9]+ bytes that this verb did not write, and is not overwritten" plot one out=metrics.jsonl
expect "csv= at a config" exits 64 "csv=config.json exists, with [0-9]+ bytes that this verb did not write, and is not overwritten" plot one csv=config.json
expect "which stay as they were" cmp metrics.jsonl kept
expect "one file for both" exits 64 "out=p.svg and csv=./p.svg are one file|out=both and csv=both are one file" plot one out=both csv=both
expect "by two paths" exits 64 "out=both and csv=.*/one/../both are one file" plot one out=both csv="$PWD/one/../both"
expect "the cure: another name" quiet plot one out=metrics.svg csv=config.csv
exit $STATUS
