# Tests scripts/elastic.sh. First every decision is tested in milliseconds, with a simulated mpirun. Then real ranks run
# on "hosts" that are names of this machine: one is lost, one joins, the discovery script removes one.
# Timed: ranks are lost and join at chosen instants.
. "$(dirname "$0")/lib/tiny.sh"
export TRAIN_GPT=$TRAIN BACKOFF=0 PATIENCE=0
elastic() { scripts/elastic.sh "$WORK/tiny.json" run.dir="$WORK/run" "$@"; }
run=$WORK/run

# --- faults of the user: 64 at once, and no run ---------------------------------------------------------------------------------------------------

expect "--help prints the head comment, and starts nothing" eval 'scripts/elastic.sh --help > "$WORK/out" 2>&1 && grep -q "^elastic.sh - trains on the hosts" "$WORK/out" && ! grep -q "ranks on" "$WORK/out"'
expect "no config: 64" exits 64 'elastic.sh: no config: ' scripts/elastic.sh
expect "an unknown key: 64" exits 64 'model\.n_layers' elastic model.n_layers=3
expect "np= that is no number: 64" exits 64 'np=x ' elastic np=x
expect "a hosts file that is not there: 64" exits 64 "hosts=$WORK/none" elastic hosts="$WORK/none"
# Each bad line of a hosts file is refused before any host is contacted. The message has the number of the line and says
# what to write.
for line in "-oProxyCommand=x" "nodeA:0" "nodeA slots=many" "nodeA 1 2" "fe80::2" "\[::1\]:2" "::1 slots=2" "me@nodeB slots=2" "nodeA slots=2 port=22" "nodeA:2 slots=2" "nodeA max_slots=0" "nodeA:99999" "\[gpus\]"; do
    { echo '# a comment'; echo "${line//\\/}"; } > "$WORK/bad"
    expect "a line of hosts, \"$line\": 64" exits 64 "$WORK/bad: line 2, \"$line\": .*(expected|not supported)" env AGENT=false scripts/elastic.sh "$WORK/tiny.json" run.dir="$run" hosts="$WORK/bad"
done
printf 'nodeX\nnodeY:2\n' > "$WORK/bad"
expect "no host answers: 77, and each is named" eval 'exits 77 "no start: no host answers" env AGENT="false --" scripts/elastic.sh "$WORK/tiny.json" run.dir="$run" hosts="$WORK/bad" && [ "$(grep -cE "^elastic.sh: node[XY] does not answer: false -- node[XY] true$" "$WORK/err")" -eq 2 ]'
printf 'node\033[31mA\n' > "$WORK/bad"
expect "a control character is not printed: 64" exits 64 'bad: line 1, "node[?].31mA"' elastic hosts="$WORK/bad"
printf '# none\n\n' > "$WORK/bad"
expect "a file without a host: 64" exits 64 "no start: $WORK/bad lists no host: write one a line" elastic hosts="$WORK/bad"
printf '\377\376n\0o\0d\0e\0\n\0' > "$WORK/bad"
expect "a file in UTF-16: 64, and one line" exits 64 "$WORK/bad is no UTF-8 text: iconv -f utf-16" elastic hosts="$WORK/bad"
expect "  and nothing of the shell" quiet [ "$(grep -vc '^elastic.sh: no start' "$WORK/err")" = 0 ]
mkdir "$WORK/odd"; echo '{"model": ' > "$WORK/odd/tokenizer.json"; echo '[]' > "$WORK/odd/tokens.json"
expect "nothing is looked for beside data that are not given" quiet eval "(cd '$WORK/odd' && '$TRAIN' check '$WORK/tiny.json' data.train=- data.val= sample.every=2 sample.prompt=a data.document_mask=true model.vocab_size=300)"
# Each of these hosts files lists two slots, in one of the allowed forms. The config needs three pipeline stages, so the
# script refuses to start.
for text in 'localhost slots=2\r\n' '\357\273\277localhost slots=2\n' 'localhost slots = 2 max_slots=4\n' 'localhost slots=2 max-slots=8 # big\n' 'localhost:1\r\n\r\nlocalhost\r\n'; do
    printf "$text" > "$WORK/slots"
    expect "a hosts file, ${text@Q}" exits 64 'no start: .*pipeline \(3\): start 3' elastic hosts="$WORK/slots" parallel.pipeline=3 model.n_layer=3
done
# The number of slots is compared as a number: as texts 8 is more than 65536.
for slots in 7 8 9 16 1024 65536; do
    printf 'nodeX:%s\nnodeY slots=%s\n' $slots $slots > "$WORK/slots"
    expect "$slots slots, and the host is asked" exits 77 "no start: no host answers" env AGENT="false --" scripts/elastic.sh "$WORK/tiny.json" run.dir="$run" hosts="$WORK/slots"
done
expect "fewer ranks than the config's smallest grid: 64" exits 64 'no start: .*pipeline \(2\): start 2' elastic np=1 parallel.pipeline=2
expect "no program: 64" exits 64 'no program ./nowhere' env TRAIN_GPT=./nowhere scripts/elastic.sh "$WORK/tiny.json"
printf '#!/bin/sh\necho "libraries cJSON 1.7.15, MPI: MPICH 4.0.2"\n' > "$WORK/mpich"; chmod +x "$WORK/mpich"
expect "a program of another MPI: 69" exits 69 'mpich is built for MPICH, .*make MPI=ompi-c' env TRAIN_GPT="$WORK/mpich" scripts/elastic.sh "$WORK/tiny.json"
expect "they leave no run" [ ! -e "$run" ]

# --- verdicts: mpirun notes its words and does the next line of `ends`: CODE; "step N CODE", which logs that step first;
# "save N CODE", with a checkpoint; "await SIGNAL CODE"; "hang"; "stop CODE", which waits for a file STOP, and leaves it ---------------------------------------------------------------------

mkdir "$WORK/bin"
cat > "$WORK/bin/mpirun" <<'STAND_IN'
#!/usr/bin/env bash
if [ "$1" = --version ]; then echo "${VERSION:-}"; exit 0; fi
dir=$(grep -oE 'run\.dir=[^ ]*' <<< "$*" | cut -d= -f2)
mkdir -p "$dir"; echo "$*" >> "$dir/calls"; cp "$2" "$dir/hostfile"
read -r what a b < "$ENDS"; sed -i 1d "$ENDS"
case $what in
save) mkdir -p "$dir/checkpoints/step_$(printf %08d "$a")"; exit "$b" ;;
step) echo "{\"kind\":\"train\",\"step\":$a,\"loss\":1}" >> "$dir/metrics.jsonl"; exit "$b" ;;
hang) exec sleep 1000 ;;
await) trap "exit $b" "$a"; touch "$dir/started"; while :; do sleep 0.02; done ;;
stop) until [ -e "$dir/STOP" ]; do sleep 0.02; done; exit "$a" ;;
*) exit "$what" ;;
esac
STAND_IN
chmod +x "$WORK/bin/mpirun"
export ENDS=$WORK/ends
# ends_with STATUS STARTS END...: runs the script on a new run. Its first start of mpirun ends as the first END says,
# the second as the second, and so on. Checks the script's exit code and the number of starts.
ends_with() {
    local status=$1 starts=$2 got; shift 2
    rm -rf "$run"; printf '%s\n' "$@" > "$ENDS"
    PATH=$WORK/bin:$PATH elastic np=4 $words > "$WORK/out" 2> "$WORK/err"; got="$? $(grep -c . "$run/calls")"
    [ "$got" = "$status $starts" ] || { echo "status and starts: $got, not $status $starts"; cat "$WORK/err"; return 1; }
}
words=''
expect "done is done" ends_with 0 1 0
expect "with the ranks asked for" grep -qE -- "--hostfile [^ ]* -np 4 .* $TRAIN $WORK/tiny.json run.dir=$run\$" "$run/calls"
words="batch.global_tokens=400" expect "or the most that the config allows: 10 micro-batches on 2 ranks" ends_with 0 1 0
expect "as a line says" grep -q '^elastic.sh: 2 ranks on localhost$' "$WORK/err"
for code in 64 65 69 70 71 73 74 76 127; do expect "$code is the end" ends_with $code 1 $code; done
expect "75 is the end, when somebody else asked" ends_with 75 1 75
for code in 1 14 77 134 137 139 205; do expect "$code: again" ends_with 0 2 $code 0; done
expect "the next start may resume, whatever run.resume is" grep -q 'run.resume=auto$' "$run/calls"
expect "three losses at one step: the end, with its code" ends_with 137 4 "step 7 77" "step 9 137" "step 9 137" "step 8 137"
expect "and a clear line" grep -qE '^elastic.sh: exit code 137: 3 losses in a row at step 9, so no further start' "$WORK/err"
expect "noted for train.sbatch" eval 'LOSSES=$WORK/losses ends_with 77 3 77 77 77 && [ "$(cat "$WORK/losses")" = 3 ]'
expect "losses with steps between them go on" ends_with 0 6 "step 1 137" "step 2 77" "step 3 1" "step 4 139" "step 5 137" 0
mkdir -p "$WORK/kept" && cp "$run/elastic.log" "$WORK/kept"
expect "the log has every line, with its time" [ "$(sed -E 's/^[0-9-]+ [0-9:]+ /elastic.sh: /' "$WORK/kept/elastic.log")" = "$(cat "$WORK/err")" ]
expect "locked by the lost job's last ranks: again" ends_with 0 3 137 73 0

export VERSION="mpirun (Open MPI) 5.0.7"
expect "Open MPI 5 loses a host and ends with 0: again" ends_with 0 2 0 "save 12 0"
expect "as a line says" grep -q '^elastic.sh: mpirun ended with 0 before step 12 was saved' "$WORK/err"
expect "its launcher gets options by their names there" grep -qE -- "--output :raw --prtemca plm_ssh_agent .* --prtemca oob_tcp_keepalive_time 10 " "$run/calls"
unset VERSION
START=1 expect "a start that hangs is ended: again" ends_with 0 2 hang 0
expect "as a line says" grep -q '^elastic.sh: no rank has begun within 1 s: the start is ended$' "$WORK/err"

# A discovery script that prints no host when it is called for the second time.
printf '#!/bin/sh\necho >> "%s"; [ $(wc -l < "%s") -eq 2 ] || echo localhost:2\n' "$WORK/asked" "$WORK/asked" > "$WORK/discover"; chmod +x "$WORK/discover"
words="hosts=$WORK/discover" expect "no host answers after a loss: the end, with its code" ends_with 137 1 137 0
rm "$WORK/asked"
PATIENCE=60 words="hosts=$WORK/discover" expect "or a wait for hosts" ends_with 0 2 137 0
expect "as a line says" grep -q '^elastic.sh: waits up to 60 s for hosts: .*/discover lists no host: ' "$WORK/err"

# A discovery script that prints one slot when first called, and two from then on.
printf '#!/bin/sh\nif [ -e "%s" ]; then echo localhost:2; else touch "%s"; echo localhost:1; fi\n' "$WORK/two" "$WORK/two" > "$WORK/discover"
WATCH=0.1 words="hosts=$WORK/discover" expect "75 that it asked for: again with more" ends_with 0 2 "stop 75" 0
expect "for more ranks" grep -q "there is room for 2 ranks instead of 1: the job is asked to save" "$WORK/err"
rm "$WORK/two"
WATCH=0.1 words="hosts=$WORK/discover" expect "a loss instead: again, and nobody is asked to stop" ends_with 0 2 "stop 137" 0
expect "nor is the file left" [ ! -e "$run/STOP" ]

# In a SLURM job the script starts ranks on the nodes of the job, one for each task. The second node does not answer, so
# it is left out.
printf '#!/bin/sh\nprintf "n%%s\\n" 1 2 3 4\n' > "$WORK/bin/scontrol"; printf '#!/bin/sh\ncase "$*" in *" n2 true") exit 1 ;; esac\n' > "$WORK/bin/srun"
chmod +x "$WORK"/bin/*
export SLURM_JOB_NODELIST='n[1-4]' SLURM_TASKS_PER_NODE='2,1(x2),3'
expect "in a SLURM job: its nodes that answer" eval 'rm -r "$run"; echo 0 > "$ENDS"; PATH=$WORK/bin:$PATH quiet elastic 2> "$WORK/err"'
expect "the one that does not answer is named, with the command that asked it" grep -qE '^elastic.sh: n2 does not answer: srun --overlap .*--nodelist n2 true$' "$WORK/err"
expect "with a rank for each task" [ "$(tr '\n' ' ' < "$run/hostfile")" = "n1 slots=2 n3 slots=1 n4 slots=3 " ]
unset SLURM_JOB_NODELIST SLURM_TASKS_PER_NODE

# exec_elastic BIN KEY=VALUE...: replaces the shell by the script, with BIN first in PATH, so that a signal to the job
# in the background reaches the script itself.
exec_elastic() { export PATH=$1:$PATH; shift; exec scripts/elastic.sh "$WORK/tiny.json" run.dir="$run" "$@"; }
signalled() { # SIGNAL STATUS END
    rm -rf "$run"; echo "$3" > "$ENDS"
    begins exec_elastic "$WORK/bin" np=2
    for _ in $(seq 500); do [ -e "$run/started" ] && break; sleep 0.02; done
    kill -s "$1" $job; wait $job; [ $? -eq "$2" ]
}
for signal in TERM USR1 HUP; do expect "$signal becomes USR1: saved, 75" signalled $signal 75 "await USR1 75"; done
expect "USR2 is handed on" signalled USR2 0 "await USR2 0"
expect "a signal that comes too early for the program: 75" signalled TERM 75 "await USR1 138"
expect "a loss while it stops is not started again" signalled TERM 77 "await USR1 77"

# --- real ranks ------------------------------------------------------------------------------------------------------------------------------------

# Simulates ssh. Every host is this machine, and answers until its name is in down/. Each host has its own folder for
# mpirun's daemons, which hang if several share one. Each also has its own host name, because Open MPI 5 distinguishes
# ranks by it.
mkdir "$WORK/down" "$WORK/tmp"
named=''
for how in "unshare -u" "unshare -r -u"; do if $how true 2> /dev/null; then named=$how; break; fi; done
if [ -z "$named" ] && mpirun --version 2> /dev/null | grep -q 'Open MPI) [5-9]'; then
    echo "skip real ranks on four hosts: their ranks need hosts with names of their own, and this system forbids namespaces for them (unshare -u)"
    exit $STATUS
fi
cat > "$WORK/agent" <<STAND_IN
#!/bin/sh
host=\$1; shift
[ ! -e "$WORK/down/\$host" ] || exit 255
mkdir -p "$WORK/tmp/\$host"
TMPDIR=$WORK/tmp/\$host exec $named sh -c "${named:+hostname \$host; }\$*"
STAND_IN
chmod +x "$WORK/agent"
export AGENT=$WORK/agent WATCH=0.5 START=60
endless="run.steps=1000000 schedule.name=constant log.every=1000 eval.every=0 parallel.deterministic=true"
last_step() { values "$1" train step 2> /dev/null | tail -n 1; }
# first_after DIR TIME: prints the time of the first step that was logged after TIME; waits at most 60 s.
first_after() { for _ in $(seq 1200); do values "$1" train time 2> /dev/null | awk -v t="$2" '$1 > t { print $1; exit 1 }' || return 0; sleep 0.05; done; return 1; }
await_step_beyond() { for _ in $(seq 1200); do [ "$(last_step "$1")" -gt "$2" ] 2> /dev/null && return; sleep 0.05; done; return 1; }
resumed() { sed -nE 's/^resume .* at step ([0-9]+),.*/\1/p' "$WORK/out" | tail -n 1; }

run=$WORK/changing
printf '%s\n' nodeA nodeB:1 "nodeC slots=1" "nodeD # the one that goes" > "$WORK/hosts"
begins exec_elastic "$WORK" $endless checkpoint.every=5 hosts="$WORK/hosts"
await_step_beyond "$run" 12
await '^saved .*/step_00000010 ' # waits for the checkpoint of step 10, which is written while later steps run
expect "a rank for each host of the file" grep -q '^elastic.sh: 4 ranks on nodeA nodeB nodeC nodeD$' "$WORK/out"
touch "$WORK/down/nodeD"; killed=$EPOCHREALTIME
strike KILL $(pgrep -f "^$TRAIN $WORK/tiny.json run.dir=$run" | tail -n 1)
expect "a rank killed, its host gone: on with three" await '^elastic.sh: 3 ranks on nodeA nodeB nodeC$'
next=$(first_after "$run" "$EPOCHREALTIME"); took=$(awk -v a="$killed" -v b="$next" 'BEGIN { printf "%.2f", b - a }')
echo "# $took s from kill -9 to the next step"
expect "the next step comes soon" awk -v t="$took" 'BEGIN { exit !(t > 0 && t < 20) }'
expect "from the newest checkpoint" [ "$(resumed)" -ge 10 ]

echo nodeE:1 >> "$WORK/hosts"
expect "a host joins: saved, and on with four" await '^elastic.sh: 4 ranks on nodeA nodeB nodeC nodeE$'
next=$(first_after "$run" "$EPOCHREALTIME"); kill -TERM $job; wait $job; status=$?
stopped=$(sed -nE 's/^stopped at step ([0-9]+) .*/\1/p' "$WORK/out" | head -n 1)
expect "no step is lost by it" [ -n "$next" -a "$(resumed)" = "$stopped" ]
expect "TERM to the script: saved, 75" [ $status -eq 75 ]
steps=$(last_step "$run")
expect "each of the $steps steps is logged once" [ "$(steps_of "$run")" = "$(seq "$steps" | tr '\n' ' ')" ]
quiet train run.dir="$WORK/unbroken" $endless run.stop_step="$steps" checkpoint.every=0
expect "the losses of one rank that was never broken, every bit" same_losses "$run" "$WORK/unbroken" 0
expect "and its weights" same_weights "$run" "$WORK/unbroken" "$(printf 'step_%08d' "$steps")"

# The discovery script (which prints the hosts) fails once, which changes nothing, and later removes one rank. Then a
# file STOP ends the run.
run=$WORK/found
printf '#!/bin/sh\ncat "%s" || exit 1\n' "$WORK/list" > "$WORK/discover"; chmod +x "$WORK/discover"
echo "localhost:2" > "$WORK/list"
begins exec_elastic "$WORK" $endless hosts="$WORK/discover"
await '^elastic.sh: 2 ranks on localhost$' && await_step "$run"
mv "$WORK/list" "$WORK/away"; sleep 1
expect "a discovery that fails changes nothing" eval 'kill -0 $job && ! grep -q "asked to save" "$WORK/out"'
echo "localhost:1" > "$WORK/list"
expect "a discovery with fewer slots: saved, and on with those" await '^elastic.sh: 1 rank on localhost$'
await '^resume '; touch "$run/STOP"; wait $job; status=$?
expect "a file STOP of the user ends it: 75" [ $status -eq 75 ]
python3 scripts/in_terminal.py 100 --interrupt-at "step " scripts/elastic.sh "$WORK/tiny.json" $endless run.dir="$run" np=2 > "$WORK/out" 2>&1
expect "Ctrl-C in a terminal saves, too: 75" [ $? -eq 75 ]
expect "as its lines say" eval 'grep -q "elastic.sh: Ctrl-C: the job is asked to save" "$WORK/out" && grep -q "^stopped at step .* saved" "$WORK/out"'
expect "no rank is left" [ -z "$(pgrep -f "^$TRAIN $WORK/tiny.json")" ]
exit $STATUS
