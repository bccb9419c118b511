"""Looks at one part of the machine: `python -m bench.parts.gpu_probes imports|attention|vllm cpu|gpu MODEL`.

A probe is a process of its own, so that what it breaks, or holds of the GPU's memory, ends with it. Its last line is a
JSON object with what it found.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import time
from importlib.metadata import version
from typing import Any

IMPORTED = {name: name for name in ("torch", "transformers", "peft", "ray", "vllm", "verl")}
IMPORTED["agentlightning"] = "agentgrpo.agl_without_litellm"
"""Packages, and the modules that are imported of them."""
ROWS, ROW_TOKENS, HEADS, HEAD_DIM = 4, 500, 8, 64
MOST_APART = 0.05
"""bfloat16 has eight bits, and the values are near 1."""
PROMPTS, REPLY_TOKENS = 32, 64


def imports(device: str, model: str) -> dict[str, Any]:
    found = {}
    for name, module in IMPORTED.items():
        began = time.monotonic()
        importlib.import_module(module)
        found[name] = f"{version(name)}, {time.monotonic() - began:.1f} s"
    import torch

    seen = torch.cuda.is_available()
    if device == "gpu" and not seen:
        raise RuntimeError(f"torch {torch.__version__} sees no GPU; is it built for another CUDA than the driver's?")
    return {**found, "torch sees": torch.cuda.get_device_name() if seen else "no GPU"}


def attention(device: str, model: str) -> dict[str, Any]:
    """Several rows in one pass under a mask, forwards and backwards, as the update has them; and each row by itself."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention as attend

    where, dtype = ("cuda", torch.bfloat16) if device == "gpu" else ("cpu", torch.float32)
    torch.manual_seed(0)
    tokens = ROWS * ROW_TOKENS
    q, k, v = (torch.randn(1, HEADS, tokens, HEAD_DIM, device=where, dtype=dtype, requires_grad=True) for _ in range(3))
    row = torch.arange(tokens, device=where) // ROW_TOKENS
    mask = (row[:, None] == row[None, :]).tril()[None, None]
    attend(q, k, v, attn_mask=mask).sum().backward()  # the first call compiles or chooses a kernel
    began = time.monotonic()
    packed = attend(q, k, v, attn_mask=mask)
    packed.sum().backward()
    if device == "gpu":
        torch.cuda.synchronize()
    took = time.monotonic() - began
    rows = (tensor.unflatten(2, (ROWS, ROW_TOKENS)).transpose(1, 2)[0] for tensor in (q, k, v))
    alone = attend(next(rows), next(rows), next(rows), is_causal=True).transpose(0, 1).flatten(1, 2)[None]
    apart = float((packed - alone).detach().abs().max())
    if not apart < MOST_APART:
        raise RuntimeError(f"rows under a mask and rows alone are {apart:.1e} apart, expected less than {MOST_APART}")
    return {
        "sdpa with a mask": f"{tokens} tokens, {1e3 * took:.1f} ms forwards and backwards",
        "largest difference from the rows alone": f"{apart:.1e}",
        "flash_attn": "installed" if importlib.util.find_spec("flash_attn") else "not installed; runs use sdpa",
    }


def vllm(device: str, model: str) -> dict[str, Any]:
    began = time.monotonic()
    from vllm import LLM, SamplingParams

    cpu = device == "cpu"
    server = LLM(
        model,
        dtype="float32" if cpu else "bfloat16",
        enforce_eager=cpu,
        max_model_len=1024,
        max_num_seqs=PROMPTS,
        gpu_memory_utilization=0.3,
    )
    up, began = time.monotonic() - began, time.monotonic()
    params = SamplingParams(max_tokens=REPLY_TOKENS, ignore_eos=True, logprobs=0)
    replies = server.generate([f"How many rows has table {i}?" for i in range(PROMPTS)], params, use_tqdm=False)
    took = time.monotonic() - began
    sampled = sum(len(reply.outputs[0].token_ids) for reply in replies)
    assert sampled == PROMPTS * REPLY_TOKENS, f"{sampled} tokens came back, expected {PROMPTS} x {REPLY_TOKENS}"
    return {"up after": f"{up:.1f} s", "sampled": f"{sampled} tokens, {sampled / took:.0f} a second"}


PROBES = {"imports": imports, "attention": attention, "vllm": vllm}


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    print(json.dumps(PROBES[name](*arguments)), flush=True)
