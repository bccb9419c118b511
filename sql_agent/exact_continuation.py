"""Continues a conversation from the ids that were sampled, and tells whether a chat template allows that.

Pure and quick to import. vLLM's chat server continues conversations with it
(`sql_agent.verl_side.plugin.exact_prompts`), and `sql_agent.model_check` tries a model's template with it before a run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Message = dict[str, Any]

OTHER = "Another reply."
"""The text of `another_reply`. A reply of exactly these words is not continued exactly, and counted as a break."""


def another_reply(reply: Mapping[str, Any]) -> Message:
    """A message for the same position of a conversation with other content; its calls have the same ids and names."""
    arguments = json.dumps({"other": OTHER})
    calls = [
        {**call, "function": {**call["function"], "arguments": arguments}} for call in reply.get("tool_calls") or []
    ]
    said: Message = {"content": "", "tool_calls": calls} if calls else {"content": OTHER}
    return {"role": "assistant", **said}


def continue_exactly(
    known: Sequence[int], rendered: Sequence[int], otherwise: Sequence[int], ends: Collection[int]
) -> list[int] | None:
    """The prompt that continues `known`, or None where the template leaves no seam to join at.

    The conversation is rendered twice, the second time with another reply in this one's place. The end that both have
    in common is what follows the reply; it begins with the token that ends the reply. How a template writes the reply
    and everything before it does not matter. Qwen3's, for example, adds an empty thought to a reply while it is the
    last one and drops the thoughts of earlier replies, so a rendering without the later messages is never a prefix of
    the one with them.

    Args:
        known: prompt and sampled ids up to the end of the reply.
        rendered: the template's ids of the whole request.
        otherwise: the same with `another_reply` in the reply's place.
        ends: tokens that may end an assistant turn.
    Returns:
        `known`, the template's end of the turn if the reply does not end with it, then everything that follows.
    """
    seam = end_of_reply(rendered, otherwise, ends)
    if seam is None:
        return None
    closed = list(known) if known[-1] == rendered[seam] else [*known, rendered[seam]]
    return closed + list(rendered[seam + 1 :])


def end_of_reply(rendered: Sequence[int], otherwise: Sequence[int], ends: Collection[int]) -> int | None:
    """The position in `rendered` of the token that ends the reply; None if there is none. See `continue_exactly`."""
    shortest, common = min(len(rendered), len(otherwise)), 0
    while common < shortest and rendered[-1 - common] == otherwise[-1 - common]:
        common += 1
    if common == shortest:  # the reply is left out
        return None
    return next((i for i in range(len(rendered) - common, len(rendered)) if rendered[i] in ends), None)


class Render(Protocol):
    def __call__(self, messages: Sequence[Message], *, prompt: bool) -> list[int]:
        """The template's ids of a conversation; with `prompt`, up to where the next reply begins."""
        ...


@dataclass(frozen=True)
class Turn:
    """A scripted reply and its answer."""

    name: str
    sampled: str
    """The text that is sampled; its calls are in Hermes' form, which no template has to share."""
    reply: Message
    """The message that a chat server makes of it."""
    answer: Message


@dataclass(frozen=True)
class Continuity:
    """The result of a scripted conversation. Each field names the first such reply; None: there is none."""

    broken: str | None
    """The next prompt does not continue from what was sampled."""
    rewritten: str | None
    """After it was answered, the template wrote the conversation up to it differently."""


THOUGHT = "<think>\nprobe_thought\n</think>\n\n"


def script(*, tools: bool) -> list[Turn]:
    """Replies with a thought, without one and with an empty one; with `tools`, replies with and without calls."""
    words = [
        ("words after a thought", f"{THOUGHT}probe_words"),
        ("words", "probe_words"),
        ("words after an empty thought", "<think>\n\n</think>\n\nprobe_words"),
        ("words again", "probe_words"),
    ]
    turns = [Turn(name, said, {"role": "assistant", "content": said}, _user(i)) for i, (name, said) in enumerate(words)]
    if not tools:
        return turns
    calls = [("a call after a thought", THOUGHT), ("a call", ""), ("a call after words", "probe_words\n")]
    return [*(_call(name, said, 10 + i) for i, (name, said) in enumerate(calls)), *turns, _call("a last call", "", 20)]


def play(
    first: Sequence[Message],
    turns: Sequence[Turn],
    *,
    render: Render,
    encode: Callable[[str], list[int]],
    decode: Callable[[list[int]], str],
    ends: Collection[int],
) -> Continuity:
    """Play the script as a rollout: each prompt continues from what was sampled. The samples are cut into single
    characters, as no tokenizer would cut them. After a break there is nothing to continue from, and the play is over.

    Raises:
        Exception: whatever the template raises.
    """
    messages, rewritten = list(first), None
    prompt = render(messages, prompt=True)
    for turn in turns:
        known = [*prompt, *(token for character in turn.sampled for token in encode(character))]
        replied = [*messages, turn.reply]
        messages = [*replied, turn.answer]
        rendered = render(messages, prompt=True)
        otherwise = render([*replied[:-1], another_reply(turn.reply), turn.answer], prompt=True)
        exact = continue_exactly(known, rendered, otherwise, ends)
        if exact is None or not _follows(decode(exact[len(known) :]), turn):
            return Continuity(turn.name, rewritten)
        before = rendered[: len(rendered) - (len(exact) - len(known))]
        if rewritten is None and render(replied, prompt=False)[: len(before)] != before:
            rewritten = turn.name
        prompt = exact
    return Continuity(None, rewritten)


def _follows(text: str, turn: Turn) -> bool:
    """Whether the text behind a reply is its whole answer and repeats nothing that was said before."""
    return turn.answer["content"] in text and text.count("probe_") == 1


def _user(number: int) -> Message:
    return {"role": "user", "content": f"probe_answer {number}."}


def _call(name: str, said: str, number: int) -> Turn:
    arguments = f'{{"query": "SELECT {number}"}}'
    call = {"id": f"call_{number}", "type": "function", "function": {"name": "execute_sql", "arguments": arguments}}
    sampled = f'{said}<tool_call>\n{{"name": "execute_sql", "arguments": {arguments}}}\n</tool_call>'
    answer = {"role": "tool", "tool_call_id": call["id"], "name": "execute_sql", "content": f"probe_answer {number}."}
    return Turn(name, sampled, {"role": "assistant", "content": said, "tool_calls": [call]}, answer)
