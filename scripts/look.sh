#!/usr/bin/env bash
# make look: what a user sees, as PNG in build/look/, to be looked at before a commit that changes it.
set -eu
cd "$(dirname "$0")/.."
for part in scripts/look_*.sh; do "$part"; done
ls build/look/*.png
