#!/usr/bin/env bash
# make look: pictures of what a user sees, in build/look/. They are looked at before a commit that changes what they show.
set -u
cd "$(dirname "$0")/.." || exit 1
for part in scripts/look_*.sh; do "$part" || exit; done
