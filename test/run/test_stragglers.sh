# A warning names a rank that is slower than the others, at most once in a hundred steps.
# Timed: step times of ranks are compared.
. "$(dirname "$0")/lib/struck.sh"
SLOW="rank 1 on $(hostname) .*[0-9.]+ ms.*, rank 0 on $(hostname) [0-9.]+ ms"
slow() { TRAIN_GPT_FAIL=$1 run_ranks 2 "$FAILING" "$WORK/tiny.json" run.dir="$WORK/slow" run.steps="$2" eval.every=0 checkpoint.every=0 > "$WORK/out" 2> "$WORK/err"; }
expect "a run with a slow rank ends well" slow "comm.all_reduce@1+:slow,rank=1" 51
expect "the slow rank is named, once" [ "$(grep -cE "warning: $SLOW" "$WORK/err")" -eq 1 ]
# With parallel.balance the slow rank gets fewer micro-batches, and the losses stay those of one rank. A resume begins
# with equal numbers of micro-batches.
BALANCED="run.steps=60 eval.every=0 checkpoint.every=30 parallel.balance=true"
balanced() { TRAIN_GPT_FAIL="comm.all_reduce@1+:slow,rank=1" run_ranks 2 "$FAILING" "$WORK/tiny.json" run.dir="$WORK/balanced" $BALANCED > "$WORK/out" 2> "$WORK/err"; }
expect "a balanced run ends well" balanced
expect "the slow rank takes less: $(grep -o "balance: .*" "$WORK/out" | head -1)" grep -qE "balance: .* are now (1[01]|[789]) [1-5]$" "$WORK/out"
train run.dir="$WORK/even" run.steps=60 eval.every=0 checkpoint.every=0 > /dev/null
expect "and the losses stay" same_losses "$WORK/balanced" "$WORK/even" 2e-6
rm -r "$WORK/balanced/checkpoints/step_00000060"
expect "a resume of it" quiet train_ranks 2 run.dir="$WORK/balanced" $BALANCED
expect "its losses" same_losses "$WORK/balanced" "$WORK/even" 2e-6
expect "balance with ordered sums: exit 64" exits 64 "parallel.balance = true changes the order of sums" train parallel.balance=true parallel.deterministic=true
expect "balance with ZeRO-2: exit 64" exits 64 "parallel.balance = true with parallel.zero_stage = 2" train parallel.balance=true parallel.zero_stage=2
exit $STATUS
