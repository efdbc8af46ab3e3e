# Islands that stream (outer.stream): fragments are sent during training, no step is lost by it, and the others continue
# without an island that leaves.
. "$(dirname "$0")/lib/tiny.sh"
FAKE=$PWD/$B/test/run/outer/fake_island
cd "$WORK" || exit 1
PORT=$((20000 + $$ % 12000))
sed -i 's/"n_head": 3/"n_head": 2/; s/"checkpoint": {"every": 6, "keep": 3}/"checkpoint": {"every": 4, "keep": 100}/' tiny.json

# Rounds of four steps have three fragments. serves DIR WORDS...: starts a server in the background, $server, and waits
# until it listens.
serves() {
    local dir=$1; shift
    PORT=$((PORT + 1))
    "$TRAIN" serve tiny.json run.dir="$dir" outer.server=127.0.0.1:$PORT outer.every=4 outer.stream=true "$@" >> "$dir.out" 2>&1 & server=$!
    for _ in $(seq 1200); do (: < /dev/tcp/127.0.0.1/$PORT) 2> /dev/null && return; kill -0 $server || return; sleep 0.05; done
}
served() { wait $server; local status=$?; [ $status -eq "${1:-0}" ] || { echo "the server: exit $status"; return 1; }; }
island() {
    local ranks=$1 dir=$2; shift 2
    set -- "$WORK/tiny.json" run.dir="$dir" outer.server=127.0.0.1:$PORT outer.every=4 outer.stream=true "$@"
    if [ "$ranks" -eq 1 ]; then exec "$TRAIN" "$@"; else run_ranks "$ranks" "$TRAIN" "$@"; fi
}
begin() { local out=$2.out; rm -f "$out"; (island "$@" > "$out" 2>&1) & job=$!; }
says() { for _ in $(seq 1200); do grep -qsE "$2" "$1" && return; sleep 0.05; done; echo "$1 has no line like '$2'"; tail -n 5 "$1"; return 1; }
ends() { wait "$1"; local status=$?; [ $status -eq "$2" ] || { echo "exit $status, expected $2"; return 1; }; }
# over: ends what a failed test has left running.
over() { local left; left=$(jobs -p); [ -z "$left" ] || kill -9 $left 2> /dev/null; wait 2> /dev/null; }
last() { echo "$1/checkpoints/step_00000012/model.safetensors"; }

cat > numbers.py <<'PY'
"""weights A B TOLERANCE | rule RUN STEP... | leases RUN SAMPLES | bytes RUN MODEL EACH MOST | under_way ISLAND SERVER: in float64."""
import array, json, struct, sys

def tensors(path):
    data = open(path, "rb").read()
    return list(array.array("f", data[8 + struct.unpack("<Q", data[:8])[0]:]))
def near(got, wanted, tolerance):
    worst = max(abs(a - b) for a, b in zip(got, wanted, strict=True))
    assert worst <= tolerance, f"differs by {worst}"
def weights(a, b, tolerance): near(tensors(a), tensors(b), float(tolerance))

# Each fragment changes once in a round, with Nesterov's momentum: v = mu v + d; x -= eta (d + mu v).
def rule(run, *steps):
    def of(step, name): return tensors(f"{run}/checkpoints/step_{int(step):08d}/{name}.safetensors")
    for before, after in zip(steps, steps[1:]):
        x, then, v, v_then = of(before, "model"), of(after, "model"), of(before, "optimizer"), of(after, "optimizer")
        d = [b - 0.9 * a for a, b in zip(v[:len(x)], v_then)]
        assert all(any(d[at:at + 4096]) for at in range(0, len(d), 4096)), "a fragment had no turn"
        near(then, [a - 0.7 * (e + 0.9 * b) for a, e, b in zip(x, d, v_then)], 1e-6)

# Each sample is in one finished lease.
def leases(run, samples):
    used = {}
    for line in open(f"{run}/leases.jsonl"):
        l = json.loads(line)
        if l["is"] == "returned": used.pop(l["lease"], None)
        if l["is"] == "done": used[l["lease"]] = range(l["first"], l["first"] + l["used"])
    got = sorted(s for lease in used.values() for s in lease)
    assert got == list(range(int(samples))), f"{len(got)} samples, the last is {got[-1]}"

# Bytes of a round up and down: `each` for a parameter plus the messages around them, at most MOST times that. In the
# last round also the steps that were not yet sent, and all of x.
def bytes(run, model, each, most):
    each, most, elems = int(each), float(most), len(tensors(model))
    rounds = [json.loads(line) for line in open(f"{run}/metrics.jsonl") if '"outer"' in line]
    assert len(rounds) == 3
    for l in rounds:
        assert l["fragments"] == 3 and l["waited_ms"] >= 0
        for way, rest in ("sent_bytes", each), ("received_bytes", 4):
            assert 1 <= l[way] / elems / (each + (l["round"] == 3) * rest) < most, (l, elems)

# At the end of a round, an island's masters contain the steps that were not yet sent. They are small.
def under_way(island, server):
    a, b = tensors(island), tensors(server)
    near(a, b, 0.1)
    assert any(map(float.__ne__, a, b)), "no step is under way"

globals()[sys.argv[1]](*sys.argv[2:])
PY
numbers() { python3 numbers.py "$@"; }

# --- one island is a plain run ---------------------------------------------------------------------------------------
AVERAGE="outer.learning_rate=1 outer.momentum=0"
train run.dir=plain checkpoint.every=4 > plain.out 2>&1
is_plain() { same_losses "$1" plain "$2" && same_evals "$1" plain "$2" && numbers weights "$(last "$1_s")" "$(last plain)" 1e-6; }
one_is_plain() {
    serves one_s $AVERAGE
    begin 1 one $AVERAGE
    ends $job 0 && served && is_plain one 0 && numbers bytes one "$(last plain)" 4 1.03
}
expect "one island with rate 1 and no momentum is the plain run to the bit; bytes as without streams" one_is_plain; over
ranks_are_plain() {
    serves two_s $AVERAGE
    begin 2 two parallel.tensor=2 $AVERAGE
    ends $job 0 && served && is_plain two 1e-5 || return
    serves zero_s $AVERAGE
    begin 2 zero parallel.zero_stage=3 $AVERAGE
    ends $job 0 && served && is_plain zero 1e-5
}
expect "so is one of two tensor ranks, and one of two ranks in ZeRO stage 3" ranks_are_plain; over

# --- two islands -----------------------------------------------------------------------------------------------------
two_islands() { # NAME WORDS...
    local name=$1; shift
    serves "$name"_s outer.least_islands=2 "$@"
    begin 1 "$name"_a "$@"; local a=$job
    says "$name"_s.out 'island 0 .* has joined' || return
    begin 1 "$name"_b "$@"; local b=$job
    ends $a 0 && ends $b 0 && served
}
repeats() {
    two_islands x parallel.deterministic=true && two_islands y parallel.deterministic=true && cmp "$(last x_s)" "$(last y_s)" &&
        cmp x_s/checkpoints/step_00000012/optimizer.safetensors y_s/checkpoints/step_00000012/optimizer.safetensors &&
        numbers rule x_s 4 8 && numbers leases x_s 288 &&
        numbers under_way {x_a,x_s}/checkpoints/step_00000004/model.safetensors && grep -q '"kind":"outer".*"islands":2' x_a/metrics.jsonl
}
expect "two islands, the rule in float64; with parallel.deterministic again the same bits" repeats; over
# What rounding takes from a fragment, up or down, is added the next time it is sent, so the plain run is close. With a
# base that is one delta off, the distance is 40 times as large.
compressed_is_near() { # RANKS NAME COMPRESS TOLERANCE WORDS...
    local ranks=$1 name=$2 compress=$3 far=$4; shift 4
    serves "$name"_s $AVERAGE outer.compress=$compress
    begin "$ranks" "$name" $AVERAGE outer.compress=$compress "$@"
    ends $job 0 && served && same_losses "$name" plain $far && same_evals "$name" plain $far
}
both_ways() {
    compressed_is_near 1 bf16 bf16 1e-4 && numbers bytes bf16 "$(last plain)" 2 1.06 &&
        compressed_is_near 2 bf16_two bf16 1e-4 parallel.tensor=2 && compressed_is_near 2 bf16_zero bf16 1e-4 parallel.zero_stage=3 &&
        compressed_is_near 1 int8 int8 1e-3 && numbers bytes int8 "$(last plain)" 1 1.12
}
expect "one island with outer.compress is near the plain run on any grid, with 2 bytes or 1 both ways" both_ways; over
mixed() {
    two_islands z outer.compress=int8 && values z_a eval loss | awk 'NR == 1 { a = $1 } END { exit !($1 < a) }' || return
    serves mixed_s $AVERAGE outer.compress=bf16
    begin 1 mixed $AVERAGE
    ends $job 0 && served && same_losses mixed plain 1e-4 || return
    serves plain_s $AVERAGE
    begin 1 other $AVERAGE outer.compress=bf16
    ends $job 0 && served && same_losses other plain 1e-4
}
expect "two islands with int8: the loss falls; an island or a server alone compresses" mixed; over

# --- under compute ---------------------------------------------------------------------------------------------------
# The first turn is at step 100. While the server hangs the island sends it, and trains on to the second one.
trains_on() {
    local words="run.steps=1500 outer.every=1500 eval.every=0 checkpoint.every=0 outer.patience_seconds=600" status
    serves busy_s $words
    begin 1 busy $words
    says busy.out 'joined ' && strike STOP $job && strike STOP $server && kill -CONT $job && comes_to busy 101; status=$?
    kill -9 $job $server; wait $job $server 2> /dev/null
    return $status
}
comes_to() { for _ in $(seq 1200); do [ "$(values "$1" train step 2> /dev/null | tail -n 1)" -ge "$2" ] 2> /dev/null && return; sleep 0.05; done; echo "$1 has not come to step $2"; return 1; }
expect "an island trains on while a fragment is under way" trains_on; over

# --- coming and going ------------------------------------------------------------------------------------------------
LONG="run.steps=160 eval.every=0 checkpoint.every=40 outer.patience_seconds=60"
come_and_go() {
    serves go_s $LONG
    begin 1 go_a $LONG; local a=$job
    says go_a.out 'round 2 is over' && strike STOP $a
    begin 1 go_b $LONG; local b=$job
    says go_s.out 'island 1 .* has joined' && kill -CONT $a
    says go_b.out 'joined .* with 2 islands' || return
    strike KILL $a; wait $a 2> /dev/null
    says go_s.out 'island 0 .* is lost: its samples go back' || return
    strike KILL $server; wait $server 2> /dev/null
    says go_b.out 'this island tries again for 60 s' || return
    PORT=$((PORT - 1)) # serves: the same again
    serves go_s $LONG
    begin 1 go_a $LONG run.stop_step=120; a=$job # in mid-round where it comes in; leaves at a round's end
    ends $a 75 && ends $b 0 && served && numbers leases go_s "$(sed -n 's/.*"kind":"outer".*"tokens":\([0-9]*\).*/\1/p' go_s/metrics.jsonl | tail -n 1 | awk '{ print $1 / 40 }')"
}
expect "one is killed in mid-round, then the server; one leaves: the other goes on, each sample counts once" come_and_go; over
leave_and_back() {
    train run.dir=six run.stop_step=6 > six.out 2>&1
    serves leave_s $AVERAGE
    begin 1 leave run.stop_step=6 $AVERAGE
    ends $job 75 || return
    begin 1 leave $AVERAGE # the two steps that are left of that lease
    ends $job 0 && served && numbers leases leave_s 96 &&
        numbers weights leave_s/checkpoints/step_00000008/model.safetensors six/checkpoints/step_00000006/model.safetensors 1e-6
}
expect "one stops in mid-round: its steps count, and the same command goes on" leave_and_back; over
leave_compressed() {
    serves left_s $AVERAGE outer.compress=bf16
    begin 1 left run.stop_step=6 $AVERAGE outer.compress=bf16
    ends $job 75 || return
    begin 1 left $AVERAGE outer.compress=bf16
    ends $job 0 && served &&
        numbers weights {left_s/checkpoints/step_00000008,six/checkpoints/step_00000006}/model.safetensors 3e-5
}
expect "with outer.compress its last steps are in x when nobody is left to follow it" leave_compressed; over

# --- memory, and what is refused -------------------------------------------------------------------------------------
# The new x of three fragments, each rounded up to 4 MiB, and 4 MiB for masters on their way.
planned() { "$TRAIN" plan tiny.json outer.server=a:1 outer.every=4 outer.stream="$1" | sed -n 's/.*for outer.server *\([0-9.]*\) MiB.*/\1/p'; }
plan_counts() { echo "$(planned false) $(planned true)" | awk '{ d = $2 - $1 - 16 } END { exit !(NF == 2 && d * d < 0.04) }'; }
expect "plan counts a fragment's memory" plan_counts

fake() { local out=$1; shift; exec "$FAKE" tiny.json outer.server=127.0.0.1:$PORT outer.every=6 outer.stream=true id=00000000000000aa "$@" > "$out" 2>&1; }
fails() { # fails CODE PATTERN BAD: checks that an island that sends this is refused
    (fake "$3.out" bad="$3"); local status=$?
    [ $status -eq "$1" ] && grep -q "refused $1 .*$2" "$3.out" || { echo "exit $status"; cat "$3.out"; return 1; }
}
refused() {
    serves bad_s outer.every=6
    fails 76 'the delta of round 0 is not finite' nan && fails 77 'sent fragment 3 in round 0, and it is the turn of 0' late &&
        fails 77 'sent fragment 3 in round 0, and it is the turn of 0' turn && fails 77 'elements of a fragment' short &&
        exits 64 "outer.stream is false, and the server has true" island_now bad outer.stream=false &&
        exits 64 'outer.wait "none" with outer.stream' train outer.stream=true outer.wait=none || return
    (fake good.out) & local good=$!
    says good.out 'turned 0 round 0 islands 1' && says good.out '^x 0 .*' || return
    for _ in $(seq 1200); do [ "$(grep -c '^x 0' good.out)" -eq 2 ] && break; sleep 0.05; done
    strike KILL $good; wait $good 2> /dev/null
    begin 1 after outer.every=6 # the round begins again
    ends $job 0 && served &&
        grep '^x 0' good.out | awk '{ a[NR] = $3; b[NR] = $4 } END { d = a[1] - a[2] - 0.7 * 1.9 * 0.01; exit !(d * d < 1e-12 && b[1] == b[2]) }'
}
island_now() { (island 1 "$@"); }
expect "bad fragments and configs are refused by name; a good one changes its range alone, and its island may die" refused; over
exit $STATUS
