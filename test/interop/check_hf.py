"""Loads folders of the program in Hugging Face transformers, and makes folders in transformers for the program.

    check_hf.py logits FOLDER DTYPE TOKEN...   prints the logits of the folder's model, in float32, a line for each
                                               token; checks that its weights have type DTYPE
    check_hf.py rounded FOLDER EXPORTED DTYPE  checks that EXPORTED is FOLDER as transformers itself rounds it to DTYPE:
                                               equal bits of weights, equal logits
    check_hf.py make WORK                      makes models in WORK/sharded, /bf16, /quirks (with a stored head and
                                               masks, names without prefix) and /untied (with an output head of its own)
    check_hf.py make_kinds WORK                makes models of other classes. WORK/llama and /qwen3 have the sizes of
                                               released models, but one layer and few tokens. The small /llama-heads has
                                               heads that are together wider than the stream. /qwen3-moe is small, too.
"""
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import (AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM)

TOKENS = [116, 104, 101, 32, 113, 117, 105, 99, 107, 0, 255]


def load(folder, **how):
    """Returns the folder's model as transformers loads it. No tensor may be missing or left over."""
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, local_files_only=True, **how)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not info.get(kind), f"{kind}: {info[kind]}"
    assert isinstance(model, (GPT2LMHeadModel, LlamaForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM))
    return model.eval()


def logits_of(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].float()


def logits(folder, dtype, *tokens):
    model = load(folder, dtype="auto")
    assert str(model.dtype) == f"torch.{dtype}", model.dtype
    for row in logits_of(model.float(), [int(word) for word in tokens]).tolist():
        print(" ".join("%.9g" % value for value in row))


def rounded(folder, exported, dtype):
    """Checks that the weights of EXPORTED are those that transformers rounds, bit for bit, and that the logits
    computed from both are equal."""
    exact = logits_of(load(folder), TOKENS)
    theirs, ours = load(folder).to(getattr(torch, dtype)), load(exported, dtype="auto")
    for (name, a), (same, b) in zip(theirs.state_dict().items(), ours.state_dict().items(), strict=True):
        assert name == same and a.dtype == b.dtype and torch.equal(a, b), name
    a, b = logits_of(theirs, TOKENS), logits_of(ours, TOKENS)
    assert torch.equal(a, b), (a - b).abs().max()
    print(f"{exported}: as {dtype} logits are up to {(b - exact).abs().max():.3g} from those of float32")
    assert (b - exact).abs().max() > 0, "nothing was rounded"


def make(work):
    torch.manual_seed(5)
    config = GPT2Config(n_layer=3, n_head=8, n_embd=64, n_positions=40, vocab_size=300, initializer_range=0.2, bos_token_id=None, eos_token_id=None)
    model = GPT2LMHeadModel(config).eval()
    model.save_pretrained(f"{work}/sharded", max_shard_size="100KB")
    model.save_pretrained(f"{work}/quirks")
    state = {name.removeprefix("transformer."): value.clone().contiguous() for name, value in model.state_dict().items()}
    for i in range(config.n_layer):
        state[f"h.{i}.attn.bias"] = torch.ones(40, 40).tril().to(torch.uint8).view(1, 1, 40, 40)
        state[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    assert "lm_head.weight" in state
    save_file(state, f"{work}/quirks/model.safetensors", metadata={"format": "pt"})
    model.to(torch.bfloat16).save_pretrained(f"{work}/bf16", max_shard_size="50KB")
    config.tie_word_embeddings = False
    GPT2LMHeadModel(config).save_pretrained(f"{work}/untied", max_shard_size="100KB")
    for folder in ("sharded", "bf16", "untied"):
        assert os.path.exists(f"{work}/{folder}/model.safetensors.index.json"), folder


def make_kinds(work):
    torch.manual_seed(6)
    common = dict(vocab_size=300, max_position_embeddings=40, num_hidden_layers=1, initializer_range=0.1, bos_token_id=None, eos_token_id=None)
    scaling = dict(rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
    llama = LlamaConfig(hidden_size=2048, intermediate_size=8192, num_attention_heads=32, num_key_value_heads=8, rms_norm_eps=1e-5,
                        rope_theta=500000.0, rope_scaling=scaling, tie_word_embeddings=True, **common)
    heads = LlamaConfig(hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=40, **common)
    qwen3 = Qwen3Config(hidden_size=1024, intermediate_size=3072, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
                        rms_norm_eps=1e-6, rope_theta=1000000.0, tie_word_embeddings=True, **common)
    moe = Qwen3MoeConfig(hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=24, num_experts=6,
                         num_experts_per_tok=3, moe_intermediate_size=32, norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[],
                         rms_norm_eps=1e-6, rope_theta=1000000.0, **common)
    for name, model in (("llama", LlamaForCausalLM(llama)), ("llama-heads", LlamaForCausalLM(heads)), ("qwen3", Qwen3ForCausalLM(qwen3)),
                        ("qwen3-moe", Qwen3MoeForCausalLM(moe))):
        for key, weight in model.named_parameters():
            if "norm" in key:
                torch.nn.init.uniform_(weight, 0.5, 1.5)
        model.save_pretrained(f"{work}/{name}", max_shard_size="40MB" if name == "qwen3" else "5GB")


if __name__ == "__main__":
    {"logits": logits, "rounded": rounded, "make": make, "make_kinds": make_kinds}[sys.argv[1]](*sys.argv[2:])
