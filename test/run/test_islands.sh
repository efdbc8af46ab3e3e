# Training jobs (islands) that train one model through a server. They compute what an ordinary run computes, follow
# DiLoCo's rule, join and leave, and use every sample once.
. "$(dirname "$0")/lib/tiny.sh"
ROOT=$PWD; cd "$WORK" || exit 1
sed -i 's/"n_head": 3/"n_head": 2/; s/"checkpoint": {"every": 6, "keep": 3}/"checkpoint": {"every": 4, "keep": 100}/' tiny.json

# serves DIR WORDS...: starts a server in the background, sets $server, and waits until it listens on a free port.
serves() {
    local dir=$1; shift
    "$TRAIN" serve tiny.json run.dir="$dir" outer.server=127.0.0.1:$PORT outer.every=4 "$@" >> "$dir.out" 2>&1 & server=$!
    for _ in $(seq 100); do (: < /dev/tcp/127.0.0.1/$PORT) 2> /dev/null && return; kill -0 $server || return; sleep 0.05; done
}
# island RANKS DIR WORDS...: runs an island (training job) with RANKS ranks; one rank runs without a launcher.
island() {
    local ranks=$1 dir=$2; shift 2
    set -- "$WORK/tiny.json" run.dir="$dir" outer.server=127.0.0.1:$PORT outer.every=4 "$@"
    if [ "$ranks" -eq 1 ]; then exec "$TRAIN" "$@"; else run_ranks "$ranks" "$TRAIN" "$@"; fi
}
begin() { local out=$2.out; rm -f "$out"; (island "$@" > "$out" 2>&1) & job=$!; }

cat > numbers.py <<'PY'
"""weights A B TOLERANCE | rule RUN ETA MU | first RUN ZERO PLAIN ETA MU: in float64."""
import array, json, struct, sys

def tensors(path):
    data = open(path, "rb").read()
    header = struct.unpack("<Q", data[:8])[0]
    values = array.array("f", data[8 + header:])
    return list(values)

def x_of(run, step): return tensors(f"{run}/checkpoints/step_{step:08d}/model.safetensors")
def m_of(run, step):
    m_and_v = tensors(f"{run}/checkpoints/step_{step:08d}/optimizer.safetensors")
    return m_and_v[:len(m_and_v) // 2]
def near(got, wanted, tolerance):
    worst = max(abs(a - b) for a, b in zip(got, wanted, strict=True))
    assert worst <= tolerance, f"differs by {worst}"

def weights(a, b, tolerance): near(tensors(a), tensors(b), float(tolerance))

# rule(run, eta, mu): checks that between two rounds the server's weights x changed by Nesterov's rule: v = mu v + d, x
# -= eta (d + mu v). d is the mean of the deltas, v the momentum, eta the learning rate.
def rule(run, eta, mu):
    eta, mu = float(eta), float(mu)
    for step in (4, 8):
        x, then, v, v_then = x_of(run, step), x_of(run, step + 4), m_of(run, step), m_of(run, step + 4)
        d = [b - mu * a for a, b in zip(v, v_then)]
        assert sum(e * e for e in d) > 0
        near(then, [a - eta * (e + mu * b) for a, e, b in zip(x, d, v_then)], 1e-6)

# first(run, zero, plain, eta, mu): checks the first round of a single island (training job). The delta d is the first
# weights x, of run `zero`, minus the weights of the ordinary run `plain` after as many steps.
def first(run, zero, plain, eta, mu):
    eta, mu, x = float(eta), float(mu), x_of(zero, 1)
    d = [a - b for a, b in zip(x, x_of(plain, 4))]
    near(m_of(run, 4), d, 1e-6)
    near(x_of(run, 4), [a - eta * (1 + mu) * e for a, e in zip(x, d)], 1e-6)

globals()[sys.argv[1]](*sys.argv[2:])
PY
numbers() { python3 numbers.py "$@"; }
leases() { python3 "$ROOT/test/run/lib/leases.py" "$1"; }

# --- one island ------------------------------------------------------------------------------------------------------
train run.dir=plain checkpoint.every=4 > plain.out 2>&1
train run.dir=zero optimizer.learning_rate=1e-30 optimizer.weight_decay=0 run.stop_step=1 eval.every=0 > zero.out 2>&1
one_is_plain() {
    serves one_s outer.learning_rate=1 outer.momentum=0
    begin 1 one outer.learning_rate=1 outer.momentum=0
    ends $job 0 && same_losses one plain 1e-6 && same_evals one plain 1e-6 &&
        numbers weights one_s/checkpoints/step_00000012/model.safetensors plain/checkpoints/step_00000012/model.safetensors 1e-6 &&
        numbers weights one/checkpoints/step_00000012/optimizer.safetensors plain/checkpoints/step_00000012/optimizer.safetensors 1e-6
}
expect "one island with rate 1 and no momentum is the plain run" one_is_plain
kill $server 2> /dev/null; wait $server 2> /dev/null
late_island() {
    serves one_s outer.learning_rate=1 outer.momentum=0 outer.linger_minutes=5
    begin 1 late outer.patience_seconds=5
    ends $job 0 && cmp late/checkpoints/step_00000012/model.safetensors one_s/checkpoints/step_00000012/model.safetensors || return
    kill -TERM $server; ends $server 0
}
expect "an island that begins after the end has the last weights, exit 0" late_island

# --- two islands of different grids ----------------------------------------------------------------------------------
two_islands() {
    serves two_s outer.least_islands=2
    begin 2 two_a parallel.tensor=2; local a=$job
    begin 1 two_b; local b=$job
    ends $a 0 && ends $b 0 && numbers rule two_s 0.7 0.9 && leases two_s | grep -q '^288 samples, .* 0 before the last' &&
        [ "$(grep -c '"kind":"outer".*"islands":2' two_a/metrics.jsonl)" -eq 3 ]
}
expect "an island of two tensor ranks and one of one process, three rounds" two_islands
kill $server 2> /dev/null; wait $server 2> /dev/null
first_round() {
    serves first_s
    begin 2 first parallel.zero_stage=3 run.stop_step=6
    ends $job 75 && numbers first first_s zero plain 0.7 0.9 && grep -q '"is":"done","used":24' first_s/leases.jsonl || return
    begin 1 first # continues the island (training job) that was stopped in mid-round: two steps of its samples remain
    ends $job 0 && leases first_s | grep -q '^96 samples, .* 0 before the last'
}
expect "the first round is DiLoCo's, by float64; one that stops in mid-round sends what it has done" first_round
kill $server 2> /dev/null; wait $server 2> /dev/null
# fetched MOST RUN...: checks that an island (training job) received at most MOST bytes for each parameter in each round
# except its first. There must be two such rounds at least.
fetched() {
    local most=$1; shift
    awk -F '"received_bytes":' -v p=55944 -v most="$most" '
        FNR == 1 { n = 0 }
        /"outer"/ { split($2, b, ","); if (n++) { seen++; if (b[1] > most * p + 1000) { print b[1], "bytes"; bad = 1 } } }
        END { if (seen < 2) print seen + 0, "rounds"; exit bad || seen < 2 }' "${@/%//metrics.jsonl}"
}
nobody_waits() {
    local words="run.steps=40 eval.every=40 outer.wait=none outer.compress=int8 outer.momentum=0.3"
    serves none_s $words outer.least_islands=2
    begin 2 none_a $words; local a=$job
    begin 1 none_b $words; local b=$job
    ends $a 0 && ends $b 0 && leases none_s && fetched 1.01 none_a none_b &&
        values none_a eval loss | awk 'NR == 1 { a = $1 } END { exit !($1 < 0.8 * a) }'
}
expect "nobody waits, int8 both ways: each sample counts once, the loss falls" nobody_waits
kill $server 2> /dev/null; wait $server 2> /dev/null

# same_x ISLAND SERVER STEP: checks that the weights of the island (training job) equal the server's, bit for bit.
same_x() { cmp "$1/checkpoints/step_000000$3/model.safetensors" "$2/checkpoints/step_000000$3/model.safetensors"; }
changes_travel() { # COMPRESS BYTES RANKS STEPS [WORDS...]
    local name=change-$1-$# words="run.steps=$4 eval.every=$4 checkpoint.every=$4 outer.compress=$1 outer.momentum=0.3 ${*:5}"
    serves "$name" $words outer.least_islands=2
    begin "$3" "$name-a" $words parallel.zero_stage=2; local a=$job
    begin 1 "$name-b" $words outer.compress=none; local b=$job
    ends $a 0 && ends $b 0 && ends $server 0 && same_x "$name" "$name-a" "$4" && same_x "$name" "$name-b" "$4" &&
        fetched "$2" "$name-a" && ! fetched "$2" "$name-b" > "$WORK/out" &&
        values "$name-a" eval loss | awk 'NR == 1 { a = $1 } END { exit !($1 < 0.9 * a) }'
}
expect "int8 both ways: all hold the server's bits, one without outer.compress as well; the loss falls" changes_travel int8 1.01 1 40
expect "bf16 both ways, to an island of two ranks" changes_travel bf16 2 2 12
expect "int8 both ways, of gradients" changes_travel int8 1.02 1 40 outer.send=gradients outer.every=1

# --- coming and going ------------------------------------------------------------------------------------------------
LONG="run.steps=240 eval.every=0 checkpoint.every=40 outer.patience_seconds=20 outer.compress=int8"
come_and_go() {
    serves go_s $LONG
    begin 1 go_a $LONG; local a=$job
    says go_a.out 'round 2 is over' && strike STOP $a
    begin 1 go_b $LONG; local b=$job
    says go_s.out 'island 1 .* has joined' && kill -CONT $a
    says go_b.out 'joined .* as island 1: round [0-9]+ begins at step [0-9]+, with 2 islands' || return
    strike KILL $a; wait $a 2> /dev/null
    says go_s.out 'island 0 .* is lost' || return
    strike KILL $server; wait $server 2> /dev/null
    says go_b.out 'this job tries again for 20 s' || return
    serves go_s $LONG
    begin 1 go_a $LONG; a=$job
    touch go_b/STOP
    ends $b 75 && ends $a 0 && grep -q '"event":"join"' go_b/metrics.jsonl && leases go_s &&
        grep -q '"updates":' go_b/checkpoints/step_*/state.json
}
expect "one joins late, one is killed, the server is killed, one stops in order: each sample counts once" come_and_go
kill $server 2> /dev/null; wait $server 2> /dev/null

# --- what is refused -------------------------------------------------------------------------------------------------
refused() {
    PORT=$((PORT + 1))
    exits 77 "127.0.0.1:$PORT: .*the run is saved, and the same command joins again" island_now none outer.patience_seconds=1 || return
    serves bad_s
    exits 64 "127.0.0.1:$PORT: optimizer.beta2 is 0.9, and the server has 0.95" island_now bad optimizer.beta2=0.9 || return
    printf '%064d\n' 7 > other.key; chmod 600 other.key
    exits 64 "127.0.0.1:$PORT" island_now bad outer.key=other.key || return
    exits 64 "outer.key" island_now bad outer.key=nowhere.key
}
island_now() { (island 1 "$@"); }
expect "no server: saved, exit 77; another config, another key, no key: exit 64, with the address" refused
kill $server 2> /dev/null; wait $server 2> /dev/null
exit $STATUS
