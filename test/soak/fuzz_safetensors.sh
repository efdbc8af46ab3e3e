#!/usr/bin/env bash
# Feeds any bytes to the parser of safetensors files.
# goal: 100000000 inputs
. "$(dirname "$0")/part.sh"
fuzz_parser safetensors
