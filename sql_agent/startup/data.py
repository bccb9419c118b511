"""Chooses the tasks of a run: those that fit, and a draw of the held-out ones. Leaves out where tasks come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dbbench_adapter.protocols import Message
from dbbench_adapter.splits import count_kinds, draw_by_kind
from sql_agent.environments.base import Environment, Split
from sql_agent.model_check import render, special_tokens, with_objects


def fitting(split: Split, environment: Environment, prompt_tokens: Callable[[Any], int], limit: int) -> Split:
    """Leave out tasks whose first prompt is longer than `limit` tokens and cannot be shortened, and count them.

    Raises:
        ValueError: nothing is left to train or to validate on.
    """
    train, val = (fitting_tasks(tasks, environment, prompt_tokens, limit) for tasks in (split.train, split.val))
    too_long = len(split.train) + len(split.val) - len(train) - len(val)
    if not train or not val:
        raise ValueError(
            f"no {'training' if not train else 'held-out'} task has a first prompt of at most "
            f"data.max_prompt_tokens={limit} tokens; raise it"
        )
    return replace(split, train=train, val=val, too_long=too_long)


def fitting_tasks(
    tasks: Sequence[Any], environment: Environment, prompt_tokens: Callable[[Any], int], limit: int
) -> list[Any]:
    """Return the tasks whose first prompt has at most `limit` tokens, shortened where the environment can do that."""
    shortened = (environment.shortened(task, prompt_tokens, limit) for task in tasks)
    return [task for task in shortened if prompt_tokens(task) <= limit]


def drawn(split: Split, val_limit: int, seed: int) -> Split:
    """Return the split with at most `val_limit` held-out tasks, evenly over their kinds, drawn by the seed."""
    return replace(split, val=draw_by_kind(split.val, val_limit, seed))


def kinds_of(split: Split) -> dict[str, dict[str, int]]:
    """Return the number of tasks per kind in both halves, for the record of a run."""
    return {"train": count_kinds(split.train), "held_out": count_kinds(split.val)}


def describe_kinds(split: Split, held_out: int) -> list[str]:
    """Return lines about the tasks that are trained on and those that are measured.

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
        f"held out, by kind: {format_counts(val)}",
    ]
    if unseen := [kind for kind in val if kind not in train]:
        lines.append(f"warning: held out, but never trained on: {', '.join(unseen)}")
    if unmeasured := [kind for kind in train if kind not in val]:
        lines.append(f"warning: trained on, but not held out, so not measured: {', '.join(unmeasured)}")
    return lines


def describe_out_of_reach(
    split: Split, reply_tokens: Callable[[Any], list[int]], max_tokens: int, max_response_tokens: int
) -> list[str]:
    """Return a line about tasks that the rollout's limits make unsolvable for the policy; [] if there are none.

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


class PromptTokenizer:
    """Counts the tokens of a task's first prompt and of its solution.

    It reads the model's folder without torch, whose import takes 10 s.

    Args:
        template: the chat template of the run.
    """

    def __init__(self, model: Path, environment: Environment, template: str) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._template, self._special = template, special_tokens(model)
        self._environment = environment

    def prompt_tokens(self, task: Any) -> int:
        return self._count(self._environment.messages(task), prompt=True)

    def _count(self, messages: Sequence[Message], *, prompt: bool) -> int:
        text = render(messages, self._environment.tools, self._template, self._special, prompt=prompt)
        # a template may write a line break after the token that ends a reply, which is never sampled
        return len(self._tokenizer.encode(text if prompt else text.rstrip("\n"), add_special_tokens=False).ids)

    def reply_tokens(self, task: Any) -> list[int]:
        """Return the number of tokens of each reply of the solution, end token included; [] if none is known."""
        first, replies = self._environment.messages(task), self._environment.reference_replies(task)
        before = self.prompt_tokens(task)
        return [self._count([*first, with_objects(reply)], prompt=False) - before for reply in replies]

    @property
    def pad_id(self) -> int:
        """Return the id of the padding token, or else of the end-of-sequence token; padding is masked everywhere."""
        for name in ("pad_token", "eos_token"):
            token = self._special.get(name)
            if token is not None:
                return self._tokenizer.token_to_id(token)
        return 0
