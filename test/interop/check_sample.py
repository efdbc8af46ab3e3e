"""Prints the greedy text of a checkpoint folder whose tokens are bytes, by Hugging Face transformers: check_sample.py
FOLDER TOKENS PROMPT
"""
import sys

import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], local_files_only=True).eval()
prompt = torch.tensor([list(sys.argv[3].encode())])
with torch.no_grad():
    ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=int(sys.argv[2]),
                         min_new_tokens=int(sys.argv[2]), pad_token_id=0, eos_token_id=None)
print(bytes(ids[0].tolist()).decode())
