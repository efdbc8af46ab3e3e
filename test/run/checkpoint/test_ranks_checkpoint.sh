# A checkpoint that any number of ranks saved resumes on any other number, bit for bit. A full disk on one rank ends all
# ranks.
. "$(dirname "$0")/../lib/expect.sh"
TOOL=$PWD/$B/test/run/checkpoint/ranks_checkpoint
export OMP_NUM_THREADS=1
stage() { echo $(($1 % 2)); }  # ZeRO stage 0 or 1: both are used to save, and both to resume

for w in 1 2 3 4; do
    mkdir "$WORK/$w"
    expect "$w ranks save" run_ranks $w "$TOOL" save "$WORK/$w" 5 "$(stage $w)"
    for file in model.safetensors optimizer.safetensors config.json; do
        expect "$w ranks write the same $file" cmp "$WORK/1/checkpoints/step_00000005/$file" "$WORK/$w/checkpoints/step_00000005/$file"
    done
done
for w in 1 2 3 4; do
    for n in 1 2 3 4; do
        expect "saved by $w, resumed by $n" run_ranks $n "$TOOL" load "$WORK/$w" 5 "$(stage $((w / 2 + n)))" $w
    done
done

expect "one rank's full disk ends all" exits 74 "step 9, the last, .*: .*$WORK/3/checkpoints/step_00000009.tmp/.*safetensors: File too large" \
    run_ranks 3 "$TOOL" full "$WORK/3" 9 1
expect "nothing of it is left" test "$(ls -A "$WORK/3/checkpoints")" = step_00000005
expect "the older checkpoint is whole" run_ranks 2 "$TOOL" load "$WORK/3" 5 1 3
truncate -s -1 "$WORK/3/checkpoints/step_00000005/model.safetensors"
expect "ranks refuse a run without a good checkpoint" exits 65 "of 1; step_00000005: model.safetensors " run_ranks 3 "$TOOL" load "$WORK/3" 5 1 3
exit $STATUS
