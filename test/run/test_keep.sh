#!/usr/bin/env bash
# Checkpoints that are kept: milestones (every checkpoint.keep_every steps), and the one with the best validation loss,
# even if later losses are worse.
. "$(dirname "$0")/lib/tiny.sh"
kept() { ls "$WORK/$1/checkpoints" | sed 's/step_0*//' | tr '\n' ' '; }
args="run.steps=24 checkpoint.every=4 checkpoint.keep=2 eval.every=4 schedule.name=constant"

train run.dir="$WORK/miles" $args checkpoint.keep_every=8 > /dev/null
expect "milestones stay beside the two newest" [ "$(kept miles)" = "8 16 20 24 " ]

train run.dir="$WORK/best" $args checkpoint.keep_best=true run.stop_step=8 > /dev/null
# worse: continues the run with a learning rate that is far too large, so no later loss is as good as the best.
worse() { train run.dir="$WORK/best" $args optimizer.learning_rate=30 'run.allow_change=["optimizer.learning_rate"]' "$@" > /dev/null 2>&1; }
worse checkpoint.keep_best=true
expect "the losses got worse" awk -v loss="$(values "$WORK/best" eval loss | tr '\n' ' ')" 'BEGIN { n = split(loss, x, " "); exit !(n == 7 && x[7] > x[3]) }'
expect "the best stays beside the two newest" [ "$(kept best)" = "8 20 24 " ]
worse run.steps=28
expect "when nobody wants it, it goes" [ "$(kept best)" = "24 28 " ]
expect "a step that is not evaluated cannot be the best" exits 64 "checkpoint.every = 4 must be a multiple of eval.every = 3" train run.dir="$WORK/no" $args eval.every=3 checkpoint.keep_best=true
exit $STATUS
