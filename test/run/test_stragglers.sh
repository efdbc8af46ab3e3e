# A rank that is slower than the others is warned of, by name, once in a hundred steps.
. "$(dirname "$0")/lib/struck.sh"
SLOW="rank 1 on $(hostname) .*[0-9.]+ ms.*, rank 0 on $(hostname) [0-9.]+ ms"
slow() { TRAIN_GPT_FAIL=$1 run_ranks 2 "$FAILABLE" "$WORK/tiny.json" run.dir="$WORK/slow" run.steps="$2" eval.every=0 checkpoint.every=0 > "$WORK/out" 2> "$WORK/err"; }
expect "a run with a slow rank ends well" slow "comm.all_reduce@1+:slow,rank=1" 51
expect "the slow rank is named, once" [ "$(grep -cE "warning: $SLOW" "$WORK/err")" -eq 1 ]
exit $STATUS
