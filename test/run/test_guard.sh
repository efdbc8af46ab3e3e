# The guards that keep wrong numbers out of the weights. core/injection.c makes the faults: losses and gradients that
# are not finite, spikes, flipped bits.
. "$(dirname "$0")/lib/tiny.sh"
TRAIN=$FAILING

# with RULES COMMAND...: runs the command with the faults that RULES describes. Its output is in $WORK/out and
# $WORK/err.
with() { local rules=$1; shift; TRAIN_GPT_FAIL=$rules "$@" > "$WORK/out" 2> "$WORK/err"; }
ALL="1 2 3 4 5 6 7 8 9 10 11 12 "
# said PATTERN: checks that exactly one line on stdout or stderr matches.
said() { [ "$(cat "$WORK/out" "$WORK/err" | grep -cE "$1")" -eq 1 ] || { cat "$WORK/err"; return 1; }; }
said_nothing() { ! grep -E "$1" "$WORK/out" "$WORK/err"; }
# told_of_corruption STEP RANK: checks that one or two warnings report corrupt data in this step. Each must name this
# rank and no other.
told_of_corruption() {
    grep corruption "$WORK/err" > "$WORK/told"
    [ -s "$WORK/told" ] && ! grep -vE "^train_gpt: warning: step $1: .* bits: .*corruption.*, rank $2 \\(" "$WORK/told"
}
run_on() { local n=$1; shift; if [ "$n" -eq 1 ]; then train "$@"; else train_ranks "$n" "$@"; fi; }

for n in 1 3; do
    # The gradients of a step are wrong only the first time that it is computed. All ranks notice this and compute the
    # step again. The weights equal those of a run without the fault.
    last=$((n - 1))
    run_on $n run.dir="$WORK/whole$n" > /dev/null
    for word in nan $([ $n -eq 1 ] && echo inf || echo lone); do
        rm -rf "$WORK/run"
        with "guard.gradient@5:$word,rank=$last" run_on $n run.dir="$WORK/run"
        expect "$n ranks, $word once: the weights of a run without it" same_weights "$WORK/run" "$WORK/whole$n" step_00000012
        # A fault "lone" affects a single gradient, from which the rank cannot be told, so the warning names no rank.
        # Other warnings name the last rank.
        if [ $word = lone ]; then who='[^(]*$'; else who="[^(]*, rank $last \\("; fi
        expect "$n ranks, $word once: a warning names the rank" said "warning: step 5: .*gradient norm -?(nan|inf);.*corruption$who"
    done

    # The gradients of a step are wrong again when it is repeated. By default the run then ends. It leaves only
    # checkpoints of earlier steps.
    rm -rf "$WORK/run"
    TRAIN_GPT_FAIL="guard.gradient@9+:nan,rank=$last" expect "$n ranks: stop is exit 76" \
        exits 76 "^train_gpt: step 9: loss [0-9.]+, gradient norm -?nan: .*, twice .*; rank $last \(.*\); .* step 8 " \
        run_on $n run.dir="$WORK/run"
    expect "$n ranks: the checkpoint of before stays alone" [ "$(ls "$WORK/run/checkpoints")" = step_00000006 ]
    expect "$n ranks: the same command goes on from there" quiet run_on $n run.dir="$WORK/run"
    expect "$n ranks: to the weights of an unbroken run" same_weights "$WORK/run" "$WORK/whole$n" step_00000012
done

# --- skip
TWICE="guard.gradient@7:nan;guard.gradient@8:nan"  # step 7, and step 7 computed again
with "$TWICE" train run.dir="$WORK/skip" run.on_nonfinite=skip checkpoint.every=1 checkpoint.keep=12
expect "skip: its line" said "^step 7 skipped: loss [0-9.]+, gradient norm -?nan: "
expect "skip: an event before the line of its step" [ "$(grep -A 1 '"event":"skip"' "$WORK/skip/metrics.jsonl" | grep -c '"step":7,')" -eq 2 ]
expect "skip: every step has its line" [ "$(steps_of "$WORK/skip")" = "$ALL" ]
expect "skip: a norm that is no number is null" [ "$(values "$WORK/skip" train grad_norm | sed -n 7p)" = null ]
for file in model optimizer; do
    expect "skip: the step leaves no trace in $file" cmp "$WORK/skip/checkpoints/step_00000006/$file.safetensors" "$WORK/skip/checkpoints/step_00000007/$file.safetensors"
done
expect "skip: nothing that is not finite was saved" python3 test/run/lib/finite.py "$WORK"/skip/checkpoints/step_*
TRAIN_GPT_FAIL="guard.gradient@5+:nan" expect "skip: run.max_skips in a row, then exit 76" \
    exits 76 "^train_gpt: step 7: .* \(run.on_nonfinite = \"skip\" .*run.max_skips = 2 " \
    train run.dir="$WORK/skips" run.on_nonfinite=skip run.max_skips=2
with "guard.gradient@5:nan;guard.gradient@6:nan;guard.gradient@7:nan;guard.gradient@8:nan;guard.gradient@10:nan;guard.gradient@11:nan" \
    train run.dir="$WORK/skipped" run.on_nonfinite=skip run.max_skips=2
expect "skip: only those in a row count" [ "$(steps_of "$WORK/skipped")" = "$ALL" ]

# --- rollback: to step 6, and on with the samples after those of the 8th step: 12 each
THERE="guard.gradient@8:nan;guard.gradient@9:nan"
for n in 1 2; do
    with "$THERE" run_on $n run.dir="$WORK/back$n" run.on_nonfinite=rollback
    expect "$n ranks, rollback: its line" said "^rolled back to step 6, .* steps 7 to 8$"
    expect "$n ranks, rollback: an event where it went on" [ "$(grep -c '"event":"rollback","step":6,.*"from":8}' "$WORK/back$n/metrics.jsonl")" -eq 1 ]
    expect "$n ranks, rollback: every step has one line" [ "$(steps_of "$WORK/back$n")" = "$ALL" ]
    expect "$n ranks, rollback: the data goes on after the bad step" grep -q '"step":"12","samples":"168"' "$WORK/back$n/checkpoints/step_00000012/state.json"
done
expect "rollback: 1 rank and 2 see the same data" same_losses "$WORK/back1" "$WORK/back2" 1e-6
expect "rollback: other data than a run without" [ "$(values "$WORK/back1" train loss | tail -1)" != "$(values "$WORK/whole1" train loss | tail -1)" ]
expect "rollback: the steps before it stay" cmp <(values "$WORK/back1" train loss | head -6) <(values "$WORK/whole1" train loss | head -6)
with "$THERE" train run.dir="$WORK/back" run.on_nonfinite=rollback checkpoint.every=3 checkpoint.keep=9
expect "rollback: resumable" quiet rm -r "$WORK/back/checkpoints/step_00000012"
train run.dir="$WORK/back" run.on_nonfinite=rollback > /dev/null
expect "rollback: a resumed run keeps its place in the data" same_weights "$WORK/back" "$WORK/back1" step_00000012
TRAIN_GPT_FAIL="guard.gradient@8+:nan" expect "rollback: run.max_skips times, then exit 76" \
    exits 76 "^train_gpt: step 7: .* \(after run.max_skips = 2 rollbacks .* step 8\)" \
    train run.dir="$WORK/backs" run.on_nonfinite=rollback run.max_skips=2
expect "rollback: the checkpoint is still there" [ "$(ls "$WORK/backs/checkpoints")" = step_00000006 ]
with "guard.gradient@4:nan;guard.gradient@5:nan" train run.dir="$WORK/begin" run.on_nonfinite=rollback
expect "rollback: before the first checkpoint, to the first weights" said "^rolled back to step 0, .* steps 1 to 4$"
expect "rollback: to step 0, every step has one line" [ "$(steps_of "$WORK/begin")" = "$ALL" ]
expect "rollback: with the loss of new weights" awk -v loss="$(values "$WORK/begin" train loss | head -1)" 'BEGIN { exit !(loss > 5.4 && loss < 5.7) }'
expect "rollback: and the first evaluation" [ "$(steps_of "$WORK/begin" eval)" = "0 6 12 " ]

mkdir "$WORK/asked"; touch "$WORK/asked/SAVE"
with "guard.gradient@1:nan;guard.gradient@2:nan" train run.dir="$WORK/asked" run.on_nonfinite=rollback run.steps=5 checkpoint.every=0 eval.every=0
expect "rollback: a SAVE that came in the step given up is done after the next" [ "$(ls "$WORK/asked/checkpoints" | tr '\n' ' ')" = "step_00000001 step_00000005 " ]

# --- spikes: a loss that is some 6 nats too high at step 45, and again when that step is computed again
SPIKE="guard.loss@45:rise;guard.loss@46:rise"
LONG="run.steps=60 optimizer.learning_rate=1e-4 checkpoint.every=20 eval.every=0"
train run.dir="$WORK/calm" $LONG > "$WORK/out" 2>&1
expect "spikes: none in a run without" [ "$(grep -c spike "$WORK/out")" -eq 0 ]
with "$SPIKE" train run.dir="$WORK/warned" $LONG
expect "spike: warned of" said "^step 45: loss [0-9.]+ is a spike: .* 41 is [0-9.]+, .*limit [0-9.]+$"
expect "spike: and trained on all the same" same_weights "$WORK/warned" "$WORK/calm" step_00000060
warning=$(grep spike "$WORK/out")
rm -r "$WORK"/warned/checkpoints/step_000000[46]0
with "guard.loss@25:rise;guard.loss@26:rise" train run.dir="$WORK/warned" $LONG
expect "spike: resumed in the middle of the window, the same words" [ "$(grep spike "$WORK/out")" = "$warning" ]
with "guard.loss@45:rise" train run.dir="$WORK/once" $LONG
expect "spike once: a warning" said "warning: step 45: loss .*; computed again .*corruption"
expect "spike once: the weights of a run without it" same_weights "$WORK/once" "$WORK/calm" step_00000060
TRAIN_GPT_FAIL=$SPIKE expect "spike, stop: exit 76" exits 76 "^train_gpt: step 45: loss .* is a spike: .*, twice .*; .* step 44 \(run.on_spike " \
    train run.dir="$WORK/stopped" $LONG run.on_spike=stop
with "$SPIKE" train run.dir="$WORK/left" $LONG run.on_spike=skip
expect "spike, skip: its line" said "^step 45 skipped: loss .* is a spike"
expect "spike, skip: the step is left out" awk -v a="$(values "$WORK/left" train loss | sed -n 46p)" -v b="$(values "$WORK/calm" train loss | sed -n 46p)" 'BEGIN { exit a == b }'
with "$SPIKE" train run.dir="$WORK/rolled" $LONG run.on_spike=rollback
expect "spike, rollback: its line" said "^rolled back to step 40, .* steps 41 to 45$"
expect "spike, rollback: every step has one line" [ "$(steps_of "$WORK/rolled")" = "$(seq 60 | tr '\n' ' ')" ]

# --- weights that are not the same on all ranks: compared at every tenth step of so few tokens, and before every save
TRAIN_GPT_FAIL="guard.weight@10:flip,rank=1" expect "3 ranks, a flipped bit: exit 76, the rank is named" \
    exits 76 "^train_gpt: the weights of step 9 .*: .*rank 1 \([^)]+, .*\) differ" train_ranks 3 run.dir="$WORK/flip" checkpoint.every=3
expect "3 ranks, a flipped bit: no other is named" [ "$(grep -cE "rank [02] \(" "$WORK/err")" -eq 0 ]
expect "3 ranks, a flipped bit: nothing is saved after it" [ "$(ls "$WORK/flip/checkpoints" | tail -1)" = step_00000009 ]
TRAIN_GPT_FAIL="guard.weight@4:flip,rank=0" expect "2 ranks, zero_stage 0: found before the save, both are named" \
    exits 76 "^train_gpt: .* moments of step 6 .*: .*rank 0 \(.* and rank 1 \(.* differ" train_ranks 2 run.dir="$WORK/flip2" parallel.zero_stage=0
expect "2 ranks, zero_stage 0: nothing is saved" [ -z "$(ls "$WORK/flip2/checkpoints")" ]

# --- numbers that look right: every fourth step is computed twice. Steps 1 to 3, 4 and 4 again are the computations 1 to 5.
for n in 1 3; do
    last=$((n - 1))
    with "" run_on $n run.dir="$WORK/verified$n" run.verify_every=4
    expect "$n ranks, verified: no warning" said_nothing corruption
    expect "$n ranks, verified: the same weights" same_weights "$WORK/verified$n" "$WORK/whole$n" step_00000012
    for fault in sum@4 sum@5 $([ $n -eq 1 ] || echo own@4 own@5); do
        rm -rf "$WORK/run"
        with "guard.$fault:flip,rank=$last" run_on $n run.dir="$WORK/run" run.verify_every=4
        expect "$n ranks, a bit of a gradient ($fault): a warning names the rank" told_of_corruption 4 "$last"
        expect "$n ranks, a bit of a gradient ($fault): the repeated result counts" same_weights "$WORK/run" "$WORK/whole$n" step_00000012
    done
done
rm -rf "$WORK/run"
TRAIN_GPT_FAIL="guard.own@10+:flip,rank=1" expect "3 ranks, bits of gradients that flip every time: exit 76, the rank is named" \
    exits 76 "^train_gpt: step 8, computed three times .*: rank 1 \(.*\); .* step 7 " \
    train_ranks 3 run.dir="$WORK/run" run.verify_every=4 checkpoint.every=6
expect "3 ranks, bits of gradients that flip every time: nothing is saved after it" [ "$(ls "$WORK/run/checkpoints")" = step_00000006 ]
for what in m v; do
    TRAIN_GPT_FAIL="guard.$what@10:flip,rank=2" expect "3 ranks, zero_stage 0, a flipped bit in $what: exit 76, the rank is named" \
        exits 76 "^train_gpt: .* moments of step 9 .*: .*rank 2 \([^)]+, .*\) differ" train_ranks 3 run.dir="$WORK/flip$what" parallel.zero_stage=0 checkpoint.every=0
    expect "3 ranks, zero_stage 0, a flipped bit in $what: nothing is saved" [ -z "$(ls "$WORK/flip$what/checkpoints")" ]
done

# --- a grid: a computation that differs is found on any of its ranks, and the repeated result counts
on_grid() { train_ranks 4 model.n_head=2 model.n_embd=32 parallel.tensor=2 parallel.pipeline=2 run.verify_every=4 "$@"; }
with "" on_grid run.dir="$WORK/grid"
for rank in 0 3; do
    rm -rf "$WORK/run"
    with "guard.sum@4:flip,rank=$rank" on_grid run.dir="$WORK/run"
    expect "tensor 2 x pipeline 2, a bit of a gradient on rank $rank: a warning names the rank" told_of_corruption 4 $rank
    expect "tensor 2 x pipeline 2, a bit of a gradient on rank $rank: the repeated result counts" same_weights "$WORK/run" "$WORK/grid" step_00000012
done
exit $STATUS
