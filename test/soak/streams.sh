#!/usr/bin/env bash
# Runs the emulated program with the work of different CUDA streams in other legal orders, new ones each time
# (test/emu/test_streams.sh).
# goal: 100 orders
. "$(dirname "$0")/part.sh"
for ((i = $(so_far streams); ; i++)); do
    more || break
    said=$(ORDERS="random:$((1000 + i))" bash test/emu/test_streams.sh 2>&1)
    if grep -q '^ok' <<< "$said" && ! grep -q '^not ok' <<< "$said"; then tally 1 0; else grep '^not ok' <<< "$said"; tally 1 1; fi
done
