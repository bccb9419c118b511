"""Chooses how long a first prompt may be, fits tasks to that, and says by name what that cuts.

A prompt may take what a model's context leaves beside the response. Every command uses the same limit for the same
model, so that a model is trained, tuned and measured on one prompt. The environment knows how a prompt becomes shorter
(`Taskset.shorter`), the command knows its tokens; what is played is decided here alone. References have no part in it:
they are only looked at to warn.
"""

from __future__ import annotations

import bisect
import json
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentgrpo.checks import Problem
from sql_agent.environments.base import LeftOut, Split, Taskset
from sql_agent.model_check import read_json
from sql_agent.settings.load import load_config

# Lowest limit that may be given.
MIN_PROMPT_TOKENS = 16


@dataclass(frozen=True)
class PromptLimit:
    tokens: int | None
    """None: the model's context is not known, so nothing is cut."""
    why: str
    """Where the number comes from, in words."""
    flag: str
    """The flag or setting that gives another number, as it is typed."""
    given: bool = False


def context_of(config: Mapping[str, Any]) -> int | None:
    """The tokens of the model's context, prompt and reply together; None if its config names none.

    Args:
        config: the contents of config.json.
    Source:
        vLLM, `_get_and_verify_max_len`: of the ways to stretch rotary positions, yarn alone is not in
        `max_position_embeddings` yet.
    """
    config = config.get("text_config") or config  # a vision model nests its text model's
    named = (config.get(key) for key in ("max_position_embeddings", "n_positions", "max_seq_len"))
    positions = next(filter(None, named), None)
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if scaling.get("rope_type", scaling.get("type")) == "yarn" and scaling.get("original_max_position_embeddings"):
        return int(scaling["original_max_position_embeddings"] * scaling["factor"])
    return positions


def choose_limit(model: Path, given: int | None, flag: str, *, response_tokens: int = 0) -> PromptLimit:
    """
    Args:
        model: the folder of a model, not of an adapter.
        given: the limit that the user asks for; None chooses one.
        response_tokens: room that the run asks for behind the prompt; at least the model's default is left.
    Raises:
        ValueError: the context has no room for it.
    """
    return limit_within(context_of(read_json(model / "config.json")), model, given, flag, response_tokens)


def limit_within(
    context: int | None, model: Path | str, given: int | None, flag: str, response_tokens: int = 0
) -> PromptLimit:
    """The other arguments are those of `choose_limit`.

    Args:
        model: a folder, or the name of a model elsewhere, whose defaults are those of a large one.
    """
    if context is None:
        why = f"{model} names no length of its context"
        return PromptLimit(given, "as given", flag, True) if given else PromptLimit(None, why, flag)
    if (given or MIN_PROMPT_TOKENS) + max(response_tokens, 1) > context:
        beside = f" and data.max_response_tokens={response_tokens} behind it" if response_tokens else ""
        raise ValueError(
            f"the context of {model} has {context:,} tokens, which leaves no room for a first prompt"
            f"{f' of {given:,} tokens ({flag})' if given else ''}{beside}; lower "
            f"{'them' if given and response_tokens else flag if given else 'data.max_response_tokens'}"
        )
    if given is not None:
        return PromptLimit(given, "as given", flag, True)
    room = max(min(default_response_tokens(model), context // 2), response_tokens)
    return PromptLimit(
        context - room, f"the context of {model}, {context:,} tokens, less {room:,} for the response", flag
    )


def default_response_tokens(model: Path | str) -> int:
    """`data.max_response_tokens` of the main job where nobody sets it; small models have less."""
    return load_config(None, [f"model={json.dumps(str(model))}"]).data.max_response_tokens


# Names that a line lists; of the others it has the number.
SHOWN = 12

PromptTokens = Callable[[Any], int]


@dataclass(frozen=True)
class Fitted:
    environment: Taskset
    limit: PromptLimit
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
                f"{cut.of} is cut in {count} of {len(self.tasks)} first prompts; left out: {_format_left_out(cut)}",
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
            return f"{format_flag(self.limit.flag, needed)} keeps everything, where the model's context holds it"
        return (
            f"whole prompts have up to {needed:,} tokens: take a model with a longer context, or a view or copy of the "
            "database with fewer columns"
        )


def format_flag(flag: str, value: int | str) -> str:
    return f"{flag} {value}" if flag.startswith("--") else f"--set {flag}={value}"


def describe_lengths(lengths: Sequence[int], limit: PromptLimit) -> str:
    most = "none" if limit.tokens is None else f"{limit.tokens:,}"
    return (
        f"first prompts: {min(lengths):,} to {max(lengths):,} tokens, median {statistics.median(lengths):,.0f}; limit "
        f"{most} ({limit.why}); {format_flag(limit.flag, 'N')} sets another"
    )


def fit_tasks(tasks: Sequence[Any], environment: Taskset, prompt_tokens: PromptTokens, limit: PromptLimit) -> Fitted:
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


def _shortened(task: Any, environment: Taskset, prompt_tokens: PromptTokens, limit: PromptLimit) -> Any:
    # If no prompt fits, the shortest one is played.
    shorter = environment.shorter(task)
    if not shorter or limit.tokens is None:
        return task
    most = limit.tokens
    first = bisect.bisect_left(shorter, True, key=lambda each: prompt_tokens(each) <= most)
    return shorter[min(first, len(shorter) - 1)]


def fit_split(
    split: Split, environment: Taskset, prompt_tokens: PromptTokens, limit: PromptLimit
) -> tuple[Split, Fitted]:
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


def _format_left_out(cut: LeftOut) -> str:
    return "; ".join(f"{len(names)} {kind}: {_listed(names)}" if names else kind for kind, names in cut.parts)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
