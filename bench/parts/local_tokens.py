"""Measures what training a rollout as one sequence saves against one sample per turn: tokens, and time of the update.

Rollouts are real episodes on generated tasks. Each statement reads one column, so that any number of turns is possible,
and a real database answers. Both ways train the same sampled tokens with the same weights, so their gradients have to
be equal.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from bench.parts.report import Row
from sql_agent.credit.row import Row as TrainedRow

TURNS = (2, 4, 8)
TARGET_TURNS = 4
GROUP = 8
REPEATS = 5
ROWS_SHOWN = 3


def measure(model: Path, _folder: Path) -> list[Row]:
    from sql_agent.local.policy import load_policy
    from sql_agent.settings.local import AdapterConfig

    policy = load_policy(model, adapter=AdapterConfig(dropout=0.0), device="cpu")
    return [row for turns in TURNS for row in compare(policy, turns)]


def rollouts(policy: Any, turns: int, *, count: int = GROUP) -> list[TrainedRow]:
    """Play episodes of this many turns each; their log-probs are 0."""
    from agentgrpo.chat.replies import Conversation
    from dbbench_adapter.generator import generate_tasks
    from sql_agent.environments.dbbench import DbBench

    with DbBench("strict") as environment:
        conversation = Conversation(policy.tokenizer, environment.tools)
        return [
            _rollout(task, environment, conversation, policy.tokenizer, turns) for task in generate_tasks(count, seed=0)
        ]


def _rollout(task: Any, environment: Any, conversation: Any, tokenizer: Any, turns: int) -> TrainedRow:
    from sql_agent.settings.groups import AgentConfig

    first, table = environment.messages(task), task.tables[0]
    prompt, ids, mask = conversation.first_prompt(first), [], []
    episode = environment.open(task, AgentConfig(max_turns=turns + 1))
    try:
        for turn in range(turns):
            column = table.columns[turn % len(table.columns)].name
            query = f"SELECT `{column}` FROM `{table.name}` LIMIT {ROWS_SHOWN}"
            call = {"name": "execute_sql", "arguments": {"query": query}}
            reply = [*tokenizer.encode(f"<tool_call>\n{json.dumps(call)}\n</tool_call>"), conversation.eos_id]
            ids, mask = ids + reply, mask + [1] * len(reply)
            if turn < turns - 1:
                message = conversation.read_reply(reply)
                after = conversation.after_reply(first, message, list(episode.answer(message)))
                ids, mask = ids + after, mask + [0] * len(after)
    finally:
        episode.close()
    sampled = (0,) * len(prompt) + tuple(mask)
    ids = (*prompt, *ids)
    return TrainedRow(ids, sampled, (0.0,) * len(ids), prompt_tokens=len(prompt), num_turns=turns)


def per_turn(row: TrainedRow) -> list[TrainedRow]:
    """The same rollout as one sample per turn: each sampled part follows everything that came before it."""
    samples, end = [], 0
    for sampled, stretch in groupby(row.sampled):
        begin, end = end, end + len(list(stretch))
        if sampled:
            mask, log_probs = (0,) * begin + (1,) * (end - begin), (0.0,) * begin + row.log_probs[begin:end]
            samples.append(TrainedRow(row.ids[:end], mask, log_probs, prompt_tokens=begin, num_turns=1))
    return samples


def _with_log_probs(policy: Any, rows: Sequence[TrainedRow]) -> list[TrainedRow]:
    import torch

    from sql_agent.local.policy import Rows

    with torch.no_grad():
        found = policy.log_probs(Rows.of(rows, pad_id=policy.pad_id))
    return [
        replace(row, log_probs=tuple(log_probs[: len(row.ids)]))
        for row, log_probs in zip(rows, found.tolist(), strict=True)
    ]


def compare(policy: Any, turns: int, *, repeats: int = REPEATS) -> list[Row]:
    """Compare both ways for rollouts of this many turns.

    Args:
        policy: a `LocalPolicy` without dropout; its adapter is moved away from zero.
    """
    import torch

    torch.manual_seed(0)
    for name, parameter in policy.model.named_parameters():
        if "lora_B.default" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    whole = _with_log_probs(policy, rollouts(policy, turns))
    signs = [1.0 if place % 2 else -1.0 for place in range(len(whole))]
    ways = {
        "one": [row.credited([sign]) for row, sign in zip(whole, signs, strict=True)],
        "turns": [sample.credited([sign]) for row, sign in zip(whole, signs, strict=True) for sample in per_turn(row)],
    }
    seconds: dict[str, list[float]] = {"one": [], "turns": []}
    gradients = {}
    for repeat in range(1 + repeats):
        for name, rows in ways.items():
            took, gradients[name] = _update(policy, rows)
            if repeat:  # the first of each warms up
                seconds[name].append(took)
    tokens = {name: sum(len(row.ids) for row in rows) for name, rows in ways.items()}
    took = {name: median(times) for name, times in seconds.items()}
    off = float((gradients["one"] - gradients["turns"]).abs().max() / gradients["turns"].abs().max())
    what, limit = f"{turns} turns: tokens of one sample per turn / of one sequence", "the first prompt's share of it"
    target = 2.0 if turns == TARGET_TURNS else None
    return [
        Row(what, tokens["turns"] / tokens["one"], "x", target, "at least", limit),
        Row("... time of the update, the same ratio", took["turns"] / took["one"], "x"),
        Row("... one sequence", tokens["one"], "tokens", limit=f"{took['one']:.2f} s"),
        Row("... one sample per turn", tokens["turns"], "tokens", limit=f"{took['turns']:.2f} s"),
        Row("... largest difference of the gradients, share of the largest gradient", off, "", 1e-3),
    ]


def _update(policy: Any, rows: Sequence[TrainedRow]) -> tuple[float, Any]:
    """The seconds of one backward pass over all of them, and its gradient, shape (parameters,)."""
    import torch

    from sql_agent.local.learner import Learner
    from sql_agent.settings.local import LossConfig, OptimConfig

    # every token has the same weight, as samples differ in length; the adapter must not move between batches
    learner = Learner(policy, OptimConfig(gradient_accumulation_steps=2), LossConfig(aggregation="token-mean"))
    learner.optimiser.zero_grad(set_to_none=True)
    started = time.perf_counter()
    learner.learn(rows, temperature=1.0)
    took = time.perf_counter() - started
    return took, torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
