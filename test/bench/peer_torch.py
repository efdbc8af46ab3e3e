"""Trains the same GPT-2 in PyTorch on the same machine, for comparison, in the way that is usual there and in nanoGPT:
torch.compile, bf16 autocast over fp32 weights, fused AdamW, scaled_dot_product_attention, vocabulary padded to 50304.
Shapes are equal, with a tied head, dropout 0, learned positions and tanh GELU. A step is forward, backward, clipping by
the global norm, and AdamW, as in bench_train.

    peer_torch.py [--size 124m|355m|774m|1558m] [--micro-batches 64,32] [--attention default,cudnn] [--seconds 150]
    peer_torch.py --probes                                   rates of PyTorch's matrix products and copies only
    peer_torch.py --device cpu --dtype fp32 --length 256 --micro-batches 4 [--no-compile]       on the processor
    peer_torch.py --device cpu --tiny                        tries the script itself

Prints the fastest micro-batch and attention found in the given time, in one line of key=value pairs. Attempts go to
stderr.
"""
import argparse
import contextlib
import gc
import math
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

SIZES = {  # by name of a model: layers, heads, width, and sizes of micro-batches to try, the largest first
    "124m": (12, 12, 768, "64,32"), "355m": (24, 16, 1024, "48,32,16"), "774m": (36, 20, 1280, "24,16,8"), "1558m": (48, 25, 1600, "16,8,4"),
    "tiny": (2, 2, 64, "4,2")}
T, VOCABULARY, PADDED = 1024, 50257, 50304
WARM_UP, STEPS = 4, 10


class Block(nn.Module):
    def __init__(self, heads, width):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.attn_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attention(self, x):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, c // self.heads).transpose(1, 2) for part in self.c_attn(x).split(c, dim=2))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:  # PyTorch before 2.0 cannot compile models; with it this script can only be tried
            mask = torch.full((t, t), -math.inf, device=x.device).triu(1)
            y = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(c // self.heads) + mask, -1).to(v.dtype) @ v
        return self.attn_proj(y.transpose(1, 2).reshape(b, t, c))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, layers, heads, width, positions, padded):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(padded, width), nn.Embedding(positions, width)
        self.blocks, self.ln_f = nn.ModuleList(Block(heads, width) for _ in range(layers)), nn.LayerNorm(width)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * layers) if "proj" in name else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(F.linear(self.ln_f(x), self.wte.weight).flatten(0, 1), targets.flatten())


def attention_backend(name):
    if name == "default":
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel
    return sdpa_kernel({"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}[name])


def measure(options, batch, attention):
    """Returns the median milliseconds of a training step, and the peak of allocated GPU memory in MiB (0 on the
    CPU)."""
    on_gpu = options.device == "cuda"
    layers, heads, width, _ = SIZES[options.size]
    torch.manual_seed(1)
    model = GPT2(layers, heads, width, options.T, options.padded).to(options.device)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=6e-4, betas=(0.9, 0.95),
                                  eps=1e-8, fused=True)
    tokens, targets = (torch.randint(0, min(VOCABULARY, options.padded), (batch, options.T), device=options.device) for _ in range(2))
    run = torch.compile(model, dynamic=False) if options.compile else model
    synchronize = torch.cuda.synchronize if on_gpu else lambda: None
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    ms = []
    with attention_backend(attention):
        for _ in range(WARM_UP + options.steps):
            synchronize()
            start = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(options.device, dtype=torch.bfloat16, enabled=options.dtype == "bf16"):
                loss = run(tokens, targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            synchronize()
            ms.append((time.perf_counter() - start) * 1e3)
    assert math.isfinite(loss.item())
    return statistics.median(ms[WARM_UP:]), torch.cuda.max_memory_allocated() / 2 ** 20 if on_gpu else 0.0


def free_everything(on_gpu):
    gc.collect()
    if hasattr(torch, "_dynamo"):
        torch._dynamo.reset()
    if on_gpu:
        torch.cuda.empty_cache()


def search(options):
    end = time.monotonic() + options.seconds
    best = None
    for attention in options.attention.split(","):
        slower = 0
        for batch in map(int, options.micro_batches.split(",")):
            if best and (time.monotonic() > end or slower):
                break
            if attention != options.attention.split(",")[0] and batch != best[1]:
                # attention kernels after the first are tried only with the micro-batch size that was best so far
                continue
            failure = ""
            try:
                ms, memory = measure(options, batch, attention)
            except RuntimeError as error:  # running out of GPU memory is a RuntimeError too
                failure = str(error).strip().split("\n")[0] or type(error).__name__
            free_everything(options.device == "cuda")
            if failure:
                print(f"B={batch} attention={attention}: {failure}", file=sys.stderr)
                continue
            rate = batch * options.T / ms * 1e3
            print(f"B={batch} attention={attention}: {rate:.0f} tokens/s, {ms:.2f} ms, {memory:.0f} MiB", file=sys.stderr)
            if best is None or rate > best[0]:
                best = (rate, batch, attention, ms, memory)
            else:
                slower = 1
    if best is None:
        sys.exit("no micro-batch fits")
    rate, batch, attention, ms, memory = best
    dtype = "bf16-autocast" if options.dtype == "bf16" else options.dtype
    print(f"torch={torch.__version__} size={options.size} dtype={dtype} compile={'yes' if options.compile else 'no'} attention={attention} T={options.T} B={batch} "
          f"step_ms={ms:.2f} tokens_per_s={rate:.1f} memory_mib={memory:.0f}")


def timed(run, synchronize, repeats):
    for _ in range(3):
        run()
    samples = []
    for _ in range(7):
        synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        synchronize()
        samples.append((time.perf_counter() - start) / repeats)
    return statistics.median(samples)


def probes(options):
    on_gpu = options.device == "cuda"
    synchronize = torch.cuda.synchronize if on_gpu else lambda: None
    n, elems, repeats = (8192, 2 ** 28, 10) if on_gpu else (256, 2 ** 16, 1)
    a, b = (torch.randn(n, n, device=options.device).bfloat16() for _ in range(2))
    gemm = 2.0 * n ** 3 / timed(lambda: a @ b, synchronize, repeats)
    source = torch.randn(elems, device=options.device)
    target = torch.empty_like(source)
    copied = 8.0 * elems / timed(lambda: target.copy_(source), synchronize, repeats)
    print(f"torch={torch.__version__} gemm_n={n} gemm_gflops={gemm * 1e-9:.1f} copy_gbs={copied * 1e-9:.1f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default="124m", choices=list(SIZES))
    parser.add_argument("--micro-batches", default="")
    parser.add_argument("--attention", default="default,cudnn")
    parser.add_argument("--seconds", type=float, default=150.0, help="no new trial after that")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--length", type=int, default=T, help="tokens of a sequence")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--probes", action="store_true")
    options = parser.parse_args()
    options.T, options.padded = options.length, PADDED
    if options.tiny:
        options.size, options.T, options.padded, options.attention, options.compile = "tiny", 64, 512, "default", False
    options.micro_batches = options.micro_batches or SIZES[options.size][3]
    options.compile = options.compile and hasattr(torch, "compile")
    if options.device == "cuda":
        if not torch.cuda.is_available():
            sys.exit("PyTorch sees no GPU")
        torch.set_float32_matmul_precision("high")
    probes(options) if options.probes else search(options)


main()
