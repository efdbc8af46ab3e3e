#!/usr/bin/env bash
# Checkpoints that earlier versions of the program wrote, test/golden/VERSION[-KIND]/. Each is verified and resumed, and
# continues with the losses of its own run. A new version of the format gets a new folder; old folders are never
# changed.
. "$(dirname "$0")/lib/tiny.sh"
for golden in test/golden/*/; do
    version=$(basename "$golden") run="$WORK/golden-$version"
    cp -r "$golden" "$run"
    before=$(cat "$run"/checkpoints/step_00000004/* | cksum)
    (cd "$run" && "$TRAIN" golden.json run.dir=. run.resume=must checkpoint.keep=9) > "$WORK/out"
    ok $? "$version: is resumed, and runs to its end"
    expect "$version: from step 4" grep -q "at step 4" "$WORK/out"
    values "$run" train loss > "$WORK/now"; values "$golden" train loss > "$WORK/then"
    expect "$version: with the losses it had then" near "$WORK/now" "$WORK/then" 2e-5
    expect "$version: and is left as it was" [ "$(cat "$run"/checkpoints/step_00000004/* | cksum)" = "$before" ]
done
exit $STATUS
