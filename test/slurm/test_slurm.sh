#!/usr/bin/env bash
# make test-slurm: tests scripts/train.sbatch under a real SLURM (cluster.sh): time limit, signal, checkpoint, requeue,
# resume, arrays, a crash loop, mpirun and srun, processes killed and jobs cancelled. Needs root and Debian 12's
# packages, which it installs. Some five minutes.
set -u
cd "$(dirname "$0")/../.." || exit 1
[ "$(id -u)" = 0 ] || { echo "skip all of it: a slurmctld and slurmd of one's own need root"; exit 0; }
scripts/deps.sh slurm || exit 1
. test/run/lib/tiny.sh
. test/slurm/cluster.sh
trap 'cluster_stop; rm -rf "$WORK"' EXIT
trap 'exit 130' INT TERM HUP
script=$PWD/scripts/train.sbatch
export TRAIN_GPT=$TRAIN BACKOFF=0
cd "$WORK" || exit 1
cluster_start || { echo "not ok slurmctld and slurmd start"; cat "$cluster"/*.log; exit 1; }
echo "ok slurmctld and slurmd start ($(slurmctld -V))"

# --- words ---------------------------------------------------------------------------------------------------------------------------------

# submit [sbatch's OPTION...] -- WORD...: submits scripts/train.sbatch with $config (tiny.json if not set). Prints the
# job's id.
submit() {
    local options=()
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    sbatch --parsable --ntasks=2 --output=%j.log "${options[@]}" "$script" "${config:-tiny.json}" "${@:2}"
}
# field JOB NAME: prints this field of the job
field() { scontrol show job -o "$1" 2>/dev/null | grep -oE "\b$2=[^ ]*" | head -1 | cut -d= -f2; }
state() { field "$1" JobState; }
# until_true SECONDS COMMAND...: waits until the command succeeds.
until_true() {
    local end=$((SECONDS + $1)); shift
    while ! "$@"; do [ $SECONDS -lt $end ] || return 1; sleep 0.3; done
}
# over JOB: succeeds if the job has ended. Otherwise, if the job waits because it was requeued, shortens SLURM's wait of
# two minutes to two seconds. If the job began still earlier, SLURM would take its new credential for the old one.
over() {
    case $(state "$1") in
    COMPLETED | FAILED | CANCELLED | TIMEOUT | NODE_FAIL) ;;
    PENDING) [ "$(field "$1" Reason)" != BeginTime ] || { sleep 2; scontrol update JobId="$1" StartTime=now; }; false ;;
    *) false ;;
    esac
}
# ends JOB STATE EXITCODE: waits until the job ends, and checks its state and exit code. The limit of 1200 s is only
# reached by a job that hangs, even on a busy machine.
ends() {
    until_true 1200 over "$1"
    [ "$(state "$1") $(field "$1" ExitCode)" = "$2 $3:0" ] && return
    echo "job $1: $(state "$1"), exit code $(field "$1" ExitCode)"; tail -n 40 "$1.log"; return 1
}
starts_again() { over "$1"; [ "$(starts "$1")" -ge 2 ]; }
starts() { grep -c '^train.sbatch: job .* start [0-9]' "$1.log"; }
logged() { grep -qE -- "$2" "$1.log" 2>/dev/null; }
stepped() { [ -s "$1/metrics.jsonl" ]; }
# whole RUN N: checks that the metrics have steps 1 to N, each once, in order.
whole() { values "$1" train step | cmp - <(seq "$2"); }
final() { printf 'step_%08d' "$1"; }
same_final() { same_weights "$1" "$2" "$(final "$3")"; }
long="eval.every=0 log.every=1000 checkpoint.every=500"

# --- a time limit: the whole way round ------------------------------------------------------------------------------------------------------

# Starts a job that would last for days. SLURM sends the signal 20 to 50 s before the end of the job's time limit of one
# minute. After the job is requeued, its config is changed to end 500 steps later. The learning rate does not depend on
# the number of steps, so the steps equal those of an unbroken run.
sed 's/"steps": 12/"steps": 1000000/' tiny.json >limited.json
job=$(config=limited.json submit --time=1 --signal=B:USR1@20 -- run.dir=limited $long schedule.name=constant)
# Starts a job whose program does not stop in time, because it ignores the signal.
printf '%s\n' '#!/bin/bash' '[ "$1" != check ] || { echo "run folder  deaf"; exit; }' "trap '' USR1" 'while :; do sleep 0.2; done' >deaf.sh
chmod +x deaf.sh
deaf=$(TRAIN_GPT=$PWD/deaf.sh LAUNCH=none submit --time=1 --signal=B:USR1@20 --)
# Starts a job that gets no signal to stop from SLURM (CONT has no effect). The program stops in time because it knows
# the job's end time (SLURM_JOB_END_TIME).
clock=$(submit --time=1 --signal=B:CONT@1 -- run.dir=clock $long run.steps=1000000)

stopped='exit code 75; .*requeued .*step [1-9][0-9]*'
until_true 120 logged "$job" "$stopped"
steps=$(($(grep -oE "$stopped" "$job.log" | head -1 | grep -oE '[0-9]+$') + 500))
sed -i "s/1000000/$steps/" limited.json
run_ranks 2 "$TRAIN" tiny.json run.dir=unbroken $long schedule.name=constant run.steps="$steps" >/dev/null
until_true 120 logged "$clock" "$stopped"
scancel "$clock"
expect "a job that gets no signal saves before its limit all the same" logged "$clock" "$stopped"
expect "within it" bash -c '! grep -qE "TIME LIMIT|USR1" "$0"' "$clock.log"
expect "a run longer than its time limit gets done" ends "$job" COMPLETED 0
echo "# in $(starts "$job") parts: $(grep -oE 'requeued .*step [0-9]+' "$job.log" | grep -oE '[0-9]+$' | tr '\n' ' ')of $steps steps; SLURM counts $(field "$job" Restarts) restarts"
expect "USR1 came before the limit" logged "$job" 'train.sbatch: USR1'
expect "it saved, left with 75 and was requeued" logged "$job" "$stopped"
expect "no part came to its limit" bash -c '! grep -q "TIME LIMIT" "$0"' "$job.log"
expect "and resumed each time" [ "$(starts "$job") $(grep -c '^resume ' "$job.log")" = "$(($(field "$job" Restarts) + 1)) $(field "$job" Restarts)" ]
expect "every step was logged, once" whole limited "$steps"
expect "same losses" same_losses limited unbroken 0
expect "the same bits as the unbroken run" same_final limited unbroken "$steps"
sha256sum limited/checkpoints/"$(final "$steps")"/model.safetensors unbroken/checkpoints/"$(final "$steps")"/model.safetensors | sed 's/^/# /'

expect "a time limit that comes before the ranks have saved: requeued too" until_true 120 starts_again "$deaf"
expect "with a message" logged "$deaf" 'time limit .*USR1.*requeued'
scancel "$deaf"

# --- srun ------------------------------------------------------------------------------------------------------------------------------------

steps=1500
run_ranks 2 "$TRAIN" tiny.json run.dir=short $long run.steps=$steps >/dev/null
if srun --mpi=list 2>&1 | grep -q pmix; then
    job=$(LAUNCH=srun submit -- run.dir=srun $long run.steps=$steps)
    until_true 120 stepped srun; scancel --batch --signal=USR1 "$job"
    expect "srun --mpi=pmix: signal, checkpoint, requeue, resume, done" ends "$job" COMPLETED 0
    expect "in two parts" [ "$(starts "$job")" -eq 2 ]
    expect "every step was logged, once" whole srun $steps
    expect "the same bits as under mpirun" same_final srun short $steps
else
    echo "skip srun --mpi=pmix: this SLURM has only $(srun --mpi=list 2>&1 | tail -n +2 | xargs)"
fi
srun --ntasks=2 "$TRAIN" tiny.json run.dir=bare >bare.log 2>&1
expect "a bare srun ends with 69" [ $? -eq 69 ]
expect "it prints the commands to type, once" [ "$(grep -cE ' 2 tasks .*srun --mpi=pmix -n 2 .*mpirun' bare.log)" -eq 1 ]
expect "and leaves no run" [ ! -e bare ]
srun --ntasks=1 "$TRAIN" tiny.json run.dir=lone >/dev/null 2>&1
expect "a bare srun of one task trains" whole lone 12

# --- a batch script without mpirun ------------------------------------------------------------------------------------------------------------

train run.dir=single >/dev/null
job=$(sbatch --parsable --ntasks=2 --output=%j.log --wrap "$TRAIN tiny.json run.dir=batch")
expect "a batch script without mpirun trains as one process" ends "$job" COMPLETED 0
expect "and warns of the other task" logged "$job" 'warning: SLURM .* 2 tasks.*mpirun'
expect "the same bits as outside" same_final batch single 12

# --- arrays --------------------------------------------------------------------------------------------------------------------------------------

printf '%s\n' 'optimizer.learning_rate=1e-3' "optimizer.learning_rate=2e-3 run.steps=1500" >sweep.txt
job=$(SWEEP=sweep.txt LAUNCH=none submit --ntasks=1 --array=1-2 --output=%A_%a.log -- run.dir=sweep $long)
until_true 120 stepped sweep/2; scancel --batch --signal=USR1 "${job}_2"
expect "an array's first task" ends "${job}_1" COMPLETED 0
expect "its second, stopped on its way" ends "${job}_2" COMPLETED 0
expect "the second alone was requeued" [ "$(starts "${job}_1") $(starts "${job}_2")" = "1 2" ]
expect "each with its line of the sweep" grep -q '"learning_rate":.*0.002' sweep/2/config.json
expect "each in its folder" whole sweep/1 12
expect "each to its end" whole sweep/2 1500

# --- a crash loop ----------------------------------------------------------------------------------------------------------------------------------

cp -r data good; cp -r single loop
printf '\xff\xff' | dd of="$(ls data/train_*.bin)" bs=1 seek=2048 conv=notrunc 2>/dev/null
job=$(submit -- run.dir=loop run.steps=24)
expect "a damaged shard ends the job with its code, 65" ends "$job" FAILED 65
expect "after one start, because it did no step" [ "$(grep -c 'token .* of .* has the id 65535' "$job.log")" -eq 1 ]
expect "as its message says" logged "$job" 'exit code 65: another try would end the same way'
cp good/*.bin data/
job=$(submit -- run.dir=loop run.steps=24)
expect "repaired, the same command goes on" ends "$job" COMPLETED 0
expect "to the end" whole loop 24

# --- killed, cancelled ---------------------------------------------------------------------------------------------------------------------------------

job=$(submit -- run.dir=killed $long run.steps=$steps)
until_true 120 stepped killed; kill -9 "$(pgrep -f "^$TRAIN tiny.json run.dir=killed" | tail -n 1)"
expect "a rank killed: requeued, done" ends "$job" COMPLETED 0
expect "which is counted" logged "$job" 'exit code 137, failure 1 of 3 .*requeued'
expect "the same bits" same_final killed short $steps

job=$(submit -- run.dir=ended $long run.steps=$steps)
until_true 120 stepped ended; scancel --batch --signal=TERM "$job"
expect "scancel --batch --signal=TERM saves and ends" ends "$job" FAILED 75
expect "and does not requeue" [ "$(starts "$job") $(field "$job" Restarts)" = "1 0" ]
job=$(submit -- run.dir=ended $long run.steps=$steps)
until_true 120 logged "$job" '^resume '; scancel "$job"
until_true 120 over "$job"; sleep 2
expect "scancel ends it" [ "$(state "$job") $(field "$job" Restarts)" = "CANCELLED 0" ]
expect "no rank is left" bash -c '! pgrep -f "$0" >/dev/null' "^$TRAIN tiny.json run.dir=ended"
job=$(submit -- run.dir=ended $long run.steps=$steps)
expect "the same command goes on from there" ends "$job" COMPLETED 0
expect "the same bits" same_final ended short $steps

# --- several nodes: one is lost -------------------------------------------------------------------------------------------------------------------

cluster_stop
steps=6000; rm -f ./*.log # logs are removed, because the new SLURM numbers jobs from 1 again
expect "a SLURM of three nodes starts" cluster_start n1 n2 n3
mkdir scripts && ln -s "$OLDPWD/scripts/elastic.sh" scripts
job=$(sbatch --parsable --nodes=3 --ntasks-per-node=1 --output=%j.log "$script" tiny.json run.dir=nodes $long parallel.deterministic=true run.steps=$steps)
until_true 120 stepped nodes; cluster_lose n3
is_down() { [[ $(sinfo -h -n "$1" -o %T) = down* ]]; }
expect "a node is lost, and SLURM knows it" until_true 60 is_down n3
expect "the job is not ended by that" [ "$(state "$job")" = RUNNING ]
expect "a lost node: the job goes on with the others, in its allocation" ends "$job" COMPLETED 0
expect "it was not requeued" [ "$(starts "$job") $(field "$job" Restarts)" = "1 0" ]
expect "three ranks, then two" [ "$(grep -aoE '^elastic.sh: [0-9] ranks on .*' "$job.log" | tr '\n' ';')" = "elastic.sh: 3 ranks on n1 n2 n3;elastic.sh: 2 ranks on n1 n2;" ]
expect "every step was logged, once" whole nodes $steps
quiet train run.dir=whole $long parallel.deterministic=true run.steps=$steps
expect "the same bits as one rank's" same_final nodes whole $steps
exit $STATUS
