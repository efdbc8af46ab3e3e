# Several ranks: training is equal for any number of them, any communication backend, and any number of ranks that
# saved.
. "$(dirname "$0")/lib/tiny.sh"

train run.dir="$WORK/1" > /dev/null
for n in 2 3 4; do
    expect "$n ranks train" quiet train_ranks $n run.dir="$WORK/$n"
    expect "$n ranks: same losses" same_losses "$WORK/$n" "$WORK/1" 1e-6
    expect "$n ranks: same gradient norms" same_norms "$WORK/$n" "$WORK/1" 2e-6
    expect "$n ranks: same held-out loss" same_evals "$WORK/$n" "$WORK/1" 1e-6
done
train_ranks 3 run.dir="$WORK/3again" eval.every=1 checkpoint.every=6 > "$WORK/out"
expect "plain lines where mpirun's output is no terminal" [ "$(grep -c "$(printf '\033\\|\r')" "$WORK/out")" -eq 0 ]
values "$WORK/3again" train ms > "$WORK/ms"; values "$WORK/3again" train comm_ms > "$WORK/comm"; values "$WORK/3again" train comm_exposed_ms > "$WORK/exposed"
expect "a step's communication is within the step" awk '$3 > $2 + 0.01 || $2 > $1 + 0.01 { bad = 1 } END { exit bad || NR != 12 }' \
    <(paste -d' ' "$WORK/ms" "$WORK/comm" "$WORK/exposed")
expect "3 ranks again: same bits" same_weights "$WORK/3" "$WORK/3again" step_00000012
train_ranks 3 run.dir="$WORK/mpi" parallel.comm=mpi > /dev/null
expect "MPI's collectives: same losses" same_losses "$WORK/mpi" "$WORK/1" 1e-6
train_ranks 3 run.dir="$WORK/zero0" parallel.zero_stage=0 > /dev/null
expect "zero_stage 0: same bits as ZeRO-1" same_weights "$WORK/3" "$WORK/zero0" step_00000012
train run.dir="$WORK/bf16" precision=bf16 > /dev/null
train_ranks 2 run.dir="$WORK/bf16ranks" precision=bf16 > /dev/null
expect "bf16, 2 ranks: same losses within bf16's rounding" same_losses "$WORK/bf16" "$WORK/bf16ranks" 2e-3

expect "more ranks than the batch has samples: the most that it allows are named" \
    exits 64 "batch.global_tokens = 80 is less than .* x ranks \(4\) = 160; .*; or start 2 ranks" train_ranks 4 run.dir="$WORK/many" batch.global_tokens=80
expect "so many train" quiet train_ranks 2 run.dir="$WORK/many" batch.global_tokens=80
rm -r "$WORK/3/checkpoints/step_00000012"
train_ranks 3 run.dir="$WORK/3" > "$WORK/out"
expect "3 ranks resume their own: same bits" same_weights "$WORK/3" "$WORK/3again" step_00000012
rm -r "$WORK/3/checkpoints/step_00000012"
train_ranks 2 run.dir="$WORK/3" > "$WORK/out"
expect "2 ranks resume: the banner has both numbers of ranks" grep -q "step 6, saved by 3 ranks, now 2" "$WORK/out"
expect "2 ranks go on from 3: same losses" same_losses "$WORK/3" "$WORK/1" 1e-6
rm -r "$WORK/3/checkpoints/step_00000012"
train run.dir="$WORK/3" > "$WORK/out"
expect "1 process goes on from 3 ranks" same_losses "$WORK/3" "$WORK/1" 1e-6
# other_rank KEY=VALUE [WORD...]: runs two ranks, of which rank 1 also gets KEY=VALUE.
other_rank() { local pair="$1"; shift; run_ranks 2 bash -c 'rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; pair=; [ "$rank" = 1 ] && pair=$0; exec "$@" $pair' "$pair" "$TRAIN" "$WORK/tiny.json" run.dir="$WORK/other" "$@"; }
cp -r "$WORK/data" "$WORK/data2"; { head -c 1200 "$WORK/data/train_000000.bin"; printf 'z'; tail -c +1202 "$WORK/data/train_000000.bin"; } > "$WORK/data2/train_000000.bin"
expect "ranks with different seeds" exits 64 'configs .*differ: rank 0 .* and rank 1 ' other_rank run.seed=2
expect "ranks with different models" exits 64 'configs .*differ: rank 0 .* and rank 1 ' other_rank model.n_layer=3
expect "ranks with different texts of the same size" exits 65 'data.train: .*same files: .*rank' other_rank data.train="$WORK/data2/train_*.bin"
one=$WORK/1/checkpoints/step_00000006 two=$WORK/1/checkpoints/step_00000012
expect "ranks that start from different weights" exits 65 'model.init_from: .*same files: .*rank' other_rank model.init_from="$two" model.init_from="$one"
expect "the same text elsewhere is the same" quiet other_rank data.val="$WORK/data2/val_*.bin" run.steps=1
core=$(taskset -pc $$ | sed 's/.*: //; s/[-,].*//')
if [ "$(lscpu -p=CORE | grep -v '^#' | sort -u | wc -l)" -gt 1 ]; then
    (taskset -pc "$core" $BASHPID; train_ranks 2 run.dir="$WORK/one" run.steps=2) > "$WORK/out" 2>&1
    expect "ranks bound to one core: one warning" [ "$(grep -cE 'warning: .* 2 ranks .* one of its [0-9]+ cores' "$WORK/out")" -eq 1 ]
else
    echo "skip ranks bound to one core (there is only one)"
fi
exit $STATUS
