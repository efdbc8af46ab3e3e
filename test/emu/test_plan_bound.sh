#!/usr/bin/env bash
# `plan gpu=` gives the same answer on every build, at least what a CUDA build takes. Tested with several kinds of
# models, sizes and grids, and with the emulated build's operations, which are those of a GPU.
. "$(dirname "${BASH_SOURCE[0]}")/../run/lib/emu.sh"
needs BACKEND=cpu SAN= build/cpu/train_gpt build/cpu/test/bench/plan_bound
needs BACKEND=emu SAN= all build/emu/test/bench/plan_bound
E=build/emu
build/cpu/test/bench/plan_bound > "$WORK/cpu" & $E/test/bench/plan_bound > "$WORK/emu"; wait $!
expect "many configs are tried" [ "$(wc -l < "$WORK/emu")" -ge 250 ]
expect "one answer on every build" diff <(cut -d' ' -f1,3- "$WORK/cpu") <(cut -d' ' -f1,3- "$WORK/emu")
expect "what the CUDA build takes is never more" awk '$1 < $2 { print; bad = 1 } END { exit bad || NR == 0 }' "$WORK/emu"
# A bound that is too high refuses models that fit. It may be 192 MiB or a tenth too high.
expect "nor much less" awk '$1 > 1.1 * $2 && $1 - $2 > 201326592 { print; bad = 1 } END { exit bad }' "$WORK/emu"
# The command as a user types it, for a card of 24 GB, where the bound matters. Times follow the operations of each
# build.
plan() { # PROGRAM WORDS...
    local said; said=$("$1" plan configs/gpt2-124m.json gpu=4090 "${@:2}" 2>&1); echo "exit $?"
    grep -E 'GiB|MiB|micro_batch' <<< "$said"
}
for words in "" "batch.micro_batch=64" "model.preset=gpt2-355m ranks=2" "precision=fp8 ranks=8 parallel.pipeline=2"; do
    expect "plan gpu=4090 $words: the same memory, and the same verdict" diff <(plan build/cpu/train_gpt $words) <(plan $E/train_gpt $words)
    expect "  which is there" grep -qE "memory of stage .* the fullest: [0-9.]+ GiB" <<< "$(plan $E/train_gpt $words)"
done
exit $STATUS
