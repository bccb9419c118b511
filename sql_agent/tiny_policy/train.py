"""Trains the warm start: supervised steps on oracle episodes, with the loss on the policy's own tokens only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import Qwen3ForCausalLM

from agentgrpo.chat.replies import EncodedReplies

LEARNING_RATE = 3e-3
BETAS = (0.9, 0.98)
WARMUP_STEPS = 40
DECAY_FRACTION = 0.3
REPORT_EVERY = 50
EXAMPLES_PER_PASS = 32


def learning_rate_factor(step: int, steps: int) -> float:
    """A factor in (0, 1]: linear warm-up, constant, then linear decay over the last `DECAY_FRACTION`."""
    return min(1.0, (step + 1) / WARMUP_STEPS, (steps - step) / (DECAY_FRACTION * steps))


def warm_start(
    model: Qwen3ForCausalLM, batches: Iterable[list[EncodedReplies]], *, steps: int, progress: Callable[[str], None]
) -> None:
    """Raises ValueError: the batches ran out."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=BETAS, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: learning_rate_factor(step, steps))
    model.train()
    started, step = time.perf_counter(), 0
    for step, batch in enumerate(islice(batches, steps), 1):
        loss = reply_loss(model, batch)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % REPORT_EVERY == 0 or step == steps:
            progress(f"warm start: step {step}/{steps}, loss {loss.item():.3f}, {time.perf_counter() - started:.0f} s")
    if step < steps:
        raise ValueError(f"the batches ran out after {step} of {steps} steps")
    model.eval()


def reply_loss(model: Qwen3ForCausalLM, batch: Sequence[EncodedReplies]) -> Tensor:
    """Mean cross-entropy in nats over the tokens of the replies; only these get logits."""
    logits, expected, _ = _replies(model, batch)
    return cross_entropy(logits, expected)


@torch.no_grad()
def exact_match(model: Qwen3ForCausalLM, examples: Sequence[EncodedReplies]) -> float:
    """The share of conversations whose replies greedy decoding gives token for token, in [0, 1].

    One pass over the conversation tells: if the most likely token is the expected one at every place, then greedy
    decoding takes the same path. It took 2.3 s of one core for 192 tasks; playing them took 21.5 s, since replies that
    never end go on to the limit.
    """
    by_length = sorted(examples, key=lambda example: len(example.ids))  # little padding
    matches = 0
    for start in range(0, len(by_length), EXAMPLES_PER_PASS):
        logits, expected, is_reply = _replies(model, by_length[start : start + EXAMPLES_PER_PASS])
        wrong = torch.zeros_like(is_reply)
        wrong[is_reply] = logits.argmax(-1) != expected
        matches += int((~wrong.any(1)).sum())
    return matches / len(examples)


def _replies(model: Qwen3ForCausalLM, batch: Sequence[EncodedReplies]) -> tuple[Tensor, Tensor, Tensor]:
    """The logits (N, V) and ids (N,) of the replies' N tokens, and where these stand, (B, T - 1)."""
    length = max(len(example.ids) for example in batch)
    ids = torch.zeros(len(batch), length, dtype=torch.long)
    is_reply = torch.zeros(len(batch), length, dtype=torch.bool)
    for row, example in enumerate(batch):  # padding on the right: no token before it can see it
        ids[row, : len(example.ids)] = torch.tensor(example.ids)
        is_reply[row, : len(example.ids)] = torch.tensor(example.mask, dtype=torch.bool)
    hidden = model.model(ids).last_hidden_state[:, :-1]
    asked = is_reply[:, 1:]
    return model.lm_head(hidden[asked]), ids[:, 1:][asked], asked
