#!/usr/bin/env python3
"""compare_calibration.py A B - compares two outputs of `cases calibrate`, one from a GPU and one from the emulator,
name by name.

Moves of data must be equal bit by bit. Products (mma, wgmma) may differ by 2^-20 of the sum of |terms|, which is at
most 64 * 4. Products of fp8, which Hopper adds with some 14 bits, may differ by 2^-13 of 128 * 4. 2^x may differ by
2^-21 of the value, twice the error that either may have.
"""
import struct
import sys


def read(path):
    results = {}
    for line in open(path):
        name, index, bits = line.split()
        results.setdefault(name, {})[int(index)] = int(bits, 16)
    return results


def as_float(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def main():
    a, b = read(sys.argv[1]), read(sys.argv[2])
    bad = 0
    for name in sorted(set(a) | set(b)):
        if name not in a or name not in b:
            print(f"skip {name}: only in one of them")
            continue
        product = "mma" in name
        if a[name].keys() != b[name].keys():
            wrong = len(a[name].keys() ^ b[name].keys())
        elif product:
            most = 128 * 4 * 2.0 ** -13 if "fp8" in name else 64 * 4 * 2.0 ** -20
            wrong = sum(not abs(as_float(v) - as_float(b[name][i])) <= most for i, v in a[name].items())
        elif "exp2" in name:
            wrong = sum(not abs(as_float(v) - as_float(b[name][i])) <= as_float(b[name][i]) * 2.0 ** -21 for i, v in a[name].items())
        else:
            wrong = sum(v != b[name][i] for i, v in a[name].items())
        bad += wrong > 0
        print(f"{'not ok' if wrong else 'ok'} {name}: {wrong} of {len(a[name])} differ" + (" (with tolerance)" if product or "exp2" in name else ""))
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
