#!/usr/bin/env bash
# Any bytes in the parser of manifests.
# goal: 100000000 inputs
. "$(dirname "$0")/part.sh"
fuzz_parser manifest
