#!/usr/bin/env bash
# Feeds any bytes to the parser of configs.
# goal: 100000000 inputs
. "$(dirname "$0")/part.sh"
fuzz_parser config
