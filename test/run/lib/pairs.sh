# pairs.sh - checkpoints that any number of ranks saves and any other number resumes, with the bits of the unbroken run
# (parallel.deterministic). Sourced after tiny.sh. A step has PAIRS_LEAVES micro-batches (840 if not set), which every
# number of ranks must divide. 840 allows 1 to 8 ranks. The model is as small as possible.
cat > "$WORK/pairs.json" <<JSON
{ "run": {"steps": 3, "dir": "$WORK/run"},
  "model": {"n_layer": 1, "n_head": 1, "n_embd": 10, "n_positions": 4, "vocab_size": 256},
  "data": {"train": "$WORK/data/train_*.bin"},
  "batch": {"global_tokens": $((4 * ${PAIRS_LEAVES:-840})), "micro_batch": 1},
  "precision": "fp32", "parallel": {"deterministic": true},
  "checkpoint": {"every": 2, "keep": 3} }
JSON

pairs_run() { run_ranks "$1" "$TRAIN" "$WORK/pairs.json" run.dir="$2" > "$WORK/out" 2>&1 || { tail -5 "$WORK/out"; return 1; }; }
pairs_same() { # pairs_same DIR: checks that the run in DIR equals the run of one rank.
    values "$WORK/saved1" train loss > "$WORK/.a"; values "$1" train loss > "$WORK/.b"
    [ "$(wc -l < "$WORK/.a")" -eq 3 ] && cmp "$WORK/.a" "$WORK/.b" && same_weights "$WORK/saved1" "$1" step_00000003
}

# pairs SAVER:RESUMER...: tests pairs of numbers of ranks, and prints "ok" or "not ok" for each. It also tests once for
# each SAVER that its run equals that of one rank.
pairs() {
    local pair saver resumer
    for pair in 1: "$@"; do
        saver=${pair%:*} resumer=${pair#*:}
        if [ ! -d "$WORK/saved$saver" ]; then
            expect "$saver ranks train as one does" eval 'pairs_run "$saver" "$WORK/saved$saver" && pairs_same "$WORK/saved$saver"'
        fi
        [ -n "$resumer" ] || continue
        cp -r "$WORK/saved$saver" "$WORK/resumed" && rm -r "$WORK/resumed/checkpoints/step_00000003"
        expect "saved by $saver, resumed by $resumer: the unbroken run's bits" eval \
            'pairs_run "$resumer" "$WORK/resumed" && grep -q "saved by $saver rank.*now $resumer" "$WORK/out" && pairs_same "$WORK/resumed"'
        rm -rf "$WORK/resumed"
    done
}
