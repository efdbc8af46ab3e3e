#!/usr/bin/env python3
"""Makes a folder of weights as other programs write it, from one of the program's own, for test_folders.sh.

    folder.py FROM TO [MEMBER=JSON ...] [option=value ...]

MEMBER=JSON sets a member of config.json; JSON "DROP" removes it. Options: prefix=P puts P before each name of a tensor;
plain=1 removes "model." and "transformer." before that; wide=1 writes F64; head=X adds lm_head.weight, X times the
embedding (0: other values); drop=NAME leaves a tensor out; poison=NAME:N:X sets element N of a tensor to X; parts=N
writes N numbered files without an index; index=1 writes two files with a wrong index.
"""

import json
import os
import struct
import sys

source, target, *words = sys.argv[1:]
os.makedirs(target, exist_ok=True)
config = json.load(open(source + "/config.json"))
raw = open(source + "/model.safetensors", "rb").read()
size = struct.unpack("<Q", raw[:8])[0]
header = json.loads(raw[8:8 + size])
tensors = {}
for name, t in header.items():
    if name != "__metadata__":
        begin, end = t["data_offsets"]
        tensors[name] = (t["shape"], struct.unpack(f"<{(end - begin) // 4}f", raw[8 + size + begin:8 + size + end]))
option = {}
for word in words:
    key, value = word.split("=", 1)
    if key in ("prefix", "plain", "wide", "head", "drop", "poison", "parts", "index"):
        option[key] = value
    elif value == "DROP":
        config.pop(key, None)
    else:
        config[key] = json.loads(value)
embedding = "transformer.wte.weight" if "transformer.wte.weight" in tensors else "model.embed_tokens.weight"
if "head" in option:
    shape, values = tensors[embedding]
    times = float(option["head"])
    tensors["lm_head.weight"] = (shape, [times * v if times else 0.01 * (i * 7 % 23 - 11) for i, v in enumerate(values)])
tensors.pop(option.get("drop"), None)
if "poison" in option:
    name, place, value = option["poison"].split(":")
    shape, values = tensors[name]
    tensors[name] = (shape, values[: int(place)] + (float(value),) + values[int(place) + 1 :])


def renamed(name):
    if "plain" in option:
        name = name.removeprefix("model.").removeprefix("transformer.")
    return option.get("prefix", "") + name


def save(path, names):
    letter, dtype, each = ("d", "F64", 8) if "wide" in option else ("f", "F32", 4)
    head, data = {}, b""
    for name in names:
        shape, values = tensors[name]
        head[renamed(name)] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + each * len(values)]}
        data += struct.pack(f"<{len(values)}{letter}", *values)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + data)


names = sorted(tensors)
if "parts" in option:
    count = int(option["parts"])
    for i in range(count):
        save(f"{target}/model-{i + 1:05}-of-{count:05}.safetensors", names[i::count])
elif "index" in option:
    save(target + "/a.safetensors", names[::2])
    save(target + "/b.safetensors", names[1::2])
    where = {renamed(n): "b.safetensors" if i % 3 else "a.safetensors" for i, n in enumerate(names)}
    json.dump({"weight_map": where}, open(target + "/model.safetensors.index.json", "w"))
else:
    save(target + "/model.safetensors", names)
json.dump(config, open(target + "/config.json", "w"), indent=1)
