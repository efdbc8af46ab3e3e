#!/usr/bin/env bash
# Checkpoints that earlier versions of the program wrote, in test/golden/VERSION[-KIND]/. Each is verified and resumed,
# and continues with the losses of its own run. A new version of the format gets a new folder; old folders are never
# changed. A folder with server/ and island/ has the checkpoints of a server and of an island (a training job of that
# server).
. "$(dirname "$0")/lib/tiny.sh"
# resumes NAME RUN GOLDEN-RUN COMMAND...: checks that the command resumes RUN at step 4. The losses from there on must
# equal those in the metrics of GOLDEN-RUN.
resumes() {
    local name=$1 run=$2 golden=$3 before; shift 3
    before=$(cat "$run"/checkpoints/step_00000004/* | cksum)
    "$@" > "$WORK/out"
    ok $? "$name: is resumed, and runs to its end"
    expect "$name: from step 4" grep -q "at step 4" "$WORK/out"
    values "$run" train loss > "$WORK/now"; values "$golden" train loss > "$WORK/then"
    expect "$name: with the losses it had then" near "$WORK/now" "$WORK/then" 2e-5
    expect "$name: and is left as it was" [ "$(cat "$run"/checkpoints/step_00000004/* | cksum)" = "$before" ]
}
alone() { (cd "$1" && "$TRAIN" golden.json run.dir=. run.resume=must checkpoint.keep=9); }
# with_server FOLDER: resumes the server in FOLDER/server and its island (training job) in FOLDER/island. Succeeds if
# both end with 0.
with_server() {
    local server island words="golden.json run.resume=must checkpoint.keep=9 outer.server=127.0.0.1:$((20000 + $$ % 12000))"
    cd "$1" && chmod 600 outer.key || return
    "$TRAIN" serve $words run.dir=server > server.out 2>&1 & server=$!
    for _ in $(seq 400); do grep -q "^serving" server.out && break; sleep 0.05; done
    "$TRAIN" $words; island=$?
    wait $server || { tail -n 3 server.out; return 1; }
    cd - > /dev/null && return $island
}
for golden in test/golden/*/; do
    version=$(basename "$golden") run="$WORK/golden-$version"
    cp -r "$golden" "$run"
    if [ -d "$golden/server" ]; then
        resumes "$version" "$run/island" "$golden/island" with_server "$run"
        expect "$version: the server as well, from step 4" grep -q "at step 4" "$run/server.out"
        expect "$version: with each sample leased once" python3 - "$run/server/leases.jsonl" <<'PY'
import json, sys
used = [s for l in map(json.loads, open(sys.argv[1])) if l["is"] == "done" for s in range(l["first"], l["first"] + l["used"])]
assert sorted(used) == list(range(64)), used
PY
    else
        resumes "$version" "$run" "$golden" alone "$run"
    fi
done
exit $STATUS
