"""finite.py FOLDER...: fails if a number in the tensors of a checkpoint is NaN or infinite."""
import array
import math
import struct
import sys

for folder in sys.argv[1:]:
    for name in "model", "optimizer":
        data = open(f"{folder}/{name}.safetensors", "rb").read()
        values = array.array("f", data[8 + struct.unpack("<Q", data[:8])[0]:])
        assert len(values) > 1000 and all(map(math.isfinite, values)), f"{folder}/{name}"
