"""A GPU's dump of the primitives of core/ptx.cuh against the emulator's: calibration.py GPU.txt EMULATOR.txt

A line is a name, then values: words in hex, which must be equal, or numbers with a point, which may differ by the order of sums: 1e-5 of the
largest in the line."""
import sys


def read(path):
    return {words[0]: words[1:] for words in (line.split() for line in open(path) if line.strip() and not line.startswith("#"))}


gpu, emulator = read(sys.argv[1]), read(sys.argv[2])
bad = [f"{name}: only in one of the dumps" for name in sorted(set(gpu) ^ set(emulator))]
for name in sorted(set(gpu) & set(emulator)):
    a, b = gpu[name], emulator[name]
    if len(a) != len(b):
        bad.append(f"{name}: {len(a)} values and {len(b)}")
    elif any("." in word for word in a):
        x, y = [float(word) for word in a], [float(word) for word in b]
        scale = max(map(abs, y)) or 1.0
        off = max(range(len(x)), key=lambda i: abs(x[i] - y[i]))
        if not abs(x[off] - y[off]) <= 1e-5 * scale:
            bad.append(f"{name}: value {off} is {x[off]} on the GPU, {y[off]} in the emulator")
    elif a != b:
        off = next(i for i in range(len(a)) if a[i] != b[i])
        bad.append(f"{name}: value {off} is {a[off]} on the GPU, {b[off]} in the emulator")
print(*bad, sep="\n", end="\n" if bad else "")
if bad:
    sys.exit(f"{len(bad)} of {len(gpu)} primitives differ")
print(f"{len(gpu)} primitives agree")
