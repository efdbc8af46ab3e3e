"""Checks that each sample counts once in the weights of a server of islands (training jobs): leases.py RUN

A lease is a range of samples given to an island. By RUN/leases.jsonl no sample may be in two leases that are done.
Their samples must have as many tokens as the last round of RUN/metrics.jsonl says (sequence length from
RUN/config.json). Prints "N samples, T tokens, M before the last that do not count".
"""
import json
import sys

run = sys.argv[1]
seq_len = json.load(open(f"{run}/config.json"))["batch"]["seq_len"]
rounds = [json.loads(line) for line in open(f"{run}/metrics.jsonl") if '"kind":"outer"' in line]
used = {}
for line in open(f"{run}/leases.jsonl"):
    lease = json.loads(line)
    used.pop(lease["lease"], None)  # a later line of the same lease replaces the earlier one
    if lease["is"] == "done":
        used[lease["lease"]] = range(lease["first"], lease["first"] + lease["used"])
samples = [sample for lease in used.values() for sample in lease]
assert len(samples) == len(set(samples)), f"{len(samples) - len(set(samples))} samples count twice"
missing = max(samples) + 1 - len(samples)
assert rounds[-1]["tokens"] == len(samples) * seq_len, f"{rounds[-1]['tokens']} tokens by the server's count"
print(f"{len(samples)} samples, {len(samples) * seq_len} tokens, {missing} before the last that do not count")
