# cluster.sh - a private SLURM of one node, this machine, in a scratch folder: its own slurmctld and slurmd on free ports of the loopback. Sourced.
#
#   cluster_start [NODE...]   with names: that many nodes, all of them this machine, a slurmd each. Needs root and Debian's slurmctld, slurmd, slurm-client; SLURM's commands then talk to it (SLURM_CONF)
#   cluster_stop              ends its jobs, its daemons and processes left by a job; safe to call at any time
cluster=''

is_free() { ! { : <>"/dev/tcp/127.0.0.1/$1"; } 2>/dev/null; }
free_ports() { # free_ports: prints the first of four consecutive ports on which nothing listens.
    local port
    for port in $(seq $((20000 + $$ % 2000 * 4)) 4 30000); do
        if is_free "$port" && is_free $((port + 1)) && is_free $((port + 2)) && is_free $((port + 3)); then
            echo "$port"
            return
        fi
    done
}

cluster_start() {
    local host port name at
    host=$(hostname -s) port=$(free_ports)
    [ $# -gt 0 ] || set -- "$host"
    cluster=$(mktemp -d) || return
    mkdir "$cluster/state"
    # This SLURM needs no munge, no cgroups and no database. Its configuration names more processors than the machine
    # has, so that jobs never wait for each other. KillWait: a job gets KILL 5 s after TERM.
    cat >"$cluster/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1
SlurmdParameters=config_overrides
KillWait=5
StateSaveLocation=$cluster/state
SlurmdSpoolDir=$cluster/spool.%n
SlurmctldPidFile=$cluster/slurmctld.pid
SlurmdPidFile=$cluster/slurmd.%n.pid
SlurmctldLogFile=$cluster/slurmctld.log
SlurmdLogFile=$cluster/slurmd.%n.log
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
    if [ $# -gt 1 ]; then echo "SlurmdTimeout=10" >>"$cluster/slurm.conf"; fi # a lost node is known to be down after 10 s, not 300
    at=$port
    for name in "$@"; do
        echo "NodeName=$name NodeHostname=$host NodeAddr=127.0.0.1 Port=$((at += 1)) CPUs=16 State=UNKNOWN" >>"$cluster/slurm.conf"
    done
    export SLURM_CONF=$cluster/slurm.conf
    slurmctld -f "$SLURM_CONF" >"$cluster/start.log" 2>&1 || return
    for name in "$@"; do
        mkdir "$cluster/spool.$name" && slurmd -N "$name" -f "$SLURM_CONF" >>"$cluster/start.log" 2>&1 || return
    done
    for _ in $(seq 100); do
        [ "$(sinfo -h -o %T 2>/dev/null)" = idle ] && return
        sleep 0.2
    done
    return 1
}

# cluster_lose NODE: simulates a power failure of the node. Kills its slurmd and all processes of jobs on it.
cluster_lose() { # NODE
    local pid pids=''
    kill -9 "$(cat "$cluster/slurmd.$1.pid")"
    for pid in $(cluster_processes); do
        if tr '\0' '\n' <"/proc/$pid/environ" | grep -qx "SLURMD_NODENAME=$1"; then pids+=" $pid"; fi
    done 2>/dev/null
    kill -9 $pids 2>/dev/null
}

# cluster_processes: lists the processes of all jobs in this SLURM. They have both SLURM_CONF and a job id in their
# environment. This script's own shell has only SLURM_CONF.
cluster_processes() {
    local environment
    for environment in /proc/[0-9]*/environ; do
        if { grep -qzx "SLURM_CONF=$cluster/slurm.conf" "$environment" && grep -qz '^SLURM_JOB_ID=' "$environment"; } 2>/dev/null; then
            environment=${environment#/proc/}
            echo "${environment%/environ}"
        fi
    done
}

cluster_stop() {
    local daemon pids
    [ -n "$cluster" ] || return 0
    scancel --user=root 2>/dev/null
    for _ in $(seq 100); do # waits at most 10 s, longer than KillWait
        [ -z "$(squeue -h 2>/dev/null)" ] && break
        sleep 0.1
    done
    for daemon in "$cluster"/slurmd.*.pid "$cluster/slurmctld.pid"; do
        pids=$(cat "$daemon" 2>/dev/null) || continue
        kill "$pids" 2>/dev/null
        for _ in $(seq 100); do kill -0 "$pids" 2>/dev/null || break; sleep 0.1; done
        kill -9 "$pids" 2>/dev/null
    done
    pids=$(cluster_processes)
    [ -z "$pids" ] || xargs kill -9 <<<"$pids" 2>/dev/null
    rm -rf "$cluster"
    cluster=''
}
