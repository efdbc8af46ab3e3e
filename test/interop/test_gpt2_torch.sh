# gpt2_torch.py, an independent reader of the last checkpoint, computes the same logits as the program (1e-4 in fp32).
. "$(dirname "$0")/../run/lib/tiny.sh"
PYTHON=${PYTHON:-/usr/bin/python3}
if ! "$PYTHON" -c 'import torch' 2> /dev/null; then echo "skip python3-torch is not installed"; exit 0; fi

train run.dir="$WORK/run" optimizer.learning_rate=5e-3 > /dev/null 2>&1; ok $? "train 12 steps"
TOKENS="116 104 101 32 113 117 105 99 107 32 98 114 111 119 110 32 102 111 120 0 255 46 10 32 97 32 108 97 122 121 32 100 111 103"
compare() { # NAME FOLDER
    # shellcheck disable=SC2086
    "$B/test/run/dump_logits" "$2" $TOKENS > "$WORK/ours" && "$PYTHON" test/interop/gpt2_torch.py "$2" $TOKENS > "$WORK/theirs" &&
        awk -f test/interop/compare_logits.awk "$WORK/ours" "$WORK/theirs"
    ok $? "$1"
}
compare "logits of the last checkpoint" "$WORK/run/checkpoints/step_00000012"
train run.dir="$WORK/bf16" precision=bf16 > /dev/null 2>&1; ok $? "train 12 steps in bf16"
compare "logits of a bf16 run's masters" "$WORK/bf16/checkpoints/step_00000012"
for kind in relu2 silu gelu; do
    train run.dir="$WORK/$kind" optimizer.learning_rate=5e-3 model.activation=$kind > /dev/null 2>&1; ok $? "train 12 steps with $kind"
    compare "logits of a model with $kind" "$WORK/$kind/checkpoints/step_00000012"
done
train run.dir="$WORK/again" run.steps=1 optimizer.learning_rate=0 model.init_from="$WORK/run/checkpoints/step_00000012" > /dev/null 2>&1
ok $? "start from that checkpoint's weights"
expect "init_from changes no bit" cmp "$WORK/run/checkpoints/step_00000012/model.safetensors" "$WORK/again/checkpoints/step_00000001/model.safetensors"
exit $STATUS
