"""Bad answers made from a pair and its neighbours; the chosen answer should score higher than each of them.

Such answers are not in the training data, and a policy may try them once the score is its reward. In a dialogue with
tools only the last answer is replaced.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentgrpo.chat.messages import Message
from reward_model.datatypes import Preference

FLUENT = (
    "I have looked at everything carefully and double-checked each step. The answer is complete, correct and exactly "
    "what you asked for."
)
REPEATS = 40


def adversarial_sides(row: Preference, other: Preference | None) -> dict[str, tuple[Message, ...]]:
    """Bad sides by name.

    Args:
        other: a row with another prompt; with None no answer to another task is made.
    """
    questions = [message.content for message in row.prompt if message.role == "user"]
    before, last = row.chosen[:-1], row.chosen[-1]
    words = last.content or " ".join(call.function.arguments for call in last.tool_calls)
    texts = {
        "empty": "",
        "question repeated": questions[-1] if questions else row.prompt[-1].content,
        "very long": " ".join([words] * REPEATS),
        "fluent and wrong": FLUENT,
    }
    sides = {name: (*before, Message(role="assistant", content=text)) for name, text in texts.items()}
    sides["no work, fluent"] = (Message(role="assistant", content=FLUENT),)
    if other:
        sides["another task's answer"] = (*before, other.chosen[-1])
    return sides


def neighbours(rows: Sequence[Preference]) -> list[Preference | None]:
    found: list[Preference | None] = []
    for i, row in enumerate(rows):
        later = (rows[(i + step) % len(rows)] for step in range(1, len(rows)))
        found.append(next((o for o in later if o.prompt != row.prompt and _answer(o) != _answer(row)), None))
    return found


def _answer(row: Preference) -> tuple[str, ...]:
    last = row.chosen[-1]
    return (last.content, *(call.function.arguments for call in last.tool_calls))
