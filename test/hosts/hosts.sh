# hosts.sh - two simulated hosts on one machine, for root on Debian 12. Each is a network namespace with its own host
# name and /dev/shm. A cable (a veth pair) joins them. It can be cut, slowed down, or replaced by a thin link. mpirun
# starts on hostA and reaches hostB by a launcher script instead of ssh. Sourced; needs the functions of tiny.sh.
# Nothing outside the namespaces is changed, and they are removed when the test ends in any way.
. "$(dirname "${BASH_SOURCE[0]}")/../run/lib/tiny.sh"
if [ "$(id -u)" != 0 ]; then echo "skip two hosts: network namespaces need root"; exit 0; fi
if ! command -v ip > /dev/null || ! command -v tc > /dev/null; then
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends iproute2 > /dev/null 2>&1 || { echo "skip two hosts: no iproute2"; exit 0; }
fi
A=train-gpt-$$-a B_=train-gpt-$$-b
tear_down() {
    local n pid
    [ -z "${THIN_LINK:-}" ] || kill "$THIN_LINK" 2> /dev/null
    for n in "$A" "$B_"; do
        for pid in $(ip netns pids "$n" 2> /dev/null); do kill -9 "$pid" 2> /dev/null; done
        ip netns del "$n" 2> /dev/null
    done
    rm -rf "$WORK"
}
trap tear_down EXIT
trap 'exit 130' INT TERM
ip netns add "$A" && ip netns add "$B_" && ip link add cable netns "$A" type veth peer name cable netns "$B_" || { echo "skip two hosts: this machine forbids network namespaces"; exit 0; }
ip -n "$A" addr add 10.77.0.1/24 dev cable; ip -n "$B_" addr add 10.77.0.2/24 dev cable
for n in "$A" "$B_"; do
    ip -n "$n" link set lo up; ip -n "$n" link set cable up
    # without this mpirun waits a quarter of an hour for a host that is gone
    ip netns exec "$n" sh -c 'echo 4 > /proc/sys/net/ipv4/tcp_retries2'
done

# on_host HOST COMMAND...: replaces the process by the command, run on HOST. $WORK/shm/HOST is the host's shared memory,
# which stays when its processes have ended.
mkdir -p "$WORK/shm/hostA" "$WORK/shm/hostB"
on_host() {
    local host=$1 netns=$A; shift
    [ "$host" = hostA ] || netns=$B_
    exec ip netns exec "$netns" unshare -u -m sh -c 'hostname "$1"; mount --bind "$2" /dev/shm; shift 2; exec "$@"' _ "$host" "$WORK/shm/$host" "$@"
}
# agent HOST COMMAND...: replaces ssh. If $WORK/private exists, hostB sees an empty folder in its place.
cat > "$WORK/agent" <<SH
#!/bin/sh
host=\$1; shift
exec ip netns exec $B_ unshare -u -m sh -c "hostname \$host; mount --bind $WORK/shm/\$host /dev/shm; if [ -d $WORK/private ]; then mount -t tmpfs none $WORK/private; fi; \$*"
SH
# keep COMMAND...: runs a rank and stores its stderr and exit code in the folder $KEEP. Through mpirun neither arrives
# once the cable is cut.
cat > "$WORK/keep" <<'SH'
#!/bin/sh
"$@" 2> "$KEEP/err.$OMPI_COMM_WORLD_RANK"; code=$?
cat "$KEEP/err.$OMPI_COMM_WORLD_RANK" >&2
echo $code > "$KEEP/code.$OMPI_COMM_WORLD_RANK"
exit $code
SH
chmod +x "$WORK/agent" "$WORK/keep"

# cable up|down: connects or cuts the cable. After `up` it waits until hostB answers again.
cable() {
    ip -n "$A" link set cable "$1"
    [ "$1" = down ] || for _ in $(seq 100); do
        ip netns exec "$A" bash -c 'echo > /dev/tcp/10.77.0.2/9' 2>&1 | grep -q refused && return
        sleep 0.1
    done
}
# slow_cable: adds delay and loss of packets to the cable, by netem. If the kernel has no netem, by a narrow link whose
# short queue drops packets.
slow_cable() {
    local n how="netem delay 8ms loss 1%"
    ip netns exec "$A" tc qdisc add dev cable root $how 2> /dev/null || how="tbf rate 20mbit burst 16kbit latency 10ms"
    for n in "$A" "$B_"; do ip netns exec "$n" tc qdisc replace dev cable root $how || return 1; done
    echo "# $how"
}
# thin_cable [MBIT_PER_S DELAY_MS]: replaces the veth pair by a link of the same name and addresses, of 20 Mbit/s and 10
# ms each way if not given. The link is thin_link.c, because many kernels have no netem, and tbf has no delay.
thin_cable() {
    local n
    ip -n "$A" link del cable
    "${TRAIN%/*}/test/hosts/thin_link" "$A" "$B_" cable "${1:-20}" "${2:-10}" > "$WORK/thin_link" 2>&1 & THIN_LINK=$!
    until grep -qs ready "$WORK/thin_link"; do kill -0 $THIN_LINK || { cat "$WORK/thin_link"; return 1; }; sleep 0.05; done
    ip -n "$A" addr add 10.77.0.1/24 dev cable; ip -n "$B_" addr add 10.77.0.2/24 dev cable
    for n in "$A" "$B_"; do ip -n "$n" link set cable up; done
}
# thin_bytes: prints the bytes that the link has carried from hostA and from hostB, headers included.
thin_bytes() {
    local lines; lines=$(wc -l < "$WORK/thin_link")
    kill -USR1 "$THIN_LINK"
    until [ "$(wc -l < "$WORK/thin_link")" -gt "$lines" ]; do sleep 0.05; done
    tail -n 1 "$WORK/thin_link"
}
quick_cable() { local n; for n in "$A" "$B_"; do ip netns exec "$n" tc qdisc del dev cable root; done; }
at=$EPOCHREALTIME
train_ranks 2 run.dir="$WORK/first" > /dev/null && rm -rf "$WORK/first"
PATIENCE=$(awk -v a="$at" -v b="$EPOCHREALTIME" 'BEGIN { p = (b - a) / 1.2; printf "%.2f", (p > 1 ? p : 1) }')
ranks_left() { pgrep -f "^$TRAIN $WORK/tiny.json" > /dev/null; }
# two_hosts RANKS_EACH [OPTION...]: trains with RANKS_EACH ranks on each host. $MPIRUN has more options for mpirun;
# $CONFIG is another config than tiny.json. The ranks' stderr is in $KEEP.
two_hosts() {
    local each=$1; shift
    rm -rf "$WORK/kept"; mkdir -p "$WORK/kept"; export KEEP=$WORK/kept
    (on_host hostA timeout -k 5 90 mpirun $MPIRUN $OUTPUT_OPTIONS $LAUNCHER_MCA ${REMOTE_SHELL}_agent "$WORK/agent" $LAUNCHER_MCA ${REMOTE_SHELL}_no_tree_spawn 1 \
        -x KEEP --bind-to none -host "hostA:$each,hostB:$each" "$WORK/keep" "$TRAIN" "${CONFIG:-$WORK/tiny.json}" "$@")
}
# begin RANKS_EACH [OPTION...]: runs two_hosts in the background and waits for 20 lines of metrics. The process id is in
# $JOB.
begin() {
    two_hosts "$@" > "$WORK/out" 2> "$WORK/err" &
    JOB=$!
    while kill -0 $JOB 2> /dev/null && [ "$(cat "$WORK/run/metrics.jsonl" 2> /dev/null | wc -l)" -lt 20 ]; do sleep 0.1; done
}
# gone SECONDS: checks that all ranks end within SECONDS times $PATIENCE, which is above 1 on a slow machine. Sets $TOOK
# to the seconds until they had ended.
gone() {
    local at=$EPOCHREALTIME
    while ranks_left && awk -v a="$at" -v b="$EPOCHREALTIME" -v s="$1" -v p="$PATIENCE" 'BEGIN { exit b - a > s * p + 20 }'; do sleep 0.1; done
    TOOK=$(awk -v a="$at" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
    ! ranks_left && awk -v t="$TOOK" -v s="$1" -v p="$PATIENCE" 'BEGIN { exit t > s * p }'
}
# fails JOB: checks that the job ends with a failure. Open MPI 5's mpirun ends with 0 when it loses a host, so then rank
# 0 on hostA must have failed.
fails() {
    if ! wait "$1"; then return; fi
    [ $LAUNCHER_MCA = --prtemca ] || return
    for _ in $(seq 50); do [ -s "$WORK/kept/code.0" ] && break; sleep 0.1; done
    [ "$(cat "$WORK/kept/code.0")" -ne 0 ]
}
# ended STATUS: checks that mpirun's exit code matches the pattern STATUS.
ended() { wait $JOB; local got=$?; [[ $got =~ ^$1$ ]] || { echo "mpirun's exit code: $got"; tail -n 12 "$WORK/err"; return 1; }; }
