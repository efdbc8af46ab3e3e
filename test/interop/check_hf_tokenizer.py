"""Checks the tokenizer of a checkpoint folder as transformers loads it.

    check_hf_tokenizer.py FOLDER TEXT_FILE IDS_FILE     IDS_FILE: ids of the program, one a line

It must give the same ids, and the text back. The ids of the end of text must be in the vocabulary.
"""
import sys

from transformers import AutoConfig, AutoTokenizer, GenerationConfig

folder, text = sys.argv[1], open(sys.argv[2], encoding="utf-8", newline="").read()
ours = [int(line) for line in open(sys.argv[3]) if line.strip()]
tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
config = AutoConfig.from_pretrained(folder, local_files_only=True)
generation = GenerationConfig.from_pretrained(folder, local_files_only=True)
theirs = tokenizer(text)["input_ids"]
assert theirs == ours, f"{len(theirs)} ids, ours {len(ours)}; the first that differs: {next(i for i, (a, b) in enumerate(zip(theirs, ours)) if a != b)}"
assert tokenizer.decode(theirs) == text, "the ids do not give the text back"
assert len(tokenizer) <= config.vocab_size, (len(tokenizer), config.vocab_size)
for ends in (config, generation):
    assert ends.eos_token_id == ends.bos_token_id == tokenizer.eos_token_id, (ends.eos_token_id, tokenizer.eos_token_id)
print(f"{len(ours)} ids of {len(tokenizer)}, ends of text: {tokenizer.eos_token_id}")
