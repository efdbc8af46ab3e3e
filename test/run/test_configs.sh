#!/usr/bin/env bash
# Every config in configs/ is complete: check and plan find only that its data are missing, and its comment says where
# to get them.
. "$(dirname "$0")/lib/tiny.sh"
for config in configs/*.json; do
    [ "$config" = configs/train_gpt.schema.json ] && continue
    ranks=1 memory=; case $config in *gpt2-* | *llama-* | *qwen3-*) ranks=8 memory=memory=80GiB ;; esac
    stem=$(basename "$config" .json)
    sed -E "s#datasets/#$WORK/none/#g" "$config" > "$WORK/$stem.json"
    expect "check $stem" eval '"$TRAIN" check "$WORK/$stem.json" ranks=$ranks > "$WORK/out" 2> "$WORK/err" && [ ! -s "$WORK/err" ]'
    expect "  lacks data alone" [ "$(grep -vcE '^(data\.(train|val) +no file matches|[a-z]+ +[^ ]|.*: ok$)' "$WORK/out") $(grep -c 'no file matches' "$WORK/out")" = "0 2" ]
    expect "plan $stem" eval '"$TRAIN" plan "$WORK/$stem.json" ranks=$ranks $memory > "$WORK/out" 2> "$WORK/err" && grep -q "is not there yet: epochs unknown" "$WORK/out"'
    [ -z "$memory" ] || expect "  fits into 80 GiB" eval '[ "$(sed -n "s/.*largest batch.micro_batch in 80.00 GiB: //p" "$WORK/out")" -ge "$(sed -n "s/.*\"micro_batch\": \([0-9]*\).*/\1/p" "$config")" ]'
    [[ $stem == demo* || $stem == own ]] && continue # a text of the package bible-kjv, and one of the user
    for word in "data: scripts/fetch.sh [a-z0-9-]+" "tokens: [0-9,]+" "validation loss to expect: "; do
        expect "  its comment has '$word'" grep -qE "\"$word" "$config"
    done
    fetched=$(grep -oE 'scripts/fetch.sh [a-z0-9-]+( shards=[0-9]+)?' "$config" | head -n 1)
    expect "  fetch.sh knows '$fetched'" grep -qE "^  $(cut -d' ' -f2 <<< "$fetched") " <<< "$(scripts/fetch.sh)"
    expect "  and fetches into the folder that it names" grep -qF "datasets/$(cut -d' ' -f2 <<< "$fetched")/" "$config"
done
exit $STATUS
