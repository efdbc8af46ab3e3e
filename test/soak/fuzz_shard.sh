#!/usr/bin/env bash
# Feeds any bytes to the parser of data files of tokens.
# goal: 100000000 inputs
. "$(dirname "$0")/part.sh"
fuzz_parser shard
