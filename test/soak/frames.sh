#!/usr/bin/env bash
# Sends frames over connections that flip a bit, cut, lose a byte, repeat, reorder or mix. A channel must return the
# frames before the fault and no other.
# goal: 1000000 frames
. "$(dirname "$0")/part.sh"
told=$("$B/test/comm/test_channel_faults" "$(($(so_far frames) + 1))" "$seconds")
grep '^not ok' <<< "$told"
[[ $told =~ ([0-9]+)\ frames,\ ([0-9]+)\ failed$ ]] && tally "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" || tally 0 1
