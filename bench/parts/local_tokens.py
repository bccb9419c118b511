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
from sql_agent.rollouts.stitch import Trajectory

TURNS = (2, 4, 8)
TARGET_TURNS = 4
GROUP = 8
REPEATS = 5
ROWS_SHOWN = 3


def measure(model: Path, _folder: Path) -> list[Row]:
    from sql_agent.local.config import AdapterConfig
    from sql_agent.local.policy import load_policy

    policy = load_policy(model, adapter=AdapterConfig(dropout=0.0), device="cpu")
    return [row for turns in TURNS for row in compare(policy, turns)]


def rollouts(policy: Any, turns: int, *, count: int = GROUP) -> list[Trajectory]:
    """Play episodes of this many turns each; their log-probs are 0."""
    from dbbench_adapter.generator import generate_tasks
    from sql_agent.environments.dbbench import DbBench
    from sql_agent.local.conversation import Conversation

    with DbBench("strict") as environment:
        conversation = Conversation(policy.tokenizer, environment.tools)
        return [
            _rollout(task, environment, conversation, policy.tokenizer, turns) for task in generate_tasks(count, seed=0)
        ]


def _rollout(task: Any, environment: Any, conversation: Any, tokenizer: Any, turns: int) -> Trajectory:
    from sql_agent.datatypes import AgentConfig

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
    return Trajectory(tuple(prompt), tuple(ids), tuple(mask), (0.0,) * len(ids), turns)


def per_turn(trajectory: Trajectory) -> list[Trajectory]:
    """Return the same rollout as one sample per turn: each sampled part follows everything that came before it."""
    samples, end = [], 0
    for sampled, stretch in groupby(trajectory.response_mask):
        begin, end = end, end + len(list(stretch))
        if sampled:
            before = trajectory.prompt_ids + trajectory.response_ids[:begin]
            ids, log_probs = trajectory.response_ids[begin:end], trajectory.log_probs[begin:end]
            samples.append(Trajectory(before, ids, (1,) * len(ids), log_probs, 1))
    return samples


def _with_log_probs(policy: Any, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Replace the recorded log-probs by the policy's own."""
    import torch

    from sql_agent.local.policy import Rows

    with torch.no_grad():
        found = policy.log_probs(Rows.of(trajectories, pad_id=policy.pad_id))
    return [
        replace(t, log_probs=tuple(row[len(t.prompt_ids) : len(t.prompt_ids) + len(t.response_ids)]))
        for t, row in zip(trajectories, found.tolist(), strict=True)
    ]


def compare(policy: Any, turns: int, *, repeats: int = REPEATS) -> list[Row]:
    """Compare both ways for rollouts of this many turns.

    Args:
        policy: a `LocalPolicy` without dropout; its adapter is moved away from zero.
    """
    import torch

    from sql_agent.local.learner import num_tokens

    torch.manual_seed(0)
    for name, parameter in policy.model.named_parameters():
        if "lora_B.default" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    whole = _with_log_probs(policy, rollouts(policy, turns))
    signs = [1.0 if place % 2 else -1.0 for place in range(len(whole))]
    cut = [(sample, sign) for t, sign in zip(whole, signs, strict=True) for sample in per_turn(t)]
    ways = {"one": (whole, signs), "turns": ([sample for sample, _ in cut], [sign for _, sign in cut])}
    seconds: dict[str, list[float]] = {"one": [], "turns": []}
    gradients = {}
    for repeat in range(1 + repeats):
        for name, (trajectories, advantages) in ways.items():
            took, gradients[name] = _update(policy, trajectories, advantages)
            if repeat:  # the first of each warms up
                seconds[name].append(took)
    tokens = {name: sum(map(num_tokens, trajectories)) for name, (trajectories, _) in ways.items()}
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


def _update(policy: Any, trajectories: Sequence[Trajectory], advantages: Sequence[float]) -> tuple[float, Any]:
    """Return the seconds of one backward pass over all of them, and its gradient, shape (parameters,)."""
    import torch

    from sql_agent.local.config import LossConfig, OptimConfig
    from sql_agent.local.learner import Learner

    # every token has the same weight, as samples differ in length; the adapter must not move between batches
    learner = Learner(policy, OptimConfig(grad_accum=2), LossConfig(aggregation="token-mean"))
    learner.optimiser.zero_grad(set_to_none=True)
    started = time.perf_counter()
    learner.learn(trajectories, advantages, temperature=1.0)
    took = time.perf_counter() - started
    return took, torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
