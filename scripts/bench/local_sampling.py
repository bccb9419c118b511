"""Sampling a group side by side against one reply after the other: tokens/s of both ways, taken in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from scripts.bench.report import Row

GROUP = 8
TASKS = 4
"""Groups of real episodes."""
PROMPT_TOKENS, REPLY_TOKENS = 256, 64
"""Of the replies of fixed length."""
REPEATS = 3
TARGET = 4.0


def episodes(policy: Any, *, tasks: int = TASKS) -> list[Row]:
    """Real episodes of the small policy; the time holds databases, templates and judging too."""
    from dbbench_adapter.generator import generate_tasks
    from sql_agent.environments.dbbench import DbBench
    from sql_agent.local.rollouts import Player
    from sql_agent.local.types import Sampling
    from sql_agent.types import AgentConfig

    with DbBench("strict") as environment:

        def play(task: Any, batch_size: int) -> int:
            player = Player(policy, environment, AgentConfig(max_turns=3), batch_size=batch_size)
            played = player.play([task] * GROUP, [Sampling(0.8, 0.95)] * GROUP)
            return sum(rollout.record.completion_tokens for rollout in played)

        drawn = generate_tasks(1 + tasks, seed=0)
        rates = in_turns(play, drawn)
    return rows_of("real episodes", rates, "a round lasts as long as its longest reply; databases, templates")


def fixed_replies(policy: Any, name: str, *, repeats: int = REPEATS) -> list[Row]:
    """Replies of one length to prompts of one length, so that nothing but the model is compared."""
    import torch

    from sql_agent.local.types import Sampling

    torch.manual_seed(0)
    prompts = torch.randint(3, 1000, (1 + repeats, PROMPT_TOKENS)).tolist()

    def sample(prompt: list[int], batch_size: int) -> int:
        tokens = 0
        for _ in range(GROUP // batch_size):
            replies = policy.generate(
                [prompt] * batch_size,
                [Sampling(0.8, 0.95)] * batch_size,
                max_new_tokens=REPLY_TOKENS,
                min_new_tokens=REPLY_TOKENS,
            )
            tokens += sum(len(reply.ids) for reply in replies)
        return tokens

    rates = in_turns(sample, prompts)
    what = f"{name}, replies of {REPLY_TOKENS} tokens to prompts of {PROMPT_TOKENS}"
    return rows_of(what, rates, "reading the prompts: a batch saves little of it on a CPU")


def in_turns(work: Callable[[Any, int], int], inputs: Sequence[Any]) -> dict[int, float]:
    """Tokens/s by batch size; the first input warms up, and every other one meets both, so that a change of the
    machine's pace does too.

    Args:
        work: samples a group for an input in batches of this size; returns the tokens.
    """
    tokens, seconds = {GROUP: 0, 1: 0}, {GROUP: 0.0, 1: 0.0}
    for place, one in enumerate(inputs):
        for batch_size in tokens:
            started = time.perf_counter()
            sampled = work(one, batch_size)
            if place:
                tokens[batch_size] += sampled
                seconds[batch_size] += time.perf_counter() - started
    return {batch_size: tokens[batch_size] / seconds[batch_size] for batch_size in tokens}


def rows_of(what: str, rates: dict[int, float], limit: str) -> list[Row]:
    return [
        Row(
            f"{what}: tokens/s, {GROUP} side by side / one at a time",
            rates[GROUP] / rates[1],
            "x",
            TARGET,
            "at least",
            limit,
        ),
        Row(f"... {GROUP} together", rates[GROUP], "tokens/s"),
        Row("... alone", rates[1], "tokens/s"),
    ]
