# cluster.sh - a private SLURM of one node, this machine, in a scratch folder: its own slurmctld and slurmd on free ports of the loopback. Sourced.
#
#   cluster_start     needs root and Debian's slurmctld, slurmd, slurm-client; SLURM's commands then talk to it (SLURM_CONF)
#   cluster_stop      ends its jobs, its daemons and processes left by a job; safe to call at any time
cluster=''

free_ports() { # two in a row that nobody listens on
    local port
    for port in $(seq $((20000 + $$ % 4000 * 2)) 2 30000); do
        if ! { : <>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null && ! { : <>"/dev/tcp/127.0.0.1/$((port + 1))"; } 2>/dev/null; then
            echo "$port"
            return
        fi
    done
}

cluster_start() {
    local node port
    node=$(hostname -s) port=$(free_ports)
    cluster=$(mktemp -d) || return
    mkdir "$cluster/state" "$cluster/spool"
    # No munge, no cgroups, no database; more processors than there are, so that jobs never wait for each other; 5 s from TERM to KILL.
    cat >"$cluster/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
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
SlurmdSpoolDir=$cluster/spool
SlurmctldPidFile=$cluster/slurmctld.pid
SlurmdPidFile=$cluster/slurmd.pid
SlurmctldLogFile=$cluster/slurmctld.log
SlurmdLogFile=$cluster/slurmd.log
NodeName=$node NodeAddr=127.0.0.1 CPUs=16 State=UNKNOWN
PartitionName=test Nodes=$node Default=YES MaxTime=INFINITE State=UP
CONF
    export SLURM_CONF=$cluster/slurm.conf
    slurmctld -f "$SLURM_CONF" >"$cluster/start.log" 2>&1 && slurmd -f "$SLURM_CONF" >>"$cluster/start.log" 2>&1 || return
    for _ in $(seq 100); do
        [ "$(sinfo -h -o %T 2>/dev/null)" = idle ] && return
        sleep 0.2
    done
    return 1
}

# A job's processes carry SLURM_CONF and a job id in their environment; this shell has the first alone.
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
    for _ in $(seq 100); do # KillWait, and some
        [ -z "$(squeue -h 2>/dev/null)" ] && break
        sleep 0.1
    done
    for daemon in slurmd slurmctld; do
        pids=$(cat "$cluster/$daemon.pid" 2>/dev/null) || continue
        kill "$pids"
        for _ in $(seq 100); do kill -0 "$pids" 2>/dev/null || break; sleep 0.1; done
        kill -9 "$pids" 2>/dev/null
    done
    pids=$(cluster_processes)
    [ -z "$pids" ] || xargs kill -9 <<<"$pids" 2>/dev/null
    rm -rf "$cluster"
    cluster=''
}
