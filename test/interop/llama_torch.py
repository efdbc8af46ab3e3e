"""Computes Llama in plain torch. It is written from the papers' formulas and the conventions of Hugging Face, and
shares no code with train_gpt.

    llama_torch.py FOLDER TOKEN...     prints a line for each token: vocab_size logits
"""
import json
import math
import sys

import torch
from gpt2_torch import read_safetensors


def frequencies(config, size):
    """Returns the rotation of each pair of channels, in radians per position. rope_type llama3 reduces those with
    long wavelengths."""
    plain = config["rope_theta"] ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    scaling = config["rope_scaling"]
    if scaling is None:
        return plain
    assert scaling["rope_type"] == "llama3"
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * plain / (2 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - share) * plain / scaling["factor"] + share * plain


def logits(folder, tokens):
    config = json.load(open(f"{folder}/config.json"))
    assert config["architectures"] == ["LlamaForCausalLM"] and config["hidden_act"] == "silu" and not config["attention_bias"]
    weights = {name: t.double() for name, t in read_safetensors(f"{folder}/model.safetensors").items()}
    assert config["tie_word_embeddings"] == ("lm_head.weight" not in weights)
    heads, keys, size = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    angles = torch.outer(torch.arange(len(tokens), dtype=torch.float64), frequencies(config, size))

    def norm(x, name):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + config["rms_norm_eps"]) * weights[name + ".weight"]

    def linear(x, name):  # the weights are stored as [out, in]
        return x @ weights[name + ".weight"].T

    def turn(x):
        low, high = x[..., :size // 2], x[..., size // 2:]
        return torch.cat([low * angles.cos() - high * angles.sin(), high * angles.cos() + low * angles.sin()], -1)

    def attention(x, name):
        T = len(tokens)
        q, k, v = (linear(x, f"{name}.{n}_proj").reshape(T, -1, size).transpose(0, 1) for n in "qkv")
        q, k, shared = turn(q), turn(k), [h // (heads // keys) for h in range(heads)]
        scores = (q @ k[shared].transpose(1, 2) / math.sqrt(size)).masked_fill(torch.ones(T, T).triu(1).bool(), float("-inf"))
        return linear((scores.softmax(-1) @ v[shared]).transpose(0, 1).reshape(T, heads * size), name + ".o_proj")

    x = weights["model.embed_tokens.weight"][tokens]
    for i in range(config["num_hidden_layers"]):
        block = f"model.layers.{i}"
        x = x + attention(norm(x, block + ".input_layernorm"), block + ".self_attn")
        y = norm(x, block + ".post_attention_layernorm")
        gate = linear(y, block + ".mlp.gate_proj")
        x = x + linear(gate * torch.sigmoid(gate) * linear(y, block + ".mlp.up_proj"), block + ".mlp.down_proj")
    return norm(x, "model.norm") @ weights.get("lm_head.weight", weights["model.embed_tokens.weight"]).T


if __name__ == "__main__":
    for row in logits(sys.argv[1], [int(word) for word in sys.argv[2:]]).tolist():
        print(" ".join("%.9g" % value for value in row))
