"""Rules that prefer one side of a pair by a single feature. A reward model has to beat the best of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from agentgrpo.chat.messages import Message, num_tool_calls

_FAULT = re.compile(r"error|exception|traceback|fail|unknown|invalid|no such|not found|denied", re.IGNORECASE)


def has_answer(side: Sequence[Message]) -> int:
    # A text with `<tool_call>` in it, and a call whose arguments are not JSON, could not be parsed as a call.
    # `{"answers": []}` is no answer.
    last = side[-1]
    if last.tool_calls:
        return int(any(_says_something(call.function.arguments) for call in last.tool_calls))
    return int(bool(last.content.strip()) and "<tool_call>" not in last.content)


def _says_something(arguments: str) -> bool:
    try:
        said = json.loads(arguments)
    except ValueError:
        return False
    values = said.values() if isinstance(said, dict) else [said]
    return any(value not in (None, "", [], {}) for value in values)


def num_faults(side: Sequence[Message]) -> int:
    return sum(message.role == "tool" and bool(_FAULT.search(message.content)) for message in side)


# The features of a side by name; the evaluation adds the length in tokens.
FEATURES: dict[str, Callable[[Sequence[Message]], int]] = {
    "messages": len,
    "tool calls": num_tool_calls,
    "has an answer": has_answer,
    "tool errors": num_faults,
}


def wins(chosen: Sequence[float], rejected: Sequence[float]) -> list[float]:
    """Result of the rule "more is better" on each pair: 1 if it is right, 0 if it is wrong, 0.5 for a tie.

    The rule "fewer is better" gets 1 minus that.
    """
    return [(a > b) + 0.5 * (a == b) for a, b in zip(chosen, rejected, strict=True)]
