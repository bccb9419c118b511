"""Fits tasks to the longest first prompt that a command plays, and says what that cuts, by name.

The environment knows how a prompt becomes shorter (`Taskset.shorter`), the command knows its tokens; what is played
is decided here alone. References have no part in it: they are only looked at to warn.
"""

from __future__ import annotations

import bisect
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentgrpo.checks import Problem
from sql_agent.environments.base import LeftOut, Split, Taskset
from sql_agent.prompts.limit import Limit

# Names that a line lists; of the others it has the number.
SHOWN = 12

PromptTokens = Callable[[Any], int]


@dataclass(frozen=True)
class Fitted:
    environment: Taskset
    limit: Limit
    tasks: list[Any]
    """Every task, shortened where its prompt was too long."""
    lengths: list[int]
    """Tokens of each task's first prompt."""
    whole: list[int]
    """Tokens of each first prompt before it was shortened."""

    @property
    def fitting(self) -> list[Any]:
        return [task for task, length in zip(self.tasks, self.lengths, strict=True) if self._fits(length)]

    @property
    def longest(self) -> int:
        """0 if no prompt is within the limit."""
        return max(filter(self._fits, self.lengths), default=0)

    def _fits(self, length: int) -> bool:
        return self.limit.tokens is None or length <= self.limit.tokens

    def __add__(self, other: Fitted) -> Fitted:
        return replace(
            self,
            tasks=self.tasks + other.tasks,
            lengths=self.lengths + other.lengths,
            whole=self.whole + other.whole,
        )

    def describe(self) -> list[str]:
        if not self.lengths:
            return []
        lines = [describe_lengths(self.lengths, self.limit), *(f"warning: {cut}" for cut in self.cuts())]
        return [*lines, *(f"WARNING: {missed}" for missed in self.missed())]

    def cuts(self) -> list[Problem]:
        found = Counter(cut for task in self.tasks if (cut := self.environment.left_out(task)) is not None)
        return [
            Problem(
                f"{cut.of} is cut in {count} of {len(self.tasks)} first prompts; left out: {_in_words(cut)}",
                self._remedy(),
                blocks=False,
            )
            for cut, count in found.most_common()
        ]

    def missed(self) -> list[Problem]:
        """[] if no reference uses what is cut."""
        found = [names for task in self.tasks if (names := self.environment.missed(task))]
        if not found:
            return []
        used = Counter(name for names in found for name in names)
        what = (
            f"the references of {len(found)} of {len(self.tasks)} tasks use what the prompts leave out: "
            f"{_listed([f'{name} ({count})' for name, count in used.most_common()])}; the policy can only guess it"
        )
        return [Problem(what, self._remedy(), blocks=False)]

    def _remedy(self) -> str:
        needed = max(self.whole)
        if self.limit.given:
            return f"{typed(self.limit.flag, needed)} keeps everything, where the model's context holds it"
        return (
            f"whole prompts have up to {needed:,} tokens: take a model with a longer context, or a view or copy of the "
            "database with fewer columns"
        )


def typed(flag: str, value: int | str) -> str:
    return f"{flag} {value}" if flag.startswith("--") else f"--set {flag}={value}"


def describe_lengths(lengths: Sequence[int], limit: Limit) -> str:
    most = "none" if limit.tokens is None else f"{limit.tokens:,}"
    return (
        f"first prompts: {min(lengths):,} to {max(lengths):,} tokens, median {statistics.median(lengths):,.0f}; limit "
        f"{most} ({limit.why}); {typed(limit.flag, 'N')} sets another"
    )


def fit_tasks(tasks: Sequence[Any], environment: Taskset, prompt_tokens: PromptTokens, limit: Limit) -> Fitted:
    # As little is cut as it takes.
    whole = [prompt_tokens(task) for task in tasks]
    played = [
        task if limit.tokens is None or length <= limit.tokens else _shortened(task, environment, prompt_tokens, limit)
        for task, length in zip(tasks, whole, strict=True)
    ]
    lengths = [
        length if task is before else prompt_tokens(task)
        for task, before, length in zip(played, tasks, whole, strict=True)
    ]
    return Fitted(environment, limit, played, lengths, whole)


def _shortened(task: Any, environment: Taskset, prompt_tokens: PromptTokens, limit: Limit) -> Any:
    # If no prompt fits, the shortest one is played.
    shorter = environment.shorter(task)
    if not shorter or limit.tokens is None:
        return task
    most = limit.tokens
    first = bisect.bisect_left(shorter, True, key=lambda each: prompt_tokens(each) <= most)
    return shorter[min(first, len(shorter) - 1)]


def fit_split(split: Split, environment: Taskset, prompt_tokens: PromptTokens, limit: Limit) -> tuple[Split, Fitted]:
    """What is too long all the same is left out and counted.

    Returns:
        The split as it is played; and all of its tasks with their lengths, those that are left out too.
    Raises:
        ValueError: nothing is left to train on, or nothing of the held-out tasks.
    """
    halves = [fit_tasks(tasks, environment, prompt_tokens, limit) for tasks in (split.train, split.val)]
    for half, name in zip(halves, ("training", "held-out"), strict=True):
        if half.tasks and not half.fitting:
            remedy = f"raise {limit.flag}" if limit.given else "take a model with a longer context"
            raise ValueError(
                f"no {name} task has a first prompt of at most {limit.tokens} tokens, the shortest has "
                f"{min(half.lengths)}; {remedy}"
            )
    if not split.train:
        raise ValueError(f"there is no task to train on; left out: {dict(split.left_out) or 'nothing'}; give others")
    both = halves[0] + halves[1]
    kept = [half.fitting for half in halves]
    return replace(split, train=kept[0], val=kept[1], too_long=len(both.tasks) - sum(map(len, kept))), both


def _in_words(cut: LeftOut) -> str:
    return "; ".join(f"{len(names)} {kind}: {_listed(names)}" if names else kind for kind, names in cut.parts)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
