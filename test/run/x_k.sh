. test/run/struck.sh
n=$1
run_ranks $n "$FAILABLE" "$WORK/tiny.json" run.dir="$WORK/r" run.steps=1000000 $CALM > $WORK/o 2>&1 &
job=$!
while [ ! -s "$WORK/r/metrics.jsonl" ]; do sleep 0.05; done
sleep 0.5
t0=$EPOCHREALTIME
kill -KILL "$(pgrep -f "^$FAILABLE $WORK/tiny.json run.dir=$WORK/r" | shuf -n 1)"
last=
while kill -0 $job 2>/dev/null; do c=$(pgrep -fc "^$FAILABLE $WORK/tiny.json run.dir=$WORK/r"); [ "$c" = "$last" ] || { awk -v a=$t0 -v b=$EPOCHREALTIME -v c=$c 'BEGIN{printf "%.2f: %d ranks\n", b-a, c}'; last=$c; }; sleep 0.02; done
awk -v a=$t0 -v b=$EPOCHREALTIME 'BEGIN{printf "%.2f: mpirun gone\n", b-a}'
