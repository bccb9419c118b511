"""Continues a conversation from the sampled token ids, and checks whether a chat template allows that.

A template may rewrite what it wrote earlier; trainers that render whole conversations ask for one that does not
(`agentgrpo.chat.replies`). vLLM's chat server continues conversations with this
(`sql_agent.verl_side.plugin.exact_prompts`), and `sql_agent.model_check` tries a model's template with it before a run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentgrpo.chat.calls import call, numbered_id
from agentgrpo.chat.template import ChatTemplate, Message, for_template, says

# The text of `another_reply`. A reply with exactly this text is not continued exactly and counts as a break.
OTHER = "Another reply."


def another_reply(reply: Mapping[str, Any]) -> Message:
    """The calls keep their ids and names, because templates write these beside a call's result."""
    arguments = json.dumps({"other": OTHER})
    calls = [
        {**call, "function": {**call["function"], "arguments": arguments}} for call in reply.get("tool_calls") or []
    ]
    said: Message = {"content": "", "tool_calls": calls} if calls else {"content": OTHER}
    return {"role": "assistant", **said}


def continue_exactly(
    known: Sequence[int], rendered: Sequence[int], otherwise: Sequence[int], ends: Collection[int]
) -> list[int] | None:
    """Join a prompt to `known`, so that nothing sampled is tokenised again; None if there is no place to join at.

    The conversation is rendered twice, the second time with another reply instead of this one. The common suffix of
    both is the text after the reply, and it begins with the token that ends the reply. So it does not matter how a
    template writes the reply and everything before it. Qwen3's, for example, adds an empty thought to a reply while it
    is the last one and drops the thoughts of earlier replies, so a rendering without the later messages is never a
    prefix of the one with them.

    Args:
        known: prompt and sampled ids up to the end of the reply.
        rendered: the template's ids of the whole request.
        otherwise: the same with `another_reply` instead of the reply.
        ends: tokens that may end an assistant turn.
    """
    seam = end_of_reply(rendered, otherwise, ends)
    if seam is None:
        return None
    closed = list(known) if known[-1] == rendered[seam] else [*known, rendered[seam]]
    return closed + list(rendered[seam + 1 :])


def end_of_reply(rendered: Sequence[int], otherwise: Sequence[int], ends: Collection[int]) -> int | None:
    """Position in `rendered` of the token that ends the reply; None without one."""
    shortest, common = min(len(rendered), len(otherwise)), 0
    while common < shortest and rendered[-1 - common] == otherwise[-1 - common]:
        common += 1
    if common == shortest:  # the template leaves the reply out
        return None
    return next((i for i in range(len(rendered) - common, len(rendered)) if rendered[i] in ends), None)


@dataclass(frozen=True)
class Turn:
    name: str
    sampled: str
    """The sampled text; its calls are in Hermes' form, which templates need not share."""
    reply: Message
    """The message that a chat server makes from it."""
    answer: Message


@dataclass(frozen=True)
class Continuity:
    """Each field names the first such reply; None: there is none."""

    broken: str | None
    """Reply after which the next prompt does not continue from the sampled ids."""
    rewritten: str | None
    """Reply up to which the template renders the conversation differently once it is answered."""


THOUGHT = "<think>\nprobe_thought\n</think>\n\n"


def script(*, tools: bool) -> list[Turn]:
    """Replies with a thought, without one and with an empty one; with `tools`, also replies with calls."""
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
    template: ChatTemplate, first: Sequence[Message], decode: Callable[[list[int]], str], ends: Collection[int]
) -> Continuity:
    """Play the script as a rollout, in which each prompt continues from the sampled ids.

    The samples are split into single characters, as no tokenizer would split them. A break ends the play, since there
    is nothing to continue from.

    Args:
        first: the messages of the first prompt.
        ends: tokens that end a reply.
    Raises:
        Exception: any error of the template.
    """

    def render(messages: Sequence[Message], *, prompt: bool) -> list[int]:
        return template.ids(list(map(for_template, messages)), prompt=prompt)

    messages, rewritten = list(first), None
    prompt = render(messages, prompt=True)
    for turn in script(tools=bool(template.tools)):
        known = [*prompt, *(token for character in turn.sampled for token in template.encode(character))]
        replied = [*messages, turn.reply]
        messages = [*replied, turn.answer]
        rendered = render(messages, prompt=True)
        otherwise = render([*replied[:-1], another_reply(turn.reply), turn.answer], prompt=True)
        exact = continue_exactly(known, rendered, otherwise, ends)
        if exact is None or not _follows(decode(exact[len(known) :]), turn):
            return Continuity(turn.name, rewritten)
        before = rendered[: len(rendered) - (len(exact) - len(known))]
        # DeepSeek's form writes no reply's thought, wherever it stands; words beside a call are left out by several
        cut = "tool_calls" not in turn.reply and not says(decode(before), turn.sampled)
        if rewritten is None and (cut or render(replied, prompt=False)[: len(before)] != before):
            rewritten = turn.name
        prompt = exact
    return Continuity(None, rewritten)


def _follows(text: str, turn: Turn) -> bool:
    return turn.answer["content"] in text and text.count("probe_") == 1


def _user(number: int) -> Message:
    return {"role": "user", "content": f"probe_answer {number}."}


def _call(name: str, said: str, number: int) -> Turn:
    arguments = f'{{"query": "SELECT {number}"}}'
    asked = call("execute_sql", arguments, numbered_id(number))
    sampled = f'{said}<tool_call>\n{{"name": "execute_sql", "arguments": {arguments}}}\n</tool_call>'
    answer = {"role": "tool", "tool_call_id": asked["id"], "name": "execute_sql", "content": f"probe_answer {number}."}
    return Turn(name, sampled, {"role": "assistant", "content": said, "tool_calls": [asked]}, answer)
