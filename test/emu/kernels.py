"""Checks which kernels ran, and with which element types: compares the kernels of layers/*.cu with the emulator's list
(EMU_KERNELS).

    kernels.py LAUNCHED    prints "ok KERNEL: types" or "not ok KERNEL: what is missing"
"""
import glob
import re
import sys

ALL, HALVES = {"float", "bf16", "half"}, {"bf16", "half"}
MARKS = {"float": r"\bfloat\b", "bf16": r"__nv_bfloat16", "half": r"__half"}
# Kernels on tensor cores that take only 16-bit elements. Other kernels compute in fp32.
SIXTEEN_BITS = {"attention_forward_kernel", "attention_backward_keys_kernel", "attention_backward_queries_kernel",
                "attention_forward_hopper_kernel", "attention_keys_hopper_kernel", "attention_queries_hopper_kernel",
                "attention_heads_hopper_kernel", "gemm_hopper_kernel"}


def kernels():
    """Yields the name of each kernel, and whether it is a template over an element type."""
    for path in sorted(glob.glob("layers/*.cu")):
        text = re.sub(r"/\*.*?\*/", "", open(path).read(), flags=re.S)
        for match in re.finditer(r"(template\s*<([^;{}]*?)>\s*)?(?:__launch_bounds__\([^;{]*?\)\s*)?KERNEL\b([^;{]*?)\b(\w+_kernel)\(", text):
            yield match.group(4), "typename" in (match.group(2) or "")


launched = {}
for line in open(sys.argv[1]):
    name = re.match(r"\(?(\w+)", line).group(1)
    launched.setdefault(name, set()).update(t for t, mark in MARKS.items() if re.search(mark, line.split(": ", 1)[1]))
count = 0
for name, over_type in kernels():
    count += 1
    wanted = HALVES if name in SIXTEEN_BITS else ALL if over_type else set()
    if name not in launched:
        print(f"not ok {name}: never ran")
    elif wanted - launched[name]:
        print(f"not ok {name}: never ran with {' '.join(sorted(wanted - launched[name]))}")
    else:
        print(f"ok {name}: {' '.join(sorted(wanted)) or 'ran'}")
if count < 20:
    print(f"not ok kernels: only {count} were found in layers/*.cu")
