#!/usr/bin/env bash
# Tests the memory bound of `plan gpu=`. It is the same on every build, and at least what a CUDA build takes. The test
# tries several kinds of models, sizes and grids. It uses the operations of the emulated build, which are those of a
# GPU.
. "$(dirname "${BASH_SOURCE[0]}")/../run/lib/emu.sh"
needs BACKEND=cpu SAN= build/cpu/train_gpt build/cpu/test/bench/plan_bound
needs BACKEND=emu SAN= all build/emu/test/bench/plan_bound
E=build/emu
build/cpu/test/bench/plan_bound > "$WORK/cpu" & $E/test/bench/plan_bound > "$WORK/emu"; wait $!
expect "many configs are tried" [ "$(wc -l < "$WORK/emu")" -ge 250 ]
expect "one answer on every build" diff <(cut -d' ' -f1,3- "$WORK/cpu") <(cut -d' ' -f1,3- "$WORK/emu")
expect "what the CUDA build takes is never more" awk '$1 < $2 { print; bad = 1 } END { exit bad || NR == 0 }' "$WORK/emu"
# A bound that is too high would refuse models that fit. It may exceed the memory taken by 192 MiB or by a tenth,
# whichever is more.
expect "nor much less" awk '$1 > 1.1 * $2 && $1 - $2 > 201326592 { print; bad = 1 } END { exit bad }' "$WORK/emu"
# plan runs the command as a user types it, for a card of 24 GB, where the bound matters. It keeps only the lines about
# memory, because the planned times differ between builds.
plan() { # PROGRAM WORDS...
    local said; said=$("$1" plan configs/gpt2-124m.json gpu=4090 "${@:2}" 2>&1); echo "exit $?"
    grep -E 'GiB|MiB|micro_batch' <<< "$said"
}
for words in "" "batch.micro_batch=64" "model.preset=gpt2-355m ranks=2" "precision=fp8 ranks=8 parallel.pipeline=2"; do
    expect "plan gpu=4090 $words: the same memory, and the same verdict" diff <(plan build/cpu/train_gpt $words) <(plan $E/train_gpt $words)
    expect "  which is there" grep -qE "memory of stage .* the fullest: [0-9.]+ GiB" <<< "$(plan $E/train_gpt $words)"
done
exit $STATUS
