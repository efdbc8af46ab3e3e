"""Computes GPT-2 in plain torch. It is written from the paper's formulas and the conventions of safetensors and Hugging
Face, and shares no code with train_gpt.

    gpt2_torch.py FOLDER TOKEN...     prints a line for each token: vocab_size logits (float32)
"""
import json
import math
import struct
import sys

import torch


def read_safetensors(path):
    """Returns a dict from names to tensors. The file is a u64 length of the header, a JSON header, and the bytes.
    Every byte must belong to exactly one tensor."""
    types = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    data = open(path, "rb").read()
    (n,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + n])
    assert header.pop("__metadata__") == {"format": "pt"} and n % 8 == 0
    tensors, at = {}, 0
    for name, entry in header.items():  # tensors in the order of the file
        begin, end = entry["data_offsets"]
        assert begin == at, f"{name} begins at {begin}, not {at}"
        at = end
        flat = torch.frombuffer(bytearray(data[8 + n + begin:8 + n + end]), dtype=types[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    assert 8 + n + at == len(data)
    return tensors


def logits(folder, tokens):
    config = json.load(open(f"{folder}/config.json"))
    assert config["architectures"] == ["GPT2LMHeadModel"] and config["tie_word_embeddings"]
    weights = read_safetensors(f"{folder}/model.safetensors")
    assert not any(name.startswith("lm_head") for name in weights)
    heads, eps = config["n_head"], config["layer_norm_epsilon"]

    def norm(x, name):
        mean, var = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) / torch.sqrt(var + eps) * weights[name + ".weight"] + weights[name + ".bias"]

    def conv1d(x, name):  # the weights are stored as [in, out], as in GPT-2's Conv1D
        return x @ weights[name + ".weight"] + weights[name + ".bias"]

    activation = {
        "gelu_new": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))),
        "relu2": lambda x: torch.clamp(x, min=0) ** 2,
        "silu": lambda x: x * torch.sigmoid(x),
        "gelu": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
    }[config["activation_function"]]

    def attention(x, name):
        T, C = x.shape
        q, k, v = (part.reshape(T, heads, C // heads).transpose(0, 1) for part in conv1d(x, name + ".c_attn").split(C, dim=-1))
        scores = q @ k.transpose(1, 2) / math.sqrt(C // heads)
        scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), float("-inf"))
        return conv1d((scores.softmax(-1) @ v).transpose(0, 1).reshape(T, C), name + ".c_proj")

    x = weights["transformer.wte.weight"][tokens] + weights["transformer.wpe.weight"][:len(tokens)]
    for i in range(config["n_layer"]):
        block = f"transformer.h.{i}"
        x = x + attention(norm(x, block + ".ln_1"), block + ".attn")
        x = x + conv1d(activation(conv1d(norm(x, block + ".ln_2"), block + ".mlp.c_fc")), block + ".mlp.c_proj")
    return norm(x, "transformer.ln_f") @ weights["transformer.wte.weight"].T


if __name__ == "__main__":
    for row in logits(sys.argv[1], [int(word) for word in sys.argv[2:]]).tolist():
        print(" ".join("%.9g" % value for value in row))
