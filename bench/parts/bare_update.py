"""Measures the update that one writes without a framework: `python -m bench.parts.bare_update`.

A transformers model whose weights are bfloat16 too, one forward pass and one backward pass a group, torch's fused
AdamW: no old log-probs, no clip, no metrics, no FSDP. Nothing is computed once for several rows. It reads one line of
JSON, which `bench.parts.update.measure_shared` writes, and answers with one.
"""

from __future__ import annotations

import json
import os
import sys
import time

from agentgrpo.processes import Events, end_with_parent


def main() -> None:
    events = Events()
    end_with_parent()
    spec = json.loads(sys.stdin.readline())
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(spec["threads"])
    model = AutoModelForCausalLM.from_pretrained(spec["model"], dtype=torch.bfloat16, trust_remote_code=False)
    model.train()
    if spec["gradient_checkpointing"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    size = spec["group_size"]
    groups = [spec["rows"][start : start + size] for start in range(0, len(spec["rows"]), size)]
    seconds, log_prob_sums = [], []
    for _ in range(1 + spec["repeats"]):  # the first repetition warms up
        started = time.perf_counter()
        log_prob_sums.append(sum(_backward(model, rows) for rows in groups))
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - started)
    events.emit({"update_s": seconds[1:], "log_prob_sum": log_prob_sums[0]})
    os._exit(0)


def _backward(model, rows) -> float:
    """
    Args:
        rows: (prompt ids, response ids, mask of the response), equally long, so that nothing is padded.

    Returns:
        The sum of the trained tokens' log-probs.
    """
    import torch

    prompts, responses, masks = (torch.tensor(part) for part in zip(*rows, strict=True))
    length = responses.shape[1]
    logits = model(torch.cat([prompts, responses], 1), logits_to_keep=length + 1, use_cache=False).logits[:, :-1]
    log_probs = torch.log_softmax(logits.float(), -1).gather(-1, responses[..., None])[..., 0]
    advantages = torch.tensor([1.0, -1.0]).repeat(len(rows))[: len(rows), None]
    (-advantages * log_probs * masks).sum().div(masks.sum()).backward()
    return (log_probs * masks).sum().item()


if __name__ == "__main__":
    main()
