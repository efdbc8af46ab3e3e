# Requests to stop. Signals, files and time limits end a run with a checkpoint and exit code 75, at any instant and on
# any number of ranks.
# Timed: signals are aimed at instants of a run.
. "$(dirname "$0")/lib/tiny.sh"

forever="run.steps=1000000 schedule.name=constant log.every=1000 eval.every=0 checkpoint.every=0"
# stops NAME CODE: checks that the job in the background ends with that code.
stops() { wait $job; local status=$?; expect "$1: exit $2" [ $status -eq "$2" ]; [ $status -eq "$2" ] || { echo "exit $status"; tail -n 5 "$WORK/out"; }; }
ends_saved() { [ "$(ls "$1/checkpoints" | tail -n 1)" = "$(printf 'step_%08d' "$(values "$1" train step | tail -n 1)")" ]; }

# Stops a run in the middle of a long evaluation. Only rank 1 gets the request. The held-out tokens are the training
# file, nine times.
for i in $(seq 9); do cp "$WORK/data/train_000000.bin" "$WORK/data/long_$i.bin"; done
quiet train run.dir="$WORK/whole"
begins train_ranks 2 run.dir="$WORK/eval" data.val="$WORK/data/long_*.bin" eval.tokens=0
await '^start '; kill -USR1 "$(pgrep -f "^$TRAIN $WORK/tiny.json" | tail -n 1)"
stops "USR1 in a long evaluation" 75
expect "it is cut short, and not logged" [ "$(grep -c 'evaluation .*step 0 stops' "$WORK/out")" -eq 1 -a "$(grep -c '"kind":"eval"' "$WORK/eval/metrics.jsonl")" -eq 0 ]
expect "a checkpoint is there even before the first step" [ "$(ls "$WORK/eval/checkpoints")" = step_00000000 ]
train run.dir="$WORK/eval" > "$WORK/out"
expect "whoever goes on evaluates first" [ "$(steps_of "$WORK/eval" eval)" = "0 6 12 " ]
expect "and has the log of a run that was not stopped" same_evals "$WORK/eval" "$WORK/whole" 0
expect "and its weights" same_weights "$WORK/eval" "$WORK/whole" step_00000012

# Stops a run of one step during the evaluation after that step. The next start must do only this evaluation.
begins tiny run.dir="$WORK/last" data.val="$WORK/data/long_[1-4].bin" eval.tokens=0 run.steps=1 eval.every=1000
await '^step 1/1'; kill -USR1 "$(pgrep -f "^$TRAIN $WORK/tiny.json")"
stops "USR1 in the last evaluation" 75
train run.dir="$WORK/last" run.steps=1 eval.every=1000 > "$WORK/out"
expect "which is then all that is left to do" [ $? -eq 0 -a "$(steps_of "$WORK/last" eval)" = "0 1 " ]
expect "once" [ "$(train run.dir="$WORK/last" run.steps=1 eval.every=1000 | grep -c 'nothing to do')" -eq 1 ]

begins tiny run.dir="$WORK/stop" $forever sample.every=1 sample.tokens=1000000
await_step "$WORK/stop"; kill -TERM $job
stops "TERM in a long sample" 75
expect "the sample is left out" grep -q "sample .*step 1 is left out" "$WORK/out"
expect "a checkpoint of the last step" ends_saved "$WORK/stop"

begins tiny run.dir="$WORK/stop" $forever
await '^resume '; strike STOP $job; kill -INT $job; kill -TERM $job; kill -CONT $job; wait $job; status=$?
expect "INT, then TERM: ended at once, by the signal" [ $status -eq 143 -o $status -eq 130 ]

begins tiny run.dir="$WORK/closed" $forever
await_step "$WORK/closed"; kill -HUP $job
stops "HUP, of a terminal that is closed" 75
under_nohup() { trap '' HUP; tiny "$@"; }
begins under_nohup run.dir="$WORK/closed" $forever
await '^resume '; kill -HUP $job; sleep 1
expect "HUP under nohup is passed over" kill -0 $job
kill -USR1 $job; stops "USR1 is not" 75

# A preloaded library catches signals: before main, when MPI starts, or later by its own sigaction(). The program must
# still get them.
if ! sanitized "libraries that take signals" "comes before preloaded libraries"; then
expect "the preloaded library" gcc -O1 -shared -fPIC -o "$WORK/signals.so" test/preload/signals.c
with_library() { LD_PRELOAD=$WORK/signals.so exec "$TRAIN" "$WORK/tiny.json" "$@"; }
expect "which takes SIGHUP" eval '(trap "" HUP; LD_PRELOAD=$WORK/signals.so sh -c "kill -HUP \$\$") 2>&1 | grep -q "the library has the signal"'
begins with_library run.dir="$WORK/library" $forever
await '^step '; kill -HUP $job
stops "HUP, which a library had taken" 75
for limit in unlimited 4096; do # with a stack limit of 4096 KiB the program executes itself again
    library_under_nohup() { trap '' HUP; ulimit -S -s $limit; with_library "$@"; }
    begins library_under_nohup run.dir="$WORK/library" $forever
    await '^resume '; kill -HUP $job; sleep 0.5
    expect "nohup holds, whatever a library took, stack $limit" kill -0 $job
    kill -USR1 $job; stops "USR1 is the program's" 75
done
for fault in SEGV:139 ABRT:134; do
    begins with_library run.dir="$WORK/library" $forever
    await '^resume '; kill -"${fault%:*}" $job
    stops "a fault ends the program by its signal, ${fault%:*}" "${fault#*:}"
done
begins run_ranks 2 env LD_PRELOAD="$WORK/signals.so" "$TRAIN" "$WORK/tiny.json" run.dir="$WORK/late" $forever
await '^step '; kill -USR1 "$(pgrep -f "^$TRAIN $WORK/tiny.json" | tail -n 1)"
stops "USR1, which a library took when MPI started" 75
fi

mkdir "$WORK/elsewhere"; ln -s "$WORK/elsewhere/file" "$WORK/stop/STOP"; rm "$WORK/stop/metrics.jsonl"
begins tiny run.dir="$WORK/stop" $forever
stops "a file STOP, be it a link to nothing" 75
expect "the link is gone, its target untouched" [ ! -L "$WORK/stop/STOP" -a -z "$(ls "$WORK/elsewhere")" ]
expect "a start takes one step at least" [ "$(values "$WORK/stop" train step)" = 2 ]

begins tiny run.dir="$WORK/stop" $forever
await '^step '; touch "$WORK/stop/SAVE"; await '^saved '
kill -USR2 $job; says "$WORK/out" '^saved ' 2
expect "SAVE and USR2 save and go on" [ "$(grep -c '^saved ' "$WORK/out")" -eq 2 -a ! -e "$WORK/stop/SAVE" ]
touch "$WORK/stop/STOP"
stops "STOP while training" 75
expect "the file is gone" [ ! -e "$WORK/stop/STOP" ]

begins train_ranks 2 run.dir="$WORK/one-of-two" $forever
await '^step '; both=$(pgrep -f "^$TRAIN $WORK/tiny.json"); strike STOP $both; kill -CONT $both; sleep 0.5
expect "ranks that were stopped and continued go on" [ "$(pgrep -cf "^$TRAIN $WORK/tiny.json")" -eq 2 ]
kill -USR1 "$(tail -n 1 <<< "$both")"
stops "USR1 to one rank of two, while training" 75
expect "a checkpoint of the step that both have taken" ends_saved "$WORK/one-of-two"

# Reading of data hangs on the last rank in the middle of a step of 12 micro-batches, and USR1 asks the job to stop.
# Steps whose batches have all been read are still trained. Then the job saves and stops.
for ranks in 1 2; do
    TRAIN=$FAILING TRAIN_GPT_FAIL="data.batch@$((80 / ranks)):hang,rank=$((ranks - 1))" TRAIN_GPT_FAIL_LOG=$WORK/hung$ranks begins train_ranks $ranks run.dir="$WORK/data$ranks" eval.every=0
    await '^step +6/12'; kill -USR1 "$(pgrep -f "^$FAILING $WORK/tiny.json" | head -n 1)"
    stops "$ranks ranks, USR1 while data hang" 75
    expect "$ranks ranks: they did hang" [ -s "$WORK/hung$ranks" ]
    expect "$ranks ranks: a checkpoint of the last step" ends_saved "$WORK/data$ranks"
done
expect "where data come again" quiet train run.dir="$WORK/data1"
expect "they go on with the same bits" same_weights "$WORK/data1" "$WORK/whole" step_00000012

mkdir "$WORK/one"; touch "$WORK/one/STOP"
expect "asked in the very last step: exit 0" quiet train run.dir="$WORK/one" run.steps=1 eval.every=0
expect "and nothing is asked of the next run" [ ! -e "$WORK/one/STOP" ]

begins tiny run.dir="$WORK/minutes" $forever run.max_minutes=0.05
stops "run.max_minutes" 75
expect "the banner has the limit" grep -qE "^limit +run.max_minutes in [0-3]s: .* 0s before" "$WORK/out"
begins tiny run.dir="$WORK/minutes" $forever eval.every=1000 run.max_minutes=1e-9
stops "no time at all" 75
expect "no time at all: a step is taken" ends_saved "$WORK/minutes"
end=$(($(date +%s) + 15))
SLURM_JOB_END_TIME=$end begins tiny run.dir="$WORK/slurm" $forever
stops "SLURM_JOB_END_TIME" 75
expect "SLURM's end, ten seconds before" [ "$(date +%s)" -lt $((end - 3)) ]
expect "the banner has it" grep -qE "^limit +SLURM_JOB_END_TIME in [0-9]*s: .* 10s before" "$WORK/out"
for end in 1000 soon; do
    SLURM_JOB_END_TIME=$end train run.dir="$WORK/end$end" run.steps=1 eval.every=0 > "$WORK/out" 2>&1; status=$?
    expect "SLURM_JOB_END_TIME=$end is ignored, with a warning" [ $status -eq 0 -a "$(grep -c "SLURM_JOB_END_TIME=$end" "$WORK/out")" -eq 1 ]
done

# mpirun passes TERM on after a second and kills the ranks after another. It ends with 1, however the ranks end. Only
# the newest checkpoint can show what was saved.
quiet train_ranks 2 run.dir="$WORK/two" run.steps=60 eval.every=0
under_mpirun() { exec mpirun --oversubscribe --bind-to none -np 2 "$TRAIN" "$WORK/tiny.json" "$@"; }
begins under_mpirun run.dir="$WORK/term" run.steps=60 eval.every=0 sample.every=30 sample.tokens=1000000 checkpoint.every=10
await 'saved .*step_00000030|^step 30/'; kill -TERM $job; wait $job; status=$?
expect "TERM to mpirun: not 0" [ $status -ne 0 ]
for _ in $(seq 50); do pgrep -f "^$TRAIN $WORK/tiny.json" > /dev/null || break; sleep 0.1; done
expect "nobody is left" [ -z "$(pgrep -f "^$TRAIN $WORK/tiny.json")" ]
expect "the newest checkpoint goes on" quiet train_ranks 2 run.dir="$WORK/term" run.steps=60 eval.every=0
expect "to the same bits" same_weights "$WORK/term" "$WORK/two" step_00000060
# At Ctrl-C mpirun sends CONT to the ranks at once, and KILL two seconds later. A run with fast steps has saved by then.
# The first lines of the output say how to stop a run with slower steps.
interrupts() { exec timeout -s INT -k 30 300 mpirun --oversubscribe --bind-to none -np 2 "$TRAIN" "$WORK/tiny.json" "$@"; }
begins interrupts run.dir="$WORK/interrupted" $forever
await '^step '; kill -INT "$(pgrep -P $job)"; wait $job
expect "Ctrl-C under mpirun: saved" eval 'grep -q "stopped at step .* saved" "$WORK/interrupted/log.txt" && ends_saved "$WORK/interrupted"'
expect "the banner of several ranks says how to stop" grep -q "^stop  *touch $WORK/interrupted/STOP (mpirun kills" "$WORK/out"
expect "that of one rank does not" eval '! train run.dir="$WORK/alone" run.steps=1 eval.every=0 | grep -q "^stop "'
# slow_saves: runs elastic.sh with saves that take several seconds. elastic.sh passes Ctrl-C on as USR1, which lets the
# save finish.
slow_saves() {
    export TRAIN_GPT=$FAILING TRAIN_GPT_FAIL=io@1+:slow OPTIONS="--oversubscribe -x TRAIN_GPT_FAIL"
    exec env --default-signal=INT scripts/elastic.sh "$WORK/tiny.json" np=2 "$@"
}
begins slow_saves run.dir="$WORK/slow" $forever
await '^step '; kill -INT $job
stops "Ctrl-C under elastic.sh, slow saves" 75
expect "the save took more than mpirun's two seconds" [ "$(values "$WORK/slow" event ms | tail -n 1 | cut -d. -f1)" -gt 3000 ]
expect "and is whole" ends_saved "$WORK/slow"
test/run/lib/signals.sh 12 1 || STATUS=1
test/run/lib/signals.sh 6 2 || STATUS=1
exit $STATUS
