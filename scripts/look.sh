#!/usr/bin/env bash
# make look: makes pictures of what a user sees, in build/look/. If you change what a user sees, look at the pictures
# before you commit.
set -u
cd "$(dirname "$0")/.." || exit 1
for part in scripts/look_*.sh; do "$part" || exit; done
