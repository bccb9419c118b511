from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentgrpo.checks import Problem
from dbbench_adapter.splits import count_kinds, draw_by_kind
from sql_agent.environments.base import Split


def drawn(split: Split, val_limit: int, seed: int) -> Split:
    """The split with at most `val_limit` held-out tasks, evenly over their kinds, drawn by the seed."""
    return replace(split, val=draw_by_kind(split.val, val_limit, seed))


def kinds_of(split: Split) -> dict[str, dict[str, int]]:
    return {"train": count_kinds(split.train), "held_out": count_kinds(split.val)}


def describe_kinds(split: Split, held_out: int) -> list[str]:
    """
    Args:
        held_out: number of tasks that the held-out ones were drawn from.
    """
    train, val = kinds_of(split).values()
    draw = f" of {held_out}, drawn evenly by kind" if held_out > len(split.val) else ""
    train_and_val = f"{len(split.train)} to train on, {len(split.val)} held out{draw}"
    left_out = format_counts({"too long": split.too_long, **split.left_out})
    lines = [
        f"tasks: {train_and_val}; left out: {left_out}",
        f"to train on, by kind: {format_counts(train)}",
    ]
    if not val:  # the run measures nothing
        return lines
    lines.append(f"held out, by kind: {format_counts(val)}")
    return lines + [f"warning: {problem}" for problem in kinds_apart(split.train, split.val)]


MORE = "give more tasks, or hold others out: --val-file FILE"
# Tasks newly solved, with none lost, from which McNemar's exact test has p < 0.05: 2 / 2^6 = 0.03.
CLEAR_FROM = 6


def kinds_apart(train: Sequence[Any], val: Sequence[Any]) -> list[Problem]:
    # Kinds that are held out only, and kinds that are trained on only.
    here, there = count_kinds(train), count_kinds(val)
    apart = {
        "held out, but never trained on": [kind for kind in there if kind not in here],
        "trained on, but not held out, so not measured": [kind for kind in here if kind not in there],
    }
    return [Problem(f"{what}: {', '.join(kinds)}", MORE, blocks=False) for what, kinds in apart.items() if kinds]


def few_held_out(count: int) -> list[Problem]:
    """A problem if a change has to be more than a third of the held-out tasks to be clear."""
    if not 0 < count < 3 * CLEAR_FROM:
        return []
    can = f"a change is clear (McNemar's exact test, p < 0.05) from {CLEAR_FROM} newly solved with none lost"
    if count < CLEAR_FROM:
        can = f"no change can be clear (McNemar's exact test, p < 0.05), which takes {CLEAR_FROM} newly solved"
    return [Problem(f"{count} held-out task{'s' * (count > 1)}: {can}", MORE, blocks=False)]


def describe_out_of_reach(
    split: Split, reply_tokens: Callable[[Any], list[int]], max_tokens: int, max_response_tokens: int
) -> list[str]:
    """A line about tasks that the rollout's limits make unsolvable for the policy; [] if there are none.

    A task is out of reach if one reply of its reference solution, or all of them together, are longer than allowed. The
    environment's answers in between are not counted, so a few more tasks may be out of reach.

    Args:
        reply_tokens: the number of tokens of each reply of a task's reference solution; empty if none is known.
    """
    val, train = ([reply_tokens(task) for task in tasks] for tasks in (split.val, split.train))

    def beyond(solutions: list[list[int]]) -> int:
        return sum(max(n, default=0) > max_tokens or sum(n) > max_response_tokens for n in solutions)

    if not beyond(val) + beyond(train):
        return []
    known = [n for n in val + train if n]
    highest = f"; held-out success can reach {1 - beyond(val) / len(val):.1%}" if beyond(val) else ""
    return [
        f"warning: {beyond(val)} of {len(val)} held-out tasks and {beyond(train)} of {len(train)} to train on are out "
        f"of reach: their solutions are longer than agent.max_tokens={max_tokens} or data.max_response_tokens="
        f"{max_response_tokens} allow{highest}. The longest reply has {max(map(max, known)):,} tokens, the longest "
        f"solution {max(map(sum, known)):,}; raise the two, or leave these tasks out"
    ]


def format_counts(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in kinds.items())
