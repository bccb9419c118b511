"""Compares sampling a group in one batch with one reply after the other: tokens/s of both ways, taken in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.parts.local_memory import save_random_model
from bench.parts.report import Row

GROUP = 8
# The number of groups of real episodes.
TASKS = 12
# The most tokens of a reply in them. A reply of 512 keeps its group waiting, and few groups would tell little.
LONGEST = 128
# Tokens of a prompt and of a reply if their lengths are fixed.
PROMPT_TOKENS, REPLY_TOKENS = 256, 64
REPEATS = 3
TARGET = 4.0
LARGER = "60M"


def measure(model: Path, folder: Path) -> list[Row]:
    from sql_agent.local.policy import load_policy
    from sql_agent.settings.local import AdapterConfig

    small = load_policy(model, adapter=AdapterConfig(), device="cpu")
    rows = episodes(small) + fixed_replies(small, "small policy")
    larger = load_policy(save_random_model(folder / "sampled", LARGER, model), adapter=AdapterConfig(), device="cpu")
    return rows + fixed_replies(larger, f"random model of {LARGER}")


def episodes(policy: Any) -> list[Row]:
    """Play real episodes of the small policy; the time includes databases, templates and judging."""
    import torch

    from dbbench_adapter.generator import generate_tasks
    from sql_agent.environments.dbbench import DbBench
    from sql_agent.local.datatypes import Sampling
    from sql_agent.local.rollouts import Player
    from sql_agent.settings.groups import AgentConfig

    torch.manual_seed(0)
    with DbBench("strict") as environment:

        def play(task: Any, batch_size: int) -> int:
            player = Player(policy, environment, AgentConfig(max_turns=3, max_tokens=LONGEST), batch_size=batch_size)
            played = player.play([task] * GROUP, [Sampling(0.8, 0.95)] * GROUP)
            return sum(record.completion_tokens for record, _ in played)

        rates = in_turns(play, generate_tasks(1 + TASKS, seed=0))
    return rows_of("real episodes", rates, "a round lasts as long as its longest reply; databases, templates")


def fixed_replies(policy: Any, name: str) -> list[Row]:
    """Sample replies of one length to prompts of one length, so that only the model is compared."""
    import torch

    from sql_agent.local.datatypes import Sampling

    torch.manual_seed(0)
    prompts = torch.randint(3, 1000, (1 + REPEATS, PROMPT_TOKENS)).tolist()

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
    return rows_of(what, rates, "matrix products of 8 rows take longer than those of one")


def in_turns(work: Callable[[Any, int], int], inputs: Sequence[Any]) -> dict[int, tuple[float, float]]:
    """Tokens per second and per second of CPU, by batch size. The first input warms up, and every other one is run in
    both sizes, so that a change of the machine's speed affects both.

    Args:
        work: a function that samples a group for an input in batches of this size and returns the tokens.
    """
    clocks = (time.perf_counter, time.process_time)
    tokens, seconds = {GROUP: 0, 1: 0}, {GROUP: [0.0, 0.0], 1: [0.0, 0.0]}
    for place, one in enumerate(inputs):
        for batch_size in tokens:
            started = [clock() for clock in clocks]
            sampled = work(one, batch_size)
            took = [clock() - start for clock, start in zip(clocks, started, strict=True)]
            if place:
                tokens[batch_size] += sampled
                seconds[batch_size] = [a + b for a, b in zip(seconds[batch_size], took, strict=True)]
    return {size: (tokens[size] / seconds[size][0], tokens[size] / seconds[size][1]) for size in tokens}


def rows_of(what: str, rates: dict[int, tuple[float, float]], limit: str) -> list[Row]:
    (together, together_cpu), (alone, alone_cpu) = rates[GROUP], rates[1]
    return [
        Row(f"{what}: tokens/s, {GROUP} together / alone", together / alone, "x", TARGET, "at least", limit),
        Row("... the same in CPU time", together_cpu / alone_cpu, "x"),
        Row(f"... {GROUP} together", together, "tokens/s"),
        Row("... alone", alone, "tokens/s"),
    ]
