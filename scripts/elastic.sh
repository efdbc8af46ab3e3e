#!/usr/bin/env bash
# elastic.sh - trains on the hosts that answer until run.steps are done. After a loss it trains on the hosts that are
# left, and it uses more hosts when more answer. Each start resumes from the newest checkpoint.
#
#   scripts/elastic.sh config.json [key=value ...] [hosts=FILE] [np=N]
#
#   hosts=FILE   a file with lines "host", "host:slots" or "host slots=N [max_slots=M]". A slot is a rank; a host
#                without a number has one. If FILE is executable, as in hosts=./discover.sh, it is run and prints such
#                lines. Without hosts= the hosts are the nodes of the SLURM job; without SLURM this machine, with a slot
#                for each GPU, or if it has none, for each core
#   np=N         at most N ranks; without hosts= N ranks of this machine
#
# Exit codes of the job, and what the script does:
#   0                the training is done: ends
#   75               stopped and saved: ends, or starts again if this script stopped the job because hosts changed
#   1, 77, over 128  a rank or a host is lost: starts again with the hosts that answer. Ends after the third loss in a
#                    row without a newer step. 14 counts as well: Open MPI 5's code for a rank that lost its peer
#   73               the run folder is in use. After a loss the old job may still be ending: tries again for ten seconds
#   any other        ends, because another start would end the same way
#
# USR1, TERM, HUP and Ctrl-C make the job save and stop (75). A second TERM or Ctrl-C ends it at once. USR2 makes it
# save and continue. docs/elastic.md lists the variables. Each action is a line on stderr and in run.dir/elastic.log.
set -u

TRIES=3 LOCKED_TRIES=10
program=${TRAIN_GPT:-./train_gpt} hosts='' np='' run_dir=''
if [ -n "${SLURM_JOB_NODELIST:-}" ]; then # each question is a job step there
    : "${AGENT:=srun --overlap --immediate=5 --nodes=1 --ntasks=1 --nodelist}" "${WATCH:=60}"
fi
read -ra agent <<<"${AGENT:-ssh -o BatchMode=yes -o ConnectTimeout=3}"
read -ra options <<<"${OPTIONS:-}"
# setsid keeps a terminal's Ctrl-C from mpirun, which would end its ranks at once; only this script gets it
own_session=()
if (: </dev/tty) 2>/dev/null; then own_session=(setsid); fi
work=$(mktemp -d) || exit 74
trap 'rm -rf "$work"' EXIT

# say WORD...: prints a line, and logs it once the run's folder exists. The program makes the folder, so a config with
# faults leaves nothing behind.
say() {
    echo "elastic.sh: $*" >&2
    echo "$(date '+%F %T') $*" >>"$work/unkept"
    if [ -d "$run_dir" ]; then cat "$work/unkept" >>"$run_dir/elastic.log" && : >"$work/unkept"; fi
}
plural() { if [ "$1" = 1 ]; then echo "1 rank"; else echo "$1 ranks"; fi; }
end() { say "${@:2}"; exit "$1"; } # CODE WORD...

# --- signals, handed on as scripts/train.sbatch does: mpirun passes USR1 and USR2 to every rank -----------------------

pid='' stopping='' interrupted=''
hand_on() {
    interrupted=1
    if [ -n "$pid" ]; then kill -s "$1" "$pid" 2>/dev/null; fi
}
ask() { # SIGNAL
    if [ -n "$stopping" ] && [ "$1" != USR1 ]; then
        hand_on TERM
        say "$1 again: the job is ended at once"
        return
    fi
    stopping=1
    hand_on USR1
    say "$1: the job is asked to save and stop"
}
trap 'ask USR1' USR1
trap 'ask TERM' TERM
trap 'ask HUP' HUP
trap 'ask Ctrl-C' INT
trap 'hand_on USR2' USR2

# await COMMAND...: runs a command to its end and sets `code` to its exit code. A trapped signal ends only the wait,
# which then begins again.
await() {
    "$@" &
    pid=$!
    echo $pid >"$work/pid"
    if [ -n "$stopping" ]; then kill -s USR1 $pid 2>/dev/null; fi # the signal came when there was no pid yet
    while interrupted='' && wait $pid; code=$?; [ -n "$interrupted" ]; do :; done
    pid=''
}
rest() { # SECONDS
    local before=$code
    await sleep "$1"
    code=$before
}

# --- hosts: files of lines "host slots=N", as mpirun reads them -------------------------------------------------------

slots_here() { { nvidia-smi -L 2>/dev/null | grep -c '^GPU'; nproc; } | awk '$1 > 0 { print; exit }'; }
slurm_hosts() { # slurm_hosts: prints "host:slots" for each node of the job. SLURM_TASKS_PER_NODE has the form 2(x3),1
    paste -d: <(scontrol show hostnames) \
        <(tr , '\n' <<<"$SLURM_TASKS_PER_NODE" | awk -F'[(x)]+' '{ for (i = 0; i < ($2 ? $2 : 1); i++) print $1 }')
}
list_hosts() {
    local found
    if [ -n "$hosts" ] && [ -x "$hosts" ]; then found=$(timeout 30 "$(realpath "$hosts")" </dev/null)
    elif [ -n "$hosts" ] && [ "$(tr -d '\000' <"$hosts" | wc -c)" -ne "$(wc -c <"$hosts")" ]; then
        echo "$hosts is no UTF-8 text: iconv -f utf-16 -t utf-8 ${hosts@Q} > NEW makes one of UTF-16" >&2
        return 64
    elif [ -n "$hosts" ]; then found=$(cat "$hosts")
    elif [ -n "${SLURM_JOB_NODELIST:-}" ]; then found=$(slurm_hosts)
    else found=localhost:${np:-$(slots_here)}
    fi || { echo "no list of hosts from ${hosts:-SLURM}: the command fails, prints nothing, or takes over 30 s; run it by hand" >&2; return 64; }
    NAME=${hosts:-the hosts of the SLURM job} awk 'function refuse(why) { gsub(/[\001-\010\013-\037\177]/, "?", line); bad = 1
             print ENVIRON["NAME"] ": line " NR ", \"" line "\": " why > "/dev/stderr"; exit }
         { line = $0; sub(/\r$/, ""); if (NR == 1) sub(/^\357\273\277/, ""); sub(/#.*/, ""); gsub(/[ \t]*=[ \t]*/, "=") }
         NF == 0 { next }
         { host = $1; count = 1; given = 0 }
         host ~ /@/ { refuse("a user before @ is not supported: write the host alone, and its user in ~/.ssh/config") }
         host ~ /^\[[^:]*$/ { refuse("a group of hosts is not supported: write one host a line, and no heading") }
         host ~ /^\[|:.*:/ { refuse("an IPv6 address is not supported: write the name of the host") }
         host ~ /:/ { count = host; sub(/^[^:]*:/, "", count); sub(/:.*/, "", host); given = 1 }
         host !~ /^[A-Za-z0-9][A-Za-z0-9._-]*$/ { refuse("\"host\", \"host:slots\" or \"host slots=N\" is expected") }
         { for (i = 2; i <= NF; i++) {
               if ($i ~ /^max[-_]slots=[1-9][0-9]*$/) continue # a limit for more ranks than slots, which never start here
               if (given || ($i !~ /^slots=/ && $i !~ /^[0-9]+$/)) refuse("\"" $i "\" is not supported: only slots=N and max_slots=N are")
               count = $i; sub(/^slots=/, "", count); given = 1 } }
         count !~ /^[1-9][0-9]*$/ || count + 0 > 65536 { refuse("a number of slots from 1 to 65536 is expected") }
         { if (!(host in slots)) order[++n] = host; slots[host] += count }
         END { if (bad) exit 64
               if (n == 0) { print ENVIRON["NAME"] " lists no host: write one a line, as nodeA slots=8" > "/dev/stderr"; exit 64 }
               for (i = 1; i <= n; i++) print order[i] " slots=" slots[order[i]] }' <<<"$found"
}

# answers HOST IN_USE: succeeds if the host answers. A host in the file IN_USE counts as answering and is not asked.
answers() { # HOST IN_USE
    case $1 in localhost | 127.0.0.1 | "$(hostname)" | "$(hostname -s)") return ;; esac
    grep -q "^${1//./\\.} " "$2" || timeout 10 "${agent[@]}" "$1" true </dev/null >/dev/null 2>&1
}
# answering LIST IN_USE: prints those hosts of the file LIST that answer, in the order of LIST. All are asked at once.
answering() ( # LIST IN_USE
    heard=$(mktemp -d "$work/heard.XXXXXX") || exit 74
    while read -r host _; do if answers "$host" "$2"; then touch "$heard/$host"; fi & done <"$1"
    wait
    while read -r host slots; do if [ -e "$heard/$host" ]; then echo "$host $slots"; fi; done <"$1"
    rm -r "$heard"
)

# fit FILE: prints the largest number of ranks that the config allows on the hosts in the file FILE.
fit() {
    local slots
    slots=$(awk -F= '{ n += $2 } END { print n + 0 }' "$1")
    if [ -n "$np" ] && [ "$slots" -gt "$np" ]; then slots=$np; fi
    if [ "$slots" -eq 0 ]; then echo "no host answers" >&2; return 77; fi
    "$program" plan "${words[@]}" ranks="$slots" fit=true json=true | sed -n 's/.*"ranks":\([0-9]*\).*/\1/p'
    return "${PIPESTATUS[0]}"
}

# choose: writes the hostfile of the next start and sets `ranks`. Fails if too few hosts answer. The caller, gather,
# then ends the script at the first start, or waits for hosts at a later one.
choose() {
    : >"$work/silent"
    list_hosts >"$work/listed" && answering "$work/listed" /dev/null >"$work/hosts" || return
    grep -vxFf "$work/hosts" "$work/listed" >"$work/silent"
    ranks=$(fit "$work/hosts")
}
name_silent() {
    local host
    while read -r host _; do say "$host does not answer: ${agent[*]} $host true"; done <"$work/silent"
}
gather() {
    local waited=0 patience=${PATIENCE:-600}
    until choose 2>"$work/why"; code=$?; [ $code -eq 0 ]; do
        if [ $waited -eq 0 ]; then name_silent; fi
        if [ -z "$begun" ] || [ $waited -ge "$patience" ]; then
            end "${lost:-$code}" "no start: $(cat "$work/why")"
        fi
        if [ $waited -eq 0 ]; then say "waits up to $patience s for hosts: $(cat "$work/why")"; fi
        rest 2
        if [ -n "$stopping" ]; then return; fi
        waited=$((waited + 2))
    done
    name_silent
}

# nap SECONDS: sleeps in a background function such as watch_hosts. The sleep ends when that function is ended.
nap() { # SECONDS
    local sleeper=''
    trap 'kill $sleeper 2>/dev/null; exit' TERM
    sleep "$1" >/dev/null 2>&1 & sleeper=$!
    wait $sleeper && trap - TERM
}

# watch_hosts: runs in the background during the job. Asks the job to stop once the hosts allow another number of ranks,
# or a host in use is no longer listed.
watch_hosts() {
    local more gone
    cp "$work/hosts" "$work/seen"
    while nap "${WATCH:-5}"; do
        [ -d "$run_dir" ] || continue                      # the job has not begun
        list_hosts >"$work/listed" 2>/dev/null || continue # a discovery that fails once says nothing about the hosts
        answering "$work/listed" "$work/hosts" >"$work/now"
        if cmp -s "$work/now" "$work/seen"; then continue; fi
        cp "$work/now" "$work/seen"
        more=$(fit "$work/now" 2>/dev/null) || continue
        gone=$(awk 'NR == FNR { listed[$1] = 1; next } !($1 in listed) { print $1 " is listed no more, "; exit }' \
            "$work/listed" "$work/hosts")
        if [ "$more" = "$ranks" ] && [ -z "$gone" ]; then continue; fi
        say "${gone}there is room for $(plural "$more") instead of $ranks: the job is asked to save and stop"
        touch "$work/changed" "$run_dir/STOP"
        return
    done
}

# signed: prints inode and change time of RUN/lock, which differ after a rank has opened it. watch_start needs that
# sign, because mpirun waits silently for a host's daemon that cannot report. If no rank has opened the lock after START
# seconds, mpirun and its processes are ended, which counts as a loss.
signed() { stat -c '%i %z' "$run_dir/lock" 2>/dev/null; }
watch_start() {
    local before waited mpirun
    before=$(signed)
    for ((waited = 0; waited < ${START:-300}; waited++)); do
        nap 1
        if [ "$(signed)" != "$before" ]; then return; fi
    done
    say "no rank has begun within ${START:-300} s: the start is ended"
    mpirun=$(cat "$work/pid")
    # shellcheck disable=SC2046
    kill -KILL $(sed -nE "s/^([0-9]+) \(.*\) . $mpirun .*/\1/p" /proc/[0-9]*/stat 2>/dev/null) "$mpirun" 2>/dev/null
}

# --- running ----------------------------------------------------------------------------------------------------------

saved_steps() { printf '%s\n' "$run_dir"/checkpoints/step_* | sed -n 's|.*/step_0*\([0-9][0-9]*\)$|\1|p'; }
newest_checkpoint() { { echo 0; saved_steps; } | sort -n | tail -n 1; }
newest_step() { # newest_step: prints the newest step found in a checkpoint or in metrics.jsonl
    {
        echo 0
        saved_steps
        tail -n 100 "$run_dir/metrics.jsonl" 2>/dev/null | sed -n 's/.*"kind":"train".*"step":\([0-9]*\).*/\1/p'
    } | sort -n | tail -n 1
}

# start: runs the job under mpirun. mpirun's connections get keepalive options, because otherwise it would wait a
# quarter of an hour for a host that disappeared silently.
start() {
    local watchers
    rm -f "$work/changed"
    say "$(plural "$ranks") on $(cut -d' ' -f1 "$work/hosts" | paste -sd' ')"
    watch_hosts & watchers=($!)
    watch_start & watchers+=($!)
    await "${own_session[@]}" mpirun --hostfile "$work/hosts" -np "$ranks" --bind-to none "${of_release[@]}" \
        "$mca" oob_tcp_keepalive_time 10 "$mca" oob_tcp_keepalive_intvl 2 "$mca" oob_tcp_keepalive_probes 3 \
        "${options[@]}" "$program" "${words[@]}"
    if [ "$code" -eq 0 ] && [ $mca = --prtemca ] && [ "$(newest_checkpoint)" -lt "${last_step:-0}" ]; then
        say "mpirun ended with 0 before step $last_step was saved, as Open MPI 5 does when it loses a host"
        code=77
    fi
    kill "${watchers[@]}" 2>/dev/null
    wait "${watchers[@]}" 2>/dev/null
    if [ -e "$work/changed" ]; then rm -f "$run_dir/STOP"; fi # of a job that was lost before it read it
}

after_loss() {
    local step seconds=0
    step=$(newest_step) lost=$code
    if [ "$step" -gt "$furthest" ]; then furthest=$step losses=0; fi
    losses=$((losses + 1))
    if [ $losses -ge $TRIES ]; then
        say "exit code $code: $losses losses in a row at step $step, so no further start"
        if [ -n "${LOSSES:-}" ]; then echo $losses >"$LOSSES"; fi # train.sbatch then ends its job, too
        end "$code" "repair the fault above, then start again"
    fi
    if [ $losses -gt 1 ]; then seconds=$((${BACKOFF:-5} * 4 ** (losses - 2))); fi
    say "exit code $code at step $step, loss $losses of $TRIES there: again with the hosts that answer, in $seconds s"
    rest $seconds
}

still_locked() {
    locked=$((locked + 1))
    if [ -z "$lost" ] || [ $locked -gt $LOCKED_TRIES ]; then end 73 "exit code 73: another job uses $run_dir"; fi
    say "the lost job is still ending: again in 1 s"
    rest 1
}

train() {
    local begun='' lost='' losses=0 locked=0 furthest code=0
    furthest=$(newest_step)
    while :; do
        gather
        if [ -n "$stopping" ]; then end 75 "stopped between two starts; the same command goes on"; fi
        start
        if [ -n "$stopping" ] && [ "$code" -eq 138 ]; then code=75; fi # USR1 came before the program took it
        if [ "$code" -ne 0 ] && [ -n "$stopping" ]; then end "$code" "exit code $code; the same command goes on"; fi
        if [ "$code" -ne 73 ]; then locked=0; fi
        case $code in
        0) end 0 "done" ;;
        75) [ -e "$work/changed" ] || end 75 "exit code 75: stopped on request; the same command goes on" ;;
        73) still_locked ;;
        1 | 14 | 77 | 129 | 1[3-9]? | 2??) after_loss ;;
        *) end "$code" "exit code $code: another start would end the same way" ;;
        esac
        if [ -z "$begun" ]; then begun=1 words+=("run.resume=auto"); fi # the run that is there now is its own
    done
}

case ${1:-} in -h | --help) awk 'NR == 1 { next } !/^#/ { exit } { sub(/^# ?/, ""); print }' "$0"; exit 0 ;; esac
words=()
for word in "$@"; do
    case $word in
    hosts=*) hosts=${word#hosts=} ;;
    np=*) np=${word#np=} ;;
    *) words+=("$word") ;;
    esac
done
[ ${#words[@]} -gt 0 ] || end 64 "no config: scripts/elastic.sh config.json [key=value ...] [hosts=FILE] [np=N]"
[[ $np =~ ^([1-9][0-9]{0,5})?$ ]] || end 64 "np=$np is no number of ranks"
[ -z "$hosts" ] || [ -f "$hosts" ] || end 64 "there is no file hosts=$hosts"
command -v "$program" >/dev/null || end 64 "no program $program in $PWD: start where it is, or set TRAIN_GPT"
case $("$program" --version 2>/dev/null) in
*"MPI: MPICH"*) end 69 "$program is built for MPICH, and this script starts ranks by Open MPI's mpirun: make MPI=ompi-c" ;;
esac
command -v mpirun >/dev/null || end 69 "no mpirun on $(hostname): install Open MPI, or load the cluster's"
# Open MPI 5 has other names for the options of its launcher, and joins stdout and stderr unless --output :raw is given.
case $(mpirun --version 2>/dev/null) in
*"(Open MPI) 5."*) mca=--prtemca of_release=(--output :raw --prtemca plm_ssh_agent "${agent[*]}" --prtemca plm_ssh_no_tree_spawn 1) ;;
*) mca=--mca of_release=(--mca plm_rsh_agent "${agent[*]}" --mca plm_rsh_no_tree_spawn 1) ;;
esac
found=$("$program" check "${words[@]}" data.train=- data.val=) || exit # a fault in the config shows here and now
run_dir=$(sed -n 's/^run folder  *//p' <<<"$found") last_step=$(sed -n 's/^last step  *\([0-9,]*\).*/\1/p' <<<"$found" | tr -d ,)
train
