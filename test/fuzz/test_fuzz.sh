#!/usr/bin/env bash
# The short form of fuzzing: 5 s for each parser.
cd "$(dirname "${BASH_SOURCE[0]}")/../.." && scripts/fuzz.sh 5
