# model.arch qwen3-moe end to end: experts are balanced by a bias, on every axis of the grid. Also their shares in the
# metrics, a collapse to few experts, and what is refused.
KIND="model.arch=qwen3-moe model.n_embd=64 model.n_head=4 model.n_kv_head=2 model.head_dim=24
      moe.experts=8 moe.top_k=2 moe.n_inner=24 moe.balance=bias moe.balance_rate=0.01"
CLASS=Qwen3MoeForCausalLM AXIS=replicas STILL=moe.balance_rate=0
NAME='"model.layers.1.mlp.experts.7.down_proj.weight":{"dtype":"F32","shape":[64,24]'
. "$(dirname "${BASH_SOURCE[0]}")/lib/kind.sh"
expect "plan names it" plan_says 'qwen3-moe, 2 heads of keys, 2 of 8 experts of width 24, 2 layers, 4 heads of 24'
expect "plan counts it" plan_says 'parameters   144816'
# FLOPs per token are 6 P + 6 L Q T. P is the number of parameters without the embedding and with 2 of 8 experts:
# 144,816 - 16,384 - 2 x 6 x 4,608. The attention has L = 2 layers, Q = 96, the width of all heads, and T = 40
# positions.
expect "plan counts the FLOPs of a token's experts alone" plan_says 'compute +485 kFLOP a token'

# shares RUN: prints how tokens were distributed among the experts in each step. The numbers are equal on any grid of
# ranks.
shares() { values "$1" train busiest_expert; values "$1" train expert_entropy; }
same_shares() { diff <(shares "$WORK/run") <(shares "$WORK/$1"); }
for grid in replicas stages zero3; do expect "$grid: the same shares" same_shares $grid; done
between() { values "$WORK/run" train expert_entropy | awk '!($1 > 0 && $1 <= 1) { bad = 1 } END { exit bad || NR != 12 }'; }
expect "entropies between 0 and 1, a line each" between

# With moe.balance=switch an additional loss balances the experts. The reported loss does not contain it.
mine moe.balance=switch moe.balance_rate=0.05 run.dir="$WORK/switch" > /dev/null 2>&1
expect "balanced by a loss, on two ranks" heard ranks 2 moe.balance=switch moe.balance_rate=0.05 run.dir="$WORK/switch2"
expect "balanced by a loss: losses of one rank" same_losses "$WORK/switch" "$WORK/switch2" 1e-5
mine moe.balance=none run.dir="$WORK/none" run.steps=1 > /dev/null 2>&1
first() { values "$WORK/$1" train loss | head -n 1; }
expect "the first loss is that of an unbalanced model" [ "$(first switch)" = "$(first none)" ]
for how in none switch; do
    ! grep -aq e_score_correction_bias "$WORK/$how"/checkpoints/*/model.safetensors
    ok $? "$how: files are those of Hugging Face's class"
done
collapses() {
    mine moe.balance=none optimizer.learning_rate=0.5 schedule.warmup_steps=0 eval.every=0 run.on_nonfinite=skip \
        run.dir="$WORK/collapse$1" moe.experts="$1" 2>&1 |
        grep -cE "the experts of block [01] collapse: expert [0-7] of $1 has [0-9]+ % of the assignments"
}
expect "collapse is warned of, once" [ "$(collapses 8)" -eq 1 ]
expect "of few experts, too" [ "$(collapses 4)" -eq 1 ]

FROM="model.init_from=$(last run) run.dir=$WORK/x"
# shellcheck disable=SC2086
from() { mine $FROM "$@"; }
expect "other weights: fewer experts of a token" exits 65 'this model has moe.top_k = 2, but the config of this run has 1' from moe.top_k=1
expect "other weights: plain weights of experts" exits 65 \
    'this model has moe.norm_top_k = true, but the config of this run has false: set moe.norm_top_k=true' from moe.norm_top_k=false
expect "other weights: a bias that is not used" exits 65 'e_score_correction_bias.* is not part of this model' from moe.balance=none
expect "a resume with other experts" exits 64 'moe.top_k is 1, in the checkpoint 2' mine run.dir="$WORK/run" moe.top_k=1
expect "tensor ranks are refused" exits 64 'parallel.tensor = 2: no matrix of an expert is divided' \
    ranks 2 parallel.tensor=2 run.dir="$WORK/x"
exit $STATUS
