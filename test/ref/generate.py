#!/usr/bin/env python3
"""generate.py - makes the recorded reference results: every op and a small GPT-2 in PyTorch float64, with gradients by
autograd, AdamW and Muon.

Writes test/ref/data/*.rec in the format of record.h. Inputs are exact in fp32 and stored in fp32. Results are float64,
except the model's gradients and final weights, which are fp32 (their tolerances are at least 30 times its rounding).
The files are committed, so the tests need no Python. Run from anywhere: /usr/bin/python3 test/ref/generate.py
"""
import math
import os
import struct

import numpy as np
import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(2019)
torch.set_num_threads(1)
DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
CODES = {np.dtype("float32"): 0, np.dtype("float64"): 1, np.dtype("int32"): 2}


class Writer:
    def __init__(self, name):
        self.out = open(os.path.join(DATA, name + ".rec"), "wb")
        self.out.write(b"tensors1")

    def put(self, name, tensor, dtype=None):
        a = tensor.detach().numpy() if torch.is_tensor(tensor) else np.asarray(tensor)
        a = np.ascontiguousarray(a.astype(dtype) if dtype else a)
        dims = list(a.shape) + [1] * (4 - a.ndim)
        label = name.encode()
        assert len(label) < 64
        self.out.write(struct.pack("<64sii4q", label, CODES[a.dtype], a.ndim, *dims))
        self.out.write(a.tobytes() + b"\0" * (-a.nbytes % 8))


def exact(*shape, scale=1.0, shift=0.0):
    """Returns random values that fp32 holds exactly, as float64."""
    return (torch.randn(*shape) * scale + shift).float().double()


def leaf(t):
    return t.clone().requires_grad_()


def op_records():
    w = Writer("ops")

    def inputs(prefix, **tensors):
        for name, t in tensors.items():
            w.put(f"{prefix}.{name}", t, "int32" if t.dtype == torch.int64 else "float32")

    def results(prefix, **tensors):
        for name, t in tensors.items():
            w.put(f"{prefix}.{name}", t)

    B, T, C, V, P = 3, 7, 21, 11, 9
    tokens = torch.randint(0, V, (B, T))
    wte, wpe, dy = leaf(exact(V, C)), leaf(exact(P, C)), exact(B * T, C)
    y = (wte[tokens] + wpe[:T]).reshape(B * T, C)
    y.backward(dy)
    inputs("embedding", tokens=tokens, wte=wte, wpe=wpe, dy=dy)
    results("embedding", y=y, dwte=wte.grad, dwpe=wpe.grad)

    N, C = 6, 37
    x, update, weight, bias = leaf(exact(N, C, scale=2.0, shift=0.5)), exact(N, C), leaf(exact(C, shift=1.0)), leaf(exact(C))
    dy, dresidual = exact(N, C), exact(N, C)
    y = F.layer_norm(x, (C,), weight, bias, 1e-5)
    y.backward(dy)
    inputs("layernorm", x=x, w=weight, b=bias, dy=dy, dresidual=dresidual, update=update)
    results("layernorm", y=y, dx=x.grad + dresidual, dw=weight.grad, db=bias.grad, mean=x.mean(1), rstd=1 / torch.sqrt(x.var(1, unbiased=False) + 1e-5),
            residual_y=F.layer_norm((x + update), (C,), weight, bias, 1e-5), residual_sum=x + update)

    N, K, M = 9, 13, 19
    x, weight, bias, dy = leaf(exact(N, K)), leaf(exact(K, M)), leaf(exact(M)), exact(N, M)
    y = x @ weight + bias
    y.backward(dy)
    inputs("linear", x=x, w=weight, b=bias, dy=dy)
    results("linear", y=y, dx=x.grad, dw=weight.grad, db=bias.grad, gelu=F.gelu(y, approximate="tanh"))
    # The second product of an MLP. Its input is x = gelu(pre), and the backward pass goes on to the gradient of pre.
    pre, weight, bias = leaf(exact(N, K)), leaf(exact(K, M)), leaf(exact(M))
    x = F.gelu(pre, approximate="tanh").float().double()  # x rounded to fp32, as a program in fp32 stores it
    y = F.gelu(pre, approximate="tanh") @ weight + bias
    y.backward(dy)
    inputs("linear_gelu", pre=pre, x=x, w=weight, dy=dy)
    results("linear_gelu", dpre=pre.grad, dw=weight.grad, db=bias.grad)

    x, dy = leaf(torch.cat([exact(5, 17, scale=2.0), torch.linspace(-12, 12, 51).float().double().reshape(3, 17)])), exact(8, 17)
    y = F.gelu(x, approximate="tanh")
    y.backward(dy)
    inputs("gelu", x=x, dy=dy)
    results("gelu", y=y, dx=x.grad)

    B, T, H, D = 2, 40, 3, 14
    qkv, dy = leaf(exact(B * T, 3 * H * D)), exact(B * T, H * D)
    q, k, v = (t.reshape(B, T, H, D).transpose(1, 2) for t in qkv.reshape(B, T, 3 * H * D).split(H * D, 2))
    scores = (q @ k.transpose(2, 3) / math.sqrt(D)).masked_fill(torch.ones(T, T).tril() == 0, -math.inf)
    y = (scores.softmax(3) @ v).transpose(1, 2).reshape(B * T, H * D)
    y.backward(dy)
    inputs("attention", qkv=qkv, dy=dy)
    results("attention", y=y, lse=scores.logsumexp(3).reshape(B * H, T), dqkv=qkv.grad)

    n, C, V, VP = 5, 42, 61, 64
    x, wte, dlogits = leaf(exact(n, C)), leaf(exact(VP, C)), exact(n, VP)
    logits = x @ wte[:V].T
    logits.backward(dlogits[:, :V])
    inputs("head", x=x, wte=wte, dlogits=dlogits)
    results("head", logits=logits, dx=x.grad, dwte=wte.grad)

    n, V = 5, 389
    logits, targets = leaf(exact(n, V, scale=3.0)), torch.randint(0, V, (n,))
    losses = F.cross_entropy(logits, targets, reduction="none")
    losses.sum().backward()
    inputs("classifier", logits=logits, targets=targets)
    results("classifier", loss=losses, dlogits=logits.grad)

    p = leaf(exact(101))
    optimizer = torch.optim.AdamW([p], lr=float(np.float32(1e-2)), betas=(float(np.float32(0.9)), float(np.float32(0.95))),
                                  eps=float(np.float32(1e-8)), weight_decay=float(np.float32(0.1)))
    grads = exact(3, 101)
    inputs("adamw", p=p, grads=grads)
    for step in range(3):
        p.grad = grads[step] * 0.5
        optimizer.step()
        results("adamw", **{f"p{step + 1}": p})
    results("adamw", m3=optimizer.state[p]["exp_avg"], v3=optimizer.state[p]["exp_avg_sq"])


def norm_records():
    """Writes rmsnorm, head_norm and swiglu to a file of their own, with a seed of their own, so that the other files
    stay as they are."""
    torch.manual_seed(2020)
    w = Writer("norms")

    def rms_norm(x, weight):  # RMSNorm as in transformers' LlamaRMSNorm, in float64
        return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))

    def put(prefix, dtype=None, **tensors):
        for name, t in tensors.items():
            w.put(f"{prefix}.{name}", t, dtype)

    N, C = 6, 37
    x, weight, update = leaf(exact(N, C, scale=2.0, shift=0.5)), leaf(exact(C, shift=1.0)), exact(N, C)
    dy, dresidual = exact(N, C), exact(N, C)
    y = rms_norm(x, weight)
    y.backward(dy)
    put("rmsnorm", "float32", x=x, w=weight, dy=dy, dresidual=dresidual, update=update)
    put("rmsnorm", y=y, rstd=torch.rsqrt(x.pow(2).mean(1) + 1e-5), dx=x.grad + dresidual, dw=weight.grad,
        residual_sum=x + update, residual_y=rms_norm(x + update, weight))

    N, first, heads, D, wide = 5, 7, 3, 14, 60
    x, weight, dy = leaf(exact(N, wide, scale=2.0)), leaf(exact(D, shift=1.0)), exact(N, wide)
    y = rms_norm(x[:, first:first + heads * D].reshape(N, heads, D), weight).reshape(N, heads * D)
    y.backward(dy[:, first:first + heads * D])
    put("head_norm", "float32", x=x, w=weight, dy=dy)
    put("head_norm", y=y, dx=x.grad[:, first:first + heads * D], dw=weight.grad)

    gate_up = leaf(torch.cat([exact(5, 34, scale=2.0), torch.linspace(-24, 24, 102).float().double().reshape(3, 34)]))
    dy = exact(8, 17)
    gate, up = gate_up.split(17, 1)
    y = F.silu(gate) * up
    y.backward(dy)
    put("swiglu", "float32", gate_up=gate_up, dy=dy)
    put("swiglu", y=y, dgate_up=gate_up.grad)


def head_records():
    """Writes rotary positions as in LlamaForCausalLM, and attention whose heads share keys and values. The seed is
    its own."""
    torch.manual_seed(2104)
    w = Writer("heads")
    B, T, H, KEYS, D, THETA, FIRST = 2, 20, 6, 2, 10, 500000.0, 131000
    qkv, dy = leaf(exact(B * T, (H + 2 * KEYS) * D)), exact(B * T, (H + 2 * KEYS) * D)
    frequencies = THETA ** (-torch.arange(0, D, 2).double() / D)
    angles = torch.outer(torch.arange(FIRST, FIRST + T).double(), frequencies.float().double())
    cos, sin = (torch.cat([t, t], 1).repeat(B, 1)[:, None, :] for t in (angles.cos(), angles.sin()))
    x = qkv.reshape(B * T, H + 2 * KEYS, D)
    turned = x * cos + torch.cat([-x[..., D // 2:], x[..., :D // 2]], 2) * sin
    y = torch.cat([turned[:, :H + KEYS], x[:, H + KEYS:]], 1).reshape(B * T, -1)
    y.backward(dy)
    w.put("rope.qkv", qkv, "float32"), w.put("rope.dy", dy, "float32"), w.put("rope.shape", [H, KEYS, D, T, FIRST], "int32")
    w.put("rope.frequencies", frequencies), w.put("rope.y", y), w.put("rope.dqkv", qkv.grad)

    qkv, dy = leaf(exact(B * T, (H + 2 * KEYS) * D)), exact(B * T, H * D)
    q, k, v = (t.reshape(B, T, -1, D).transpose(1, 2) for t in qkv.split([H * D, KEYS * D, KEYS * D], 1))
    k, v = (t.repeat_interleave(H // KEYS, 1) for t in (k, v))
    scores = (q @ k.transpose(2, 3) / math.sqrt(D)).masked_fill(torch.ones(T, T).tril() == 0, -math.inf)
    y = (scores.softmax(3) @ v).transpose(1, 2).reshape(B * T, H * D)
    y.backward(dy)
    w.put("attention.qkv", qkv, "float32"), w.put("attention.dy", dy, "float32"), w.put("attention.shape", [H, KEYS, D], "int32")
    w.put("attention.y", y), w.put("attention.lse", scores.logsumexp(3).reshape(B * H, T)), w.put("attention.dqkv", qkv.grad)


def routed(probability, bias, k, normed):
    """Chooses k experts for each token as Qwen3MoeTopKRouter does. Returns them and their weights. bias changes only
    the choice."""
    expert = torch.sort(probability + bias, dim=1, descending=True, stable=True)[1][:, :k]
    weight = probability.gather(1, expert)
    return expert, weight / weight.sum(1, keepdim=True) if normed else weight


def expert_mlp(x, gate, experts, k, normed, bias=0.0):
    """Adds up the MLPs of each token's experts as Qwen3MoeSparseMoeBlock does. experts: a list of (gate_proj,
    up_proj, down_proj). Returns the sums and the chosen experts."""
    expert, weight = routed((x @ gate.T).softmax(1), bias, k, normed)
    y = torch.zeros_like(x)
    for e, (gate_proj, up_proj, down_proj) in enumerate(experts):
        token, j = torch.where(expert == e)
        y = y.index_add(0, token, (F.silu(x[token] @ gate_proj.T) * (x[token] @ up_proj.T)) @ down_proj.T * weight[token, j, None])
    return y, expert


def expert_records():
    """Writes results of the router and of an MLP of experts. The seed is its own."""
    torch.manual_seed(1701)
    w = Writer("experts")
    N, E, k = 9, 7, 3
    logits, bias, dweight = leaf(exact(N, E, scale=2.0)), exact(E, scale=0.1), exact(N, k)
    for normed in (False, True):
        prefix = "router_normed" if normed else "router"
        logits.grad = None
        probability = logits.softmax(1)
        expert, weight = routed(probability, bias, k, normed)
        weight.backward(dweight)
        if not normed:
            w.put("router.logits", logits, "float32"), w.put("router.bias", bias, "float32"), w.put("router.dweight", dweight, "float32")
            w.put("router.expert", expert, "int32"), w.put("router.probability", probability)
        w.put(prefix + ".weight", weight), w.put(prefix + ".dlogits", logits.grad)

    N, E, k, C, INNER = 14, 5, 2, 20, 12
    x, gate = leaf(exact(N, C)), leaf(exact(E, C))
    gate_up, down, dy = leaf(exact(E, 2 * INNER, C)), leaf(exact(E, C, INNER)), exact(N, C)
    y, _ = expert_mlp(x, gate, [(g[:INNER], g[INNER:], d) for g, d in zip(gate_up, down)], k, True)
    y.backward(dy)
    for name, t in (("x", x), ("gate", gate), ("gate_up", gate_up.flatten(0, 1)), ("down", down.flatten(0, 1)), ("dy", dy)):
        w.put("mlp." + name, t, "float32")
    w.put("mlp.k", [k], "int32")
    for name, t in (("y", y), ("dx", x.grad), ("dgate", gate.grad), ("dgate_up", gate_up.grad.flatten(0, 1)),
                    ("ddown", down.grad.flatten(0, 1))):
        w.put("mlp." + name, t)


def loss_records():
    """Writes the cross entropy of logits with a soft cap, and its gradient with the z-loss."""
    torch.manual_seed(2408)
    w = Writer("loss")
    n, V, softcap, z = 5, 61, 5.0, 0.0078125
    logits, targets = leaf(exact(n, V, scale=6.0)), torch.randint(0, V, (n,))
    y = softcap * torch.tanh(logits / softcap)
    losses = F.cross_entropy(y, targets, reduction="none")
    (losses + z * y.logsumexp(1) ** 2).sum().backward()
    w.put("loss.logits", logits, "float32"), w.put("loss.targets", targets, "int32"), w.put("loss.terms", [softcap, z], "float64")
    w.put("loss.loss", losses), w.put("loss.dlogits", logits.grad)


def document_records():
    """Writes results for sequences of several documents: attention within documents, and positions that begin anew
    in each. The seed is its own."""
    torch.manual_seed(2107)
    w = Writer("documents")
    B, T, H, KEYS, D, V, C = 2, 40, 4, 2, 10, 13, 7
    starts = torch.zeros(B, T, dtype=torch.long)
    for b, cuts in enumerate(((3, 4, 19), (1, 25))):
        for cut in cuts:
            starts[b, cut:] = cut
    position, document = torch.arange(T), starts
    # [sequence, query, key]: true if the query may attend to the key
    seen = (position[:, None] >= position) & (document[:, :, None] == document[:, None, :])
    qkv, dy = leaf(exact(B * T, (H + 2 * KEYS) * D)), exact(B * T, H * D)
    q, k, v = (t.reshape(B, T, -1, D).transpose(1, 2) for t in qkv.split([H * D, KEYS * D, KEYS * D], 1))
    k, v = (t.repeat_interleave(H // KEYS, 1) for t in (k, v))
    scores = (q @ k.transpose(2, 3) / math.sqrt(D)).masked_fill(~seen[:, None], -math.inf)
    y = (scores.softmax(3) @ v).transpose(1, 2).reshape(B * T, H * D)
    y.backward(dy)
    w.put("starts", starts, "int32"), w.put("attention.shape", [H, KEYS, D], "int32")
    w.put("attention.qkv", qkv, "float32"), w.put("attention.dy", dy, "float32")
    w.put("attention.y", y), w.put("attention.lse", scores.logsumexp(3).reshape(B * H, T)), w.put("attention.dqkv", qkv.grad)
    tokens, wte, wpe, dy = torch.randint(0, V, (B, T)), leaf(exact(V, C)), leaf(exact(T, C)), exact(B * T, C)
    y = (wte[tokens] + wpe[position - starts]).reshape(B * T, C)
    y.backward(dy)
    w.put("embedding.tokens", tokens, "int32"), w.put("embedding.wte", wte, "float32"), w.put("embedding.wpe", wpe, "float32")
    w.put("embedding.dy", dy, "float32"), w.put("embedding.y", y), w.put("embedding.dwte", wte.grad), w.put("embedding.dwpe", wpe.grad)


# --- the model ----------------------------------------------------------------------------------------------------------------------

L, H, C, V, T, B, STEPS = 2, 3, 42, 389, 40, 4, 20  # sizes of the model in gpt.rec
GRID = 4, 4, 32, 389, 256, 8, 20  # sizes of the model in grid.rec, which ranks of every axis can divide
WARMUP, LR, FINAL, DECAY, CLIP = 5, 1e-3, 0.1, 0.1, 1.0
SCORES, LOGITS = 1.0, 1.0  # factors of attention's scores and of the logits; only mup_records sets others


def shapes():
    yield "transformer.wte.weight", (V, C)
    yield "transformer.wpe.weight", (T, C)
    for i in range(L):
        for name, shape in (("ln_1", (C,)), ("attn.c_attn", (C, 3 * C)), ("attn.c_proj", (C, C)), ("ln_2", (C,)), ("mlp.c_fc", (C, 4 * C)),
                            ("mlp.c_proj", (4 * C, C))):
            yield f"transformer.h.{i}.{name}.weight", shape
            yield f"transformer.h.{i}.{name}.bias", shape[-1:]
    yield "transformer.ln_f.weight", (C,)
    yield "transformer.ln_f.bias", (C,)


def initial(name, shape):
    if "norm" in name or ("ln_" in name and name.endswith("weight")):
        return exact(*shape, scale=0.1, shift=1.0)
    scale = 0.02 / math.sqrt(2 * L) if name.endswith(("c_proj.weight", "o_proj.weight", "down_proj.weight")) else 0.02
    return exact(*shape, scale=scale)  # biases are random too, because zeros would hide faults


def gelu_new(x):
    return F.gelu(x, approximate="tanh")


# Activation functions whose expected results are in a reference file of their own, gpt_NAME.rec: NAME, and the
# function.
ACTIVATIONS = {"relu2": lambda x: F.relu(x) ** 2, "gelu": F.gelu}


def model_loss(p, inputs, targets, activation=gelu_new):
    def norm(x, name):
        return F.layer_norm(x, (C,), p[name + ".weight"], p[name + ".bias"], 1e-5)

    def conv1d(x, name):
        return x @ p[name + ".weight"] + p[name + ".bias"]

    batch = inputs.shape[0]
    x = p["transformer.wte.weight"][inputs] + p["transformer.wpe.weight"]
    for i in range(L):
        h = f"transformer.h.{i}."
        q, k, v = (t.reshape(batch, T, H, C // H).transpose(1, 2) for t in conv1d(norm(x, h + "ln_1"), h + "attn.c_attn").split(C, 2))
        scores = (q @ k.transpose(2, 3) / (math.sqrt(C // H) / SCORES)).masked_fill(torch.ones(T, T).tril() == 0, -math.inf)
        x = x + conv1d((scores.softmax(3) @ v).transpose(1, 2).reshape(batch, T, C), h + "attn.c_proj")
        x = x + conv1d(activation(conv1d(norm(x, h + "ln_2"), h + "mlp.c_fc")), h + "mlp.c_proj")
    logits = norm(x, "transformer.ln_f") @ p["transformer.wte.weight"].T * LOGITS
    return F.cross_entropy(logits.reshape(-1, V), targets.reshape(-1))


def learning_rate(s):
    if s < WARMUP:
        return LR * (s + 1) / WARMUP
    return LR * (FINAL + (1 - FINAL) * (1 + math.cos(math.pi * (s - WARMUP) / (STEPS - WARMUP))) / 2)


def initial_records(w, shapes):
    p = {name: leaf(initial(name, shape)) for name, shape in shapes()}
    for name, t in p.items():
        w.put("init." + name, t, "float32")
    tokens = (torch.rand(STEPS, B, T + 1) ** 3 * V).long()  # low token ids are more frequent, as in a real text
    w.put("tokens", tokens, "int32")
    return p, tokens


def adamw_of(p):
    return torch.optim.AdamW([{"params": [t for t in p if t.dim() >= 2], "weight_decay": DECAY},
                              {"params": [t for t in p if t.dim() < 2], "weight_decay": 0.0}], betas=(0.9, 0.95), eps=1e-8)


def train(p, tokens, optimizers, first_step=lambda: None, model_loss=model_loss, sizes={}):
    """Trains STEPS steps. Returns losses, gradient norms and learning rates. sizes: factors by which the program
    under test stores some parameters; norms are those of the program's gradients."""
    losses, norms, rates = [], [], []
    for s in range(STEPS):
        loss = model_loss(p, tokens[s, :, :-1], tokens[s, :, 1:])
        for t in p.values():
            t.grad = None
        loss.backward()
        if s == 0:
            first_step()
        norm = math.sqrt(sum(float(((t.grad / sizes.get(key, 1.0)) ** 2).sum()) for key, t in p.items()))
        for t in p.values():
            t.grad *= min(1.0, CLIP / norm)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(s) * group.get("rate", 1.0)
            optimizer.step()
        losses.append(float(loss)), norms.append(norm), rates.append(learning_rate(s))
    return losses, norms, rates


def activation_records(name, before, tokens):
    """Writes training of the model in gpt.rec, but with another activation function: gradients of the first step,
    losses and norms of all steps."""
    w = Writer("gpt_" + name)
    p = {key: leaf(t) for key, t in before.items()}

    def first_step():
        for key, t in p.items():
            w.put("grad." + key, t.grad, "float32")

    losses, norms, _ = train(p, tokens, [adamw_of(list(p.values()))], first_step, lambda *of: model_loss(*of, ACTIVATIONS[name]))
    w.put("loss", losses, "float64"), w.put("grad_norm", norms, "float64")
    print("gpt_" + name, "losses", losses, "norms", norms)


def final_records(w, p, name, numbers):
    losses, norms, rates = numbers
    for key, t in p.items():
        w.put("final." + key, t, "float32")
    w.put("loss", losses, "float64"), w.put("grad_norm", norms, "float64"), w.put("learning_rate", rates, "float64")
    print(name, "losses", losses, "norms", norms)


# --- llama --------------------------------------------------------------------------------------------------------------------------

# KEYS: heads of keys and values; INNER: width of the MLP; SCALING of positions: factor, low, high, original positions
KEYS, INNER, EPS, THETA, SCALING = 2, 92, 1e-5, 10000.0, (8.0, 1.0, 4.0, 64)
LLAMA = 2, 4, 48, 389, 40, 4, 20
HEAD, HEAD_NORMS = 12, False  # head size; whether each head of queries and keys has a norm. as_qwen3 changes both.


def as_qwen3():
    global EPS, THETA, SCALING, HEAD, HEAD_NORMS
    EPS, THETA, SCALING, HEAD, HEAD_NORMS = 1e-6, 1e6, None, 16, True


EXPERTS = None  # sizes of the experts; None in models without experts


def EXPERT_ROWS():
    yield "mlp.gate", (EXPERTS.count, C)
    for e in range(EXPERTS.count):
        yield from ((f"mlp.experts.{e}.gate_proj", (EXPERTS.inner, C)), (f"mlp.experts.{e}.up_proj", (EXPERTS.inner, C)),
                    (f"mlp.experts.{e}.down_proj", (C, EXPERTS.inner)))


class Experts:
    """The MLPs of Qwen3MoE, and what balances the load of experts. With "bias" it changes a bias of the choice after
    each step, and train() takes it for an optimizer. With "switch" it adds the gradient of Switch's loss of each
    sequence; the reported loss has no such term."""
    count, k, inner = 6, 2, 20

    def __init__(self, balance, rate):
        self.balance, self.rate, self.param_groups, self.seen = balance, rate, [], []

    def mlp(self, p, h, y):
        batch, rows = y.shape[0], y.reshape(-1, C)
        bias = p.get(h + "mlp.gate.e_score_correction_bias", torch.zeros(self.count)).detach()
        experts = [[p[h + f"mlp.experts.{e}.{n}_proj.weight"] for n in ("gate", "up", "down")] for e in range(self.count)]
        out, expert = expert_mlp(rows, p[h + "mlp.gate.weight"], experts, self.k, True, bias)
        probability = (rows @ p[h + "mlp.gate.weight"].T).softmax(1).reshape(batch, -1, self.count)
        counts = F.one_hot(expert, self.count).sum(1).reshape(batch, -1, self.count).sum(1)
        self.seen.append((h, counts.sum(0), self.count * (counts / (T * self.k) * probability.mean(1)).sum(1).mean()))
        return out.reshape(y.shape)

    def loss(self, p, inputs, targets):
        self.seen, self.p = [], p
        loss = llama_loss(p, inputs, targets)
        if self.balance == "switch":
            extra = self.rate * sum(term for _, _, term in self.seen)
            return loss + (extra - extra.detach())
        return loss + 0.0 * sum(t.sum() for name, t in p.items() if name.endswith("_bias"))

    def step(self):
        for h, counts, _ in self.seen if self.balance == "bias" else ():
            with torch.no_grad():
                self.p[h + "mlp.gate.e_score_correction_bias"] += self.rate * torch.sign(counts.double().mean() - counts)


def llama_shapes(tied):
    yield "model.embed_tokens.weight", (V, C)
    q, kv = H * HEAD, KEYS * HEAD
    norms = (("self_attn.q_norm", (HEAD,)), ("self_attn.k_norm", (HEAD,))) if HEAD_NORMS else ()
    mlp = tuple(EXPERT_ROWS()) if EXPERTS else (("mlp.gate_proj", (INNER, C)), ("mlp.up_proj", (INNER, C)), ("mlp.down_proj", (C, INNER)))
    for i in range(L):
        for name, shape in (*norms, ("input_layernorm", (C,)), ("self_attn.q_proj", (q, C)), ("self_attn.k_proj", (kv, C)),
                            ("self_attn.v_proj", (kv, C)), ("self_attn.o_proj", (C, q)), ("post_attention_layernorm", (C,)), *mlp):
            yield f"model.layers.{i}.{name}.weight", shape
        if EXPERTS and EXPERTS.balance == "bias":
            yield f"model.layers.{i}.mlp.gate.e_score_correction_bias", (EXPERTS.count,)
    if not tied:
        yield "lm_head.weight", (V, C)
    yield "model.norm.weight", (C,)


def llama_frequencies():
    """Returns the rotary frequencies as transformers' rope_type llama3 scales them, rounded to fp32 as in every
    implementation."""
    plain = THETA ** (-torch.arange(0, HEAD, 2).double() / HEAD)
    if SCALING is None:
        return plain.float().double()
    factor, low, high, original = SCALING
    turns = original * plain / (2 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return ((1 - share) * plain / factor + share * plain).float().double()


def llama_loss(p, inputs, targets):
    angles = torch.outer(torch.arange(T).double(), llama_frequencies())
    cos, sin = torch.cat([angles, angles], 1).cos(), torch.cat([angles, angles], 1).sin()

    def norm(x, name):
        return p[name + ".weight"] * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS))

    def linear(x, name):
        return x @ p[name + ".weight"].T

    def turned(x):
        return x * cos + torch.cat([-x[..., HEAD // 2:], x[..., :HEAD // 2]], 3) * sin

    batch = inputs.shape[0]
    x = p["model.embed_tokens.weight"][inputs]
    for i in range(L):
        h = f"model.layers.{i}."
        y = norm(x, h + "input_layernorm")
        q, k, v = (linear(y, h + f"self_attn.{n}_proj").reshape(batch, T, -1, HEAD).transpose(1, 2) for n in "qkv")
        if HEAD_NORMS:
            q, k = norm(q, h + "self_attn.q_norm"), norm(k, h + "self_attn.k_norm")
        k, v = (t.repeat_interleave(H // KEYS, 1) for t in (turned(k), v))
        scores = (turned(q) @ k.transpose(2, 3) / (math.sqrt(HEAD) / SCORES)).masked_fill(torch.ones(T, T).tril() == 0, -math.inf)
        x = x + linear((scores.softmax(3) @ v).transpose(1, 2).reshape(batch, T, H * HEAD), h + "self_attn.o_proj")
        y = norm(x, h + "post_attention_layernorm")
        x = x + (EXPERTS.mlp(p, h, y) if EXPERTS else
                 linear(F.silu(linear(y, h + "mlp.gate_proj")) * linear(y, h + "mlp.up_proj"), h + "mlp.down_proj"))
    head = p.get("lm_head.weight", p["model.embed_tokens.weight"])
    return F.cross_entropy((norm(x, "model.norm") @ head.T * LOGITS).reshape(-1, V), targets.reshape(-1))


def model_records(name, shapes=shapes, model_loss=model_loss, optimizers=()):
    """Trains a model and writes its first weights, first gradients, losses, norms and last weights. Returns the
    first weights and the tokens."""
    w = Writer(name)
    p, tokens = initial_records(w, shapes)
    before = {key: t.detach().clone() for key, t in p.items()}

    def first_gradients():
        for key, t in p.items():
            w.put("grad." + key, t.grad, "float32")

    final_records(w, p, name, train(p, tokens, [adamw_of(list(p.values())), *optimizers], first_gradients, model_loss))
    return before, tokens


# --- muon ---------------------------------------------------------------------------------------------------------------------------


# The first five iterations of Polar Express, as listed by Amsel et al., arXiv:2505.16932.
POLAR_EXPRESS = [(8.28721201814563, -23.595886519098837, 17.300387312530933), (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
                 (3.9486908534822946, -2.908902115962949, 0.5518191394370137), (3.3184196573706015, -2.488488024314874, 0.51004894012372),
                 (2.300652019954817, -1.6689039845747493, 0.4188073119525673)]


def newton_schulz(x, polar=False):
    """Returns the matrix x made nearly orthogonal, in float64: as published by Jordan et al.,
    kellerjordan.github.io/posts/muon, or by Polar Express with its margins."""
    if x.size(0) > x.size(1):
        return newton_schulz(x.T, polar).T
    rounds = [(a / 1.01, b / 1.01 ** 3, c / 1.01 ** 5) for a, b, c in POLAR_EXPRESS] if polar else [(3.4445, -4.7750, 2.0315)] * 5
    x = x / (x.norm() * (1.02 if polar else 1)).clamp(min=1e-7)
    for a, b, c in rounds:
        A = x @ x.T
        x = a * x + (b * A + c * A @ A) @ x
    return x


class Muon(torch.optim.Optimizer):
    """Muon as in torch.optim.Muon of later versions, with Moonlight's scale. The matrix of q, k and v is treated as
    three. With NorMuon (Li et al., arXiv:2510.05491) a neuron is a column here, because weights are stored as [in,
    out]."""

    def __init__(self, params, polar=False, normuon=False):
        super().__init__(params, {"lr": 0.0})
        self.polar, self.normuon = polar, normuon

    def scaled(self, t, i, x):
        x = newton_schulz(x, self.polar)
        if self.normuon:
            v = self.state[t].setdefault(i, torch.zeros(x.size(1)))
            v.lerp_((x ** 2).mean(0), 1 - 0.95)
            x = x / (v.sqrt() + 1e-10)
            return x * 0.2 * math.sqrt(x.numel()) / x.norm()
        return x * 0.2 * math.sqrt(max(x.shape))

    def step(self):
        for group in self.param_groups:
            for t in group["params"]:
                state = self.state[t]
                m = state.setdefault("momentum", torch.zeros_like(t))
                m.lerp_(t.grad, 1 - 0.95)
                direction = t.grad.lerp(m, 0.95)
                parts = direction.split(t.size(0), 1) if t.size(1) == 3 * t.size(0) else [direction]
                update = torch.cat([self.scaled(t, i, x) for i, x in enumerate(parts)], 1)
                with torch.no_grad():
                    t.mul_(1 - group["lr"] * DECAY).sub_(group["lr"] * update)


def muon_records(before, tokens, name="muon", model_loss=model_loss, **options):
    w = Writer(name)
    p = {key: leaf(t) for key, t in before.items()}
    matrices = [key for key, t in p.items() if (".h." in key or ".layers." in key) and t.dim() == 2]
    numbers = train(p, tokens, [Muon([p[key] for key in matrices], **options), adamw_of([t for key, t in p.items() if key not in matrices])],
                    model_loss=model_loss)
    if name == "muon_llama":
        w.put("loss", numbers[0], "float64"), w.put("grad_norm", numbers[1], "float64")
        print(name, "losses", numbers[0], "norms", numbers[1])
        return
    final_records(w, p, name, numbers)
    if name == "normuon":
        return
    for key, shape in (("wide", (21, 42)), ("tall", (42, 21)), ("square", (33, 33))):
        x = exact(*shape, scale=1e-3)
        w.put(f"newton.{key}", x, "float32"), w.put(f"newton.{key}.y", newton_schulz(x, **options))


# --- µP -----------------------------------------------------------------------------------------------------------------------------


def mup_records(name, before, tokens, model_loss):
    """Writes training in the form of the paper (arXiv:2203.03466, table 8), with factors of scores and logits, and a
    group of AdamW for each learning rate. The program has these factors in the weights instead: powers of two,
    size(key). Its first weights are those of `before` times the factors, and its eps applies to its own gradients."""
    global SCORES, LOGITS
    m, b = 2.0, 2.0  # m: the model's width over the base's; b: (head size of the base / head size of the model)^(1/4)
    SCORES, LOGITS = b * b, 1 / m
    p = {key: leaf(t) for key, t in before.items()}

    def size(key):
        if "c_attn" in key or key.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            return b
        if key.endswith(("attn.c_proj.weight", "o_proj.weight")):
            return 1 / b
        return 1 / m if "ln_f" in key or key == "model.norm.weight" else 1.0

    def group(key, t):
        rate = 1 / m if t.dim() == 2 and (".h." in key or ".layers." in key) else 1.0
        return {"params": [t], "rate": rate, "weight_decay": DECAY / rate if t.dim() == 2 else 0.0, "eps": 1e-8 * size(key)}

    optimizer = torch.optim.AdamW([group(key, t) for key, t in p.items()], betas=(0.9, 0.95))
    losses, norms, _ = train(p, tokens, [optimizer], model_loss=model_loss, sizes={key: size(key) for key in p})
    w = Writer(name)
    w.put("loss", losses, "float64"), w.put("grad_norm", norms, "float64")
    print(name, "losses", losses, "norms", norms)
    SCORES, LOGITS = 1.0, 1.0


if __name__ == "__main__":
    os.makedirs(DATA, exist_ok=True)
    op_records()
    gpt = model_records("gpt")
    at_gpt = L, H, C, V, T, B, STEPS
    L, H, C, V, T, B, STEPS = GRID
    model_records("grid")
    L, H, C, V, T, B, STEPS = at_gpt
    muon_records(*gpt)
    mup_records("mup_gpt", *gpt, model_loss)
    for name in ACTIVATIONS:
        activation_records(name, *gpt)
    muon_records(*gpt, name="muon_polar", polar=True)
    muon_records(*gpt, name="normuon", normuon=True)
    L, H, C, V, T, B, STEPS = GRID
    norm_records()
    head_records()
    document_records()
    L, H, C, V, T, B, STEPS = LLAMA
    torch.manual_seed(2302)
    llama = model_records("llama", lambda: llama_shapes(tied=False), llama_loss)
    model_records("llama_tied", lambda: llama_shapes(tied=True), llama_loss)
    mup_records("mup_llama", *llama, llama_loss)
    muon_records(*llama, name="muon_llama", model_loss=llama_loss)
    loss_records()
    as_qwen3()
    torch.manual_seed(2505)
    model_records("qwen3", lambda: llama_shapes(tied=True), llama_loss)
    expert_records()
    torch.manual_seed(2101)
    for balance, rate in (("switch", 0.05), ("bias", 0.01)):
        EXPERTS = Experts(balance, rate)
        model_records("qwen3_moe_" + balance, lambda: llama_shapes(tied=False), EXPERTS.loss, [EXPERTS])
