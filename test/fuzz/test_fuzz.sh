#!/usr/bin/env bash
# Runs the fuzzers for a short time: 5 s for each parser.
cd "$(dirname "${BASH_SOURCE[0]}")/../.." && scripts/fuzz.sh 5
