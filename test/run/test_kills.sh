#!/usr/bin/env bash
# The short form of `make soak`'s kills: 50 of them, on 1, 2 and 4 ranks.
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
status=0
test/run/kills.sh 34 1 || status=1
test/run/kills.sh 10 2 || status=1
test/run/kills.sh 6 4 || status=1
exit $status
