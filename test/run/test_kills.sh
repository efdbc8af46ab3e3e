#!/usr/bin/env bash
# The short form of the kills in `make soak`: 55 kills on 1, 2 and 4 ranks and on a grid. They run at the same time,
# because a kill mostly waits.
# Timed: kills are aimed at instants of a run.
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/env.sh" # skips this test without pgrep, whose name it finds here
said=$(mktemp -d); trap 'rm -rf "$said"' EXIT
status=0 jobs=()
lane() { test/run/lib/kills.sh "$1" "$2" > "$said/$2${GRID:+.grid}" 2>&1; }
lane 34 1 & jobs+=($!)
lane 10 2 & jobs+=($!)
lane 6 4 & jobs+=($!)
GRID="model.n_head=2 model.n_embd=32 parallel.tensor=2 parallel.pipeline=2" lane 5 4 & jobs+=($!)
for job in "${jobs[@]}"; do wait "$job" || status=1; done
cat "$said"/*
exit $status
