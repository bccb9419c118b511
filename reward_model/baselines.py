"""What a pair shows without being read: single features, each a rule that prefers one side.

A reward model has to beat the best of them. Leaves out features that need to know the task.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from core.messages import Message, num_tool_calls

_FAULT = re.compile(r"error|exception|traceback|fail|unknown|invalid|no such|not found|denied", re.IGNORECASE)


def has_answer(side: Sequence[Message]) -> int:
    """1 where the last message says something: a text, or a call with an argument that is not empty (`{"answers": []}`
    is no answer).

    Text with the mark of a call in it, and a call whose arguments are no JSON, are calls that did not parse.
    """
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
    """Tool results that speak of an error."""
    return sum(message.role == "tool" and bool(_FAULT.search(message.content)) for message in side)


FEATURES: dict[str, Callable[[Sequence[Message]], int]] = {
    "messages": len,
    "tool calls": num_tool_calls,
    "has an answer": has_answer,
    "tool errors": num_faults,
}
"""Features of a side by name; evaluation adds the length in tokens."""


def preference_for_more(chosen: Sequence[int], rejected: Sequence[int]) -> list[float]:
    """What the rule "more of it is better" makes of each pair: 1 right, 0 wrong, 0.5 where both are equal.

    "Fewer is better" makes 1 minus that.
    """
    return [(a > b) + 0.5 * (a == b) for a, b in zip(chosen, rejected, strict=True)]
