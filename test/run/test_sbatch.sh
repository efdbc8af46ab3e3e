#!/usr/bin/env bash
# scripts/train.sbatch without SLURM. Simulated mpirun, srun, scontrol and squeue log their arguments and end as listed,
# so that every decision of the script is tested in milliseconds. make test-slurm tests the same file with a real
# slurmctld.
# Timed: signals must reach a script between two commands.
set -u
. "$(dirname "$0")/../../scripts/env.sh"
script=$PWD/scripts/train.sbatch
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
mkdir bin

# A stand-in for the program: `check` prints the run folder as train_gpt does, or fails. The simulated launcher does the
# training.
cat > bin/train_gpt <<'SH'
#!/usr/bin/env bash
dir=runs/config
for word in "$@"; do case $word in run.dir=*) dir=${word#run.dir=} ;; bad.key=*) echo "config.json: no key bad.key" >&2; exit 64 ;; esac; done
echo "steps       12"; echo "last step   12"; echo "run folder  $dir"
SH
# A stand-in for mpirun and srun. It records its arguments and does what the next line of the file `ends` says. CODE:
# exits with it. "save STEP CODE": makes a checkpoint folder first. "step STEP CODE": logs that step first. "await
# SIGNAL CODE": waits for the signal.
cat > bin/mpirun <<'SH'
#!/usr/bin/env bash
if [ "$1" = --version ]; then cat version 2> /dev/null; exit 0; fi
echo "$(basename "$0") $*" >> calls
echo "${SLURM_JOB_END_TIME:-}" > told_end
read -r what a b < ends; sed -i 1d ends
case $what in
save) mkdir -p "$(sed -n 's/.*run\.dir=\([^ ]*\).*/\1/p' <<<"$*")/checkpoints/step_$(printf %08d "$a")"; exit "$b" ;;
step) dir=$(sed -n 's/.*run\.dir=\([^ ]*\).*/\1/p' <<<"$*"); mkdir -p "$dir"; echo "{\"kind\":\"train\",\"step\":$a,\"loss\":1}" >> "$dir/metrics.jsonl"; exit "$b" ;;
await) trap "exit $b" "$a"; touch started; while :; do /bin/sleep 0.02; done ;;
lost) echo 3 > "$LOSSES"; exit "$a" ;;
die) kill -s "$a" $$ ;;
*) exit "$what" ;;
esac
SH
cat > bin/note <<'SH'
#!/usr/bin/env bash
echo "$(basename "$0") $*" >> calls
case "$(basename "$0") $*" in squeue*%r) cat reason ;; squeue*%e) cat end ;; esac 2>/dev/null
exit 0
SH
chmod +x bin/*; ln -s mpirun bin/srun; for name in scontrol squeue sleep; do ln -s note bin/$name; done
export PATH=$work/bin:$PATH TRAIN_GPT=$work/bin/train_gpt SLURM_JOB_ID=7 SLURM_NTASKS=4
unset SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID SLURM_RESTART_COUNT SLURM_CPUS_PER_TASK LAUNCH OPTIONS SWEEP BACKOFF

# job END...: runs train.sbatch, and keeps what an earlier job left in its run folder. Each END says how one start of
# the launcher ends. Sets $status to the exit code. What the script prints to stderr is in the file `said`, the
# launcher's calls in the file `calls`.
job() {
    rm -f calls started; printf '%s\n' "$@" > ends; : > calls
    bash "$script" config.json run.dir=r ${more:+"$more"} > out 2> said; status=$?
}
anew() { rm -rf r reason; job "$@"; }
starts() { grep -cE '^(mpirun|srun) ' calls; }
rests() { sed -n 's/^sleep //p' calls | tr '\n' ' '; }
requeued() { grep -c '^scontrol requeue' calls; }
# is NAME STATUS STARTS REQUEUES: checks the exit code, the starts and the requeues of the last job.
is() {
    if [ "$status $(starts) $(requeued)" = "$2 $3 $4" ]; then echo "ok $1"; return; fi
    echo "not ok $1: status $status, $(starts) starts, $(requeued) requeues, not $2 $3 $4"; sed 's/^/    /' said calls
}
ok() { local name=$1; shift; if "$@"; then echo "ok $name"; else echo "not ok $name"; sed 's/^/    /' said calls; fi; }

anew 0; is "done is done" 0 1 0
ok "mpirun gets a rank for each task" grep -q "^mpirun -np 4 --bind-to none $TRAIN_GPT config.json run.dir=r$" calls
echo "mpirun (Open MPI) 5.0.7" > version
anew 0; is "Open MPI 5 loses a host and ends with 0: requeued" 77 1 1
ok "as a line says" grep -q 'mpirun ended with 0 before step 12 was saved' said
ok "its streams are kept apart" grep -q "^mpirun -np 4 --bind-to none --output :raw $TRAIN_GPT " calls
anew "save 12 0"; is "a run that is saved to its end is done there, too" 0 1 0
rm version
anew 75; is "75 is requeued" 75 1 1
ok "by the job's id" grep -q '^scontrol requeue 7$' calls
for code in 1 14 77 134 137 139; do anew $code; is "$code is requeued" $code 1 1; ok "$code is counted" grep -q "^7 -1 1 $code -1$" r/failures; done
for code in 64 69 73 127; do anew $code; is "$code is the end" $code 1 0; done

for code in 70 74 76; do anew $code $code $code 0; is "a crash loop of exit code $code ends with it" $code 3 0; done
for code in 65 71; do
    anew $code 0; is "$code before the first step is the end" $code 1 0
    ok "as a line says" grep -q "exit code $code: another try would end the same way" said
    anew "save 3 75"; job $code 0; is "$code of a resume that did no step, too" $code 1 0
    anew "step 2 $code" "step 3 $code" 0; is "$code after steps is tried again" 0 3 0
    anew "step 2 $code" $code 0; is "until a start does none" $code 2 0
done
anew 76 76 76 0; is "a crash loop" 76 3 0
ok "its message has the code and the place" grep -q 'exit code 76: 3 failures .*at the start' said
ok "with rests of 30 and 120 s" [ "$(rests)" = "30 120 " ]
anew 70 74 76 0; is "whatever the codes" 76 3 0
anew 76 70 0; is "two failures may pass" 0 3 0
ok "done leaves no count" [ ! -e r/failures ]
anew 74 "save 4 65" 70 "save 8 74" 70 70 0; is "only failures at one step make a loop" 70 6 0
ok "the message has the step" grep -q 'exit code 70: 3 failures .*step 8,' said

anew 74 77; is "a lost peer after a failure is requeued" 77 2 1
ok "with the count in the message" grep -q 'exit code 77, failure 2 of 3 at the start; the job is requeued' said
job 75; job 74 0; is "the count outlasts requeues" 74 1 0
anew 139; job 139; job 139; is "a crash at every start ends with the third" 139 1 0
ok "its message has the code and the place" grep -q 'exit code 139: 3 failures .*at the start' said
anew "step 3 137"; job "step 5 77"; job "step 5 137"; is "a new step begins the count anew" 137 1 1
job "step 4 1"; is "a loss before the furthest step does not" 1 1 0
anew "step 19 137"; job "step 16 137"; job "save 16 137"; is "a newer checkpoint below the furthest step begins it anew, too" 137 1 1
SLURM_JOB_ID=8 job 74 0; is "another job counts anew" 0 2 0
anew 70 70 75; echo "7 -1 tw" > r/failures; job 70 0; is "a torn count is none" 0 2 0
anew 70 70 75; mkdir -p r/checkpoints/step_00000004.tmp r/checkpoints/.trash-3; job 70; is "half a checkpoint is no progress" 70 1 0
anew 70 70 75; mkdir -p r/checkpoints/step_100000000; job 70 0; is "a checkpoint is progress" 0 2 0
rm -rf r; echo > r; job 74 74 74 0; is "a loop ends where no count can be written" 74 3 0
ok "with a message" grep -q 'r/failures ' said
rm r

# signal SIGNAL END...: sends a signal to the script once the simulated launcher runs.
signal() { # SIGNAL END...
    rm -rf r; rm -f started
    (job "${@:2}"; echo $status > status) & local waiting=$!
    for _ in $(seq 500); do [ -e started ] && break; /bin/sleep 0.02; done
    kill -s "$1" "$(pgrep -P $waiting -f "$script")"
    wait $waiting; status=$(cat status)
}
signal USR1 "await USR1 75"; is "USR1 reaches the ranks; 75 is requeued" 75 1 1
signal USR1 "await USR1 65" 0; is "a failure after USR1 is requeued" 65 1 1
ok "and counted" grep -q '^7 -1 1 65 -1$' r/failures
signal USR2 "await USR2 0"; is "USR2 is handed on" 0 1 0
signal TERM "await USR1 75"; is "TERM saves, and is not requeued" 75 1 0
signal TERM "await USR1 65" 0; is "nor tried again" 65 1 0
echo TimeLimit > reason
signal TERM "await USR1 1"; is "a time limit is requeued, whatever the ranks came to" 1 1 1
rm reason

# In a job array each task replaces %a in its arguments by its number, uses its own line of the sweep file, and has its
# own folder.
export SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=2
printf '%s\n' 'optimizer.learning_rate=1e-3' "optimizer.learning_rate=2e-3 sample.prompt='a b'" 'run.dir=mine_%a' > sweep.txt
anew 75; is "an array's task" 75 1 1
ok "has its own folder" grep -q 'config.json run.dir=r run.dir=r/2$' calls
ok "and alone is requeued" grep -q '^scontrol requeue 7_2$' calls
more=run.seed=%a anew 0; ok "%a is the task's number" grep -q 'run.dir=r run.seed=2 run.dir=r/2$' calls
more=run.dir=s_%a anew 0; ok "a run.dir with it is the task's own" grep -q 'run.dir=r run.dir=s_2$' calls
SWEEP=sweep.txt anew 0; ok "a line of the sweep, with quotes" grep -q 'run.dir=r optimizer.learning_rate=2e-3 sample.prompt=a b run.dir=r/2$' calls
SWEEP=sweep.txt SLURM_ARRAY_TASK_ID=3 anew 0; ok "a line with a run.dir" grep -q 'run.dir=r run.dir=mine_3$' calls
SWEEP=sweep.txt SLURM_ARRAY_TASK_ID=4 anew 0; is "a sweep too short" 64 0 0
unset SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID
SWEEP=sweep.txt anew 0; is "a sweep without an array" 64 0 0

# SLURM_JOB_END_TIME is passed to the program, which stops in time.
export SLURM_JOB_END_TIME=5
echo 2026-11-21T06:00:00 > end; TZ=UTC anew 0; ok "the job's own end, not the submitting job's" [ "$(cat told_end)" = 1795240800 ]
echo NONE > end; anew 0; ok "a job without an end" [ "$(cat told_end)" = "" ]
unset SLURM_JOB_END_TIME

(unset SLURM_JOB_ID; bash "$script" --help > told)
ok "--help prints the head comment, without SLURM" [ "$(grep -cE '^train.sbatch - trains on a SLURM cluster|eight models, four at a time' told)" -eq 2 ]

# Each launcher gets its own options. Missing programs are reported.
LAUNCH=srun SLURM_CPUS_PER_TASK=3 OPTIONS="--exact -v" anew 0
ok "srun gets PMIx and the cores" grep -q '^srun --mpi=pmix --kill-on-bad-exit=1 --cpus-per-task=3 --exact -v .*config.json' calls
mkdir scripts; ln -s ../bin/mpirun scripts/elastic.sh
anew 0; ok "one node: mpirun itself" grep -q '^mpirun ' calls
export SLURM_JOB_NUM_NODES=2
anew 137; is "several nodes: elastic.sh; where no host answers the job is requeued" 137 0 1
anew "lost 137"; is "after three losses that it saw the job ends" 137 0 0
ok "elastic.sh gets the words alone, the rest by the environment" grep -q '^elastic.sh config.json run.dir=r$' calls
anew 70 74 0; ok "its failures are tried again" [ "$status $(grep -c '^elastic.sh ' calls)" = "0 3" ]
LAUNCH=mpirun anew 0; ok "another LAUNCH is taken" grep -q '^mpirun ' calls
rm -r scripts
anew 0; ok "without elastic.sh: mpirun" grep -q '^mpirun ' calls
LAUNCH=elastic anew 0; is "asked for, and not there" 64 0 0
unset SLURM_JOB_NUM_NODES
LAUNCH=none anew 0; ok "one process without a launcher" [ "$status $(starts)" = "0 0" ]
LAUNCH=mpiexec anew 0; is "an unknown launcher" 64 0 0
mkdir tools; for tool in bash sed hostname; do ln -s "$(command -v $tool)" tools/$tool; done
more='' LAUNCH=srun; export LAUNCH; rm bin/srun
PATH=$work/tools bash "$script" config.json > out 2> said
ok "a launcher that is not there ends with 69" [ $? -eq 69 ]
unset LAUNCH
more=bad.key=1 anew 0; is "a fault in the config ends the job before it starts" 64 0 0
TRAIN_GPT=./nowhere anew 0; is "no program" 64 0 0
ok "the message names its folder" grep -q "no program ./nowhere in $work" said
