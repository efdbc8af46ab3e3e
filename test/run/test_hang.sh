# A rank that hangs or dies ends the job soon and with a message. mpirun's exit code is that of the first cause. A job
# with a hang ends after the watchdog's limit, plus the time that mpirun needs to end the other ranks.
# Timed: a hang must end within its limit.
. "$(dirname "$0")/lib/struck.sh"
here=$(hostname)
said() { echo "train_gpt: rank [0-9] of $1 on $here: no progress .*limit $LIMIT s, run.watchdog_seconds\).*; collective $2 [0-9]+ "; }
every_collective 2 3

# Several jobs run at a time, because most of their time is waiting. Jobs that must end within 2 s, of which mpirun
# needs one, run alone.
SIGNAL=STOP struck "a stopped rank" "" 2 77 15 "$(said 2 "[a-z -]*")"$'\n'"rank [01] of 2 on $here \\(shard [01] of 2\\) is stopped" > "$WORK/a" &
struck "a rank that hangs in an all-reduce" "comm.all_reduce@8:hang,rank=1" 2 77 15 "$(said 2 "all-reduce of numbers")" > "$WORK/b" &
struck "one of four that hangs in a reduce-scatter" "comm.reduce_scatter@10:hang,rank=2" 4 77 15 "$(said 4 reduce-scatter)" > "$WORK/c" &
wait
struck "a gather of weights that never proceeds" "comm.all_gather@11:stall,rank=0" 2 77 15 "$(said 2 all-gather)" > "$WORK/d" &
struck "a rank that never comes to MPI_Init" "comm.init@1:hang,rank=1" 2 77 15 "rank [01] of 2 on $here: no progress .*MPI; no collective " > "$WORK/e" &
struck "a rank that never comes to the end" "comm.finalize@1:hang,rank=0" 2 77 15 "rank [01] of 2 on $here: no progress .* in the end; " run.steps=3 > "$WORK/f" &
struck "a write of a checkpoint that hangs" "io.pwrite@4:hang,rank=0" 2 77 15 "rank [01] of 2 on $here: no progress .* checkpoint " checkpoint.every=3 > "$WORK/j" &
wait
# Four ranks: two pipeline stages of two tensor ranks. The message must name the group of ranks in which the collective
# hangs.
GRID="model.n_head=2 model.n_embd=32 parallel.tensor=2 parallel.pipeline=2"
struck "a tensor rank that hangs in a gather of rows" "comm.all_gather@40:hang,rank=1" 4 77 15 "$(said 4 "(tensor all-gather|stage (send|receive))")" $GRID > "$WORK/m" &
struck "a stage that hangs before it sends" "comm.send@5:hang,rank=0" 4 77 15 "rank [0-3] of 4 on $here: no progress .*collective (stage (send|receive)|tensor all-gather) [0-9]+ " $GRID > "$WORK/n" &
wait
# gone RANK RANKS DETAIL: prints the pattern of the message that a rank was killed. The job must end with 137, mpirun's
# exit code for a killed rank.
gone() { echo "train_gpt: rank $1 of $2 on $here \\($3\\) is gone: the job ends"; }
struck "a stage killed before it receives" "comm.receive@6:kill-before,rank=2" 4 137 1.7 "$(gone 2 4 "tensor 0 of 2, stage 1 of 2")" $GRID > "$WORK/o"
struck "a rank killed between steps" "comm.reduce_scatter@9:kill-before,rank=1" 2 137 1.7 "$(gone 1 2 "shard 1 of 2")" > "$WORK/g"
struck "one of four killed after a gather began" "comm.all_gather@14:kill-after,rank=3" 4 137 1.7 "$(gone 3 4 "shard 3 of 4")" > "$WORK/h"
struck "a rank killed before MPI_Init" "comm.init@1:kill-before,rank=0" 2 137 1.7 "" > "$WORK/i"
SIGNAL=KILL struck "one of eight killed at any instant" "" 8 137 1.7 "$(gone "[0-7]" 8 "shard [0-7] of 8")" > "$WORK/k"
cat "$WORK"/[a-o]; grep -q '^not ok' "$WORK"/[a-o] && STATUS=1

# failure COLLECTIVE: prints the pattern of the message about an MPI error. An error in any collective of a step ends
# the job at once.
failure() { echo "train_gpt: rank 0 on host $here \\($1 [0-9]+\\) noticed .*: Input/output error"; }
declare -A called=([comm.reduce_scatter]=reduce-scatter [comm.all_gather]=all-gather [comm.all_reduce]="all-reduce of numbers")
expect "a step has 4 reduce-scatters, 4 all-gathers and a reduction of numbers" [ "$(sed 's/@.*//' <<< "$POINTS" | sort -u | tr '\n' ' ') $(grep -c scatter <<< "$POINTS") $(grep -c gather <<< "$POINTS")" = "comm.all_gather comm.all_reduce comm.reduce_scatter  4 4" ]
for point in $POINTS; do
    struck "an error in $point" "$point:fail,rank=0" 2 77 2 "$(failure "${called[${point%@*}]}")" > "$WORK/error.$point" &
    [ "$(jobs -rp | wc -l)" -lt 3 ] || wait -n
done
wait
cat "$WORK"/error.*; grep -q '^not ok' "$WORK"/error.* && STATUS=1
# The launcher ends without ending its ranks, as Open MPI 5 does when it loses a host. One of the ranks hangs. The ranks
# must end by themselves.
TRAIN_GPT_FAIL="memory.copy@2:hang" begins run_ranks 2 "$FAILING" "$WORK/tiny.json" run.dir="$WORK/left" run.steps=1000000 checkpoint.every=0 eval.every=0 checkpoint.memory_every=5
await '^step +8/'; launcher=$(ps -o ppid= -p "$(pgrep -f "^$FAILING $WORK/tiny.json run.dir=$WORK/left" | head -n 1)")
kill -9 $launcher; for _ in $(seq 50); do pgrep -f "^$FAILING $WORK/tiny.json run.dir=$WORK/left" > /dev/null || break; sleep 0.1; done
expect "ranks whose launcher was killed end within 5 s" [ -n "$launcher" -a -z "$(pgrep -f "^$FAILING $WORK/tiny.json run.dir=$WORK/left")" ]
expect "nobody is left" [ -z "$(pgrep -f "$WORK/tiny.json")" ]
exit $STATUS
