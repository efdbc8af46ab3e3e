#!/usr/bin/env bash
# Tests `plan gpu=h100 kernels=true` in the emulated build, whose operations are those of a GPU. The limits for a step
# of GPT-2 124M equal those computed by hand, and the table adds up.
. "$(dirname "${BASH_SOURCE[0]}")/../run/lib/emu.sh"
needs BACKEND=emu all
plan() { build/emu/train_gpt plan configs/gpt2-124m.json batch.global_tokens=65536 gpu=h100 kernels=true "$@" 2>&1; }
plan json=true > "$WORK/plan.json"
expect "limits are those worked out by hand, the table adds up" python3 - "$WORK/plan.json" <<'PYTHON'
import json, sys
p = json.load(open(sys.argv[1]))
kernels = p["kernels"]
def limit(*ops): return sum(k["limit_ms"] for k in kernels if k["operation"] in ops)
def near(a, b, part): assert abs(a - b) <= part * b, (a, b)
assert abs(sum(k["ms"] for k in kernels) + p["gaps_ms"] - p["step_ms"]) < 1e-6 * p["step_ms"]
assert abs(p["tokens_per_s"] * p["step_ms"] / 1e3 - 65536) < 1e-3 and sum(k["launches"] for k in kernels) == p["launches"]
assert all(k["ms"] >= k["limit_ms"] and k["source"].startswith("est:") and not k["measured"] for k in kernels)
# 29.8 + ...: limits in ms, computed by hand, of products, attention, norms, classifier, embedding and optimizer.
# Fusions may reduce the sum, but never increase it.
near(sum(k["limit_ms"] for k in kernels if k["family"] == "products"), 29.8 + 15.1 + 13.3 + 6.8, 0.03)
near(limit("attention_forward"), 3.1, 0.03)
near(limit("layernorm_backward"), 3.3, 0.05)
near(limit("residual_layernorm_forward", "layernorm_forward"), 3.3, 0.03)
near(limit("classifier_forward_backward"), 4.4, 0.03)
near(sum(k["limit_ms"] for k in kernels if k["family"] == "gradient norm, optimizer"), 1.6, 0.1)
assert p["limit_ms"] < 104 and p["goal_tokens_per_s"] == 684000
PYTHON
text=$(plan)
expect "every figure is marked as an estimate" [ "$(grep -E '[0-9]\.[0-9]{3}' <<< "$text" | grep -vc '^estimate')" -eq 0 ]
expect "the goal is told" grep -q "goal of 684000 tokens/s is 95.8 ms" <<< "$text"
expect "another model has no such goal" [ "$(plan model.n_layer=6 | grep -c goal)" -eq 0 ]
expect "fp8: no cast of its own for attention's gradient" [ "$(plan precision=fp8 | grep -E '^estimate fp8_cast' | tee "$WORK/casts" | grep -c 'x 2304')" -eq 0 ]
expect "  but for the norms' and for attention's output" grep -q 'x 768' "$WORK/casts"
echo '{"source": "a card", "kernels": {"activation_forward": 1.5e12, "matmul": 9e14}}' > "$WORK/rates.json"
expect "measured rates are marked as such" [ "$(plan rates="$WORK/rates.json" | grep -cE '^measured matmul  ')" -gt 5 ]
expect "a card without rates: exit 64" eval 'plan gpu=a100 > /dev/null; [ $? -eq 64 ]'
expect "fp32: exit 64" eval 'plan precision=fp32 > /dev/null; [ $? -eq 64 ]'
exit $STATUS
