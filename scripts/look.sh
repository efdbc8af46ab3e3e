#!/usr/bin/env bash
# make look: makes pictures of what a user sees, in build/look/. Look at them before you commit a change to what they
# show.
set -u
cd "$(dirname "$0")/.." || exit 1
for part in scripts/look_*.sh; do "$part" || exit; done
