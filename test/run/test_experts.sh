#!/usr/bin/env bash
# parallel.expert end to end. Experts that are divided among ranks compute the losses of one rank. They work with every
# other axis, and with buffers for all of their tokens or, in several rounds, for few. Checkpoints of any grid resume on
# any other. Also what is refused.
. "$(dirname "${BASH_SOURCE[0]}")/lib/tiny.sh"
KIND="model.arch=qwen3-moe model.n_embd=64 model.n_head=4 model.n_kv_head=2 model.head_dim=24
      moe.experts=8 moe.top_k=2 moe.n_inner=24 moe.balance=bias moe.balance_rate=0.01"
# shellcheck disable=SC2086
mine() { train $KIND "$@"; }
# shellcheck disable=SC2086
ranks() { local n=$1; shift; train_ranks "$n" $KIND "$@"; }
heard() { "$@" > "$WORK/said" 2>&1 || { tail -n 5 "$WORK/said"; return 1; }; }
like() { # NAME OTHER RANKS KEY=VALUE...
    local name=$1 other=$2 n=$3; shift 3
    expect "$name" heard ranks "$n" run.dir="$WORK/$name" "$@"
    like_one_rank "$name" "$other"
}
expect "one rank" heard mine run.dir="$WORK/run"
like divided run 2 parallel.expert=2
ROOM='experts +4 of 8 on each of 2 ranks; room for [0-9]+ rows, [0-9]+ are the even share: [0-9.]+ [KM]iB a block'
expect "the banner says the room" grep -qE "$ROOM" "$WORK/said"
expect "and the kind of model and of update" grep -qE 'parameters: qwen3-moe, 2 layers, .*; fp32; adamw$' "$WORK/said"
rounds() { values "$WORK/$1" train expert_rounds | sort -n | tail -n 1; }
like tight run 2 parallel.expert=2 moe.capacity=0.2 memory.recompute=light run.verify_every=5
expect "little room: metrics say the rounds" [ "$(rounds tight)" -ge 5 ]
expect "room enough: metrics say none" [ "$(grep -c expert_rounds "$WORK/divided/metrics.jsonl")" -eq 0 ]

# Checkpoints of experts that are divided among ranks have the same files as those of one rank. Any number of ranks
# resumes them.
mine run.dir="$WORK/first" run.stop_step=6 > /dev/null 2>&1
like first run 2 parallel.expert=2
ranks 4 run.dir="$WORK/second" parallel.expert=4 moe.capacity=0.5 run.stop_step=6 > /dev/null 2>&1
expect "divided, resumed by one rank" heard mine run.dir="$WORK/second"
expect "divided, resumed by one rank: its losses" same_losses "$WORK/run" "$WORK/second" 1e-5
STILL="model.init_from=$WORK/run/checkpoints/step_00000012 run.steps=1 optimizer.learning_rate=0 moe.balance_rate=0"
expect "weights to start from" heard ranks 2 $STILL parallel.expert=2 run.dir="$WORK/from"
expect "weights to start from: no bit changes" \
    cmp "$WORK"/{run/checkpoints/step_00000012,from/checkpoints/step_00000001}/model.safetensors

# Expert ranks work together with the other axes, and with Muon.
like replicas run 4 parallel.expert=2 parallel.replicas=2 run.verify_every=5
like stages run 4 parallel.expert=2 parallel.pipeline=2 memory.recompute=block sample.every=6 sample.tokens=8
LONG="model.n_positions=256 batch.seq_len=256 batch.global_tokens=512 run.steps=3 eval.every=3"
mine $LONG run.dir="$WORK/long" > /dev/null 2>&1
like context long 4 $LONG parallel.expert=2 parallel.context=2 memory.recompute=light
mine run.dir="$WORK/muon1" optimizer.name=muon run.steps=4 > /dev/null 2>&1
like muon muon1 2 parallel.expert=2 optimizer.name=muon run.steps=4
exit $STATUS
