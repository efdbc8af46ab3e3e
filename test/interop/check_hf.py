"""Logits of a checkpoint folder as Hugging Face transformers loads it: check_hf.py FOLDER TOKEN...  (a line of logits for each token)"""
import sys

import torch
from transformers import GPT2LMHeadModel

model, info = GPT2LMHeadModel.from_pretrained(sys.argv[1], output_loading_info=True, local_files_only=True)
for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
    assert not info.get(kind), f"{kind}: {info[kind]}"
model.eval()
with torch.no_grad():
    logits = model(torch.tensor([[int(word) for word in sys.argv[2:]]])).logits[0].float()
for row in logits.tolist():
    print(" ".join("%.9g" % value for value in row))
