"""Tries whether a chat template lets a conversation continue from the sampled token ids, before a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from agentgrpo.chat.calls import call, numbered_id
from agentgrpo.chat.continuation import another_reply, continue_exactly
from agentgrpo.chat.template import ChatTemplate, Message, for_template, says


@dataclass(frozen=True)
class ScriptedTurn:
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


def script(*, tools: bool) -> list[ScriptedTurn]:
    """Replies with a thought, without one and with an empty one; with `tools`, also replies with calls."""
    words = [
        ("words after a thought", f"{THOUGHT}probe_words"),
        ("words", "probe_words"),
        ("words after an empty thought", "<think>\n\n</think>\n\nprobe_words"),
        ("words again", "probe_words"),
    ]
    turns = [
        ScriptedTurn(name, said, {"role": "assistant", "content": said}, _user(i))
        for i, (name, said) in enumerate(words)
    ]
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


def _follows(text: str, turn: ScriptedTurn) -> bool:
    return turn.answer["content"] in text and text.count("probe_") == 1


def _user(number: int) -> Message:
    return {"role": "user", "content": f"probe_answer {number}."}


def _call(name: str, said: str, number: int) -> ScriptedTurn:
    arguments = f'{{"query": "SELECT {number}"}}'
    asked = call("execute_sql", arguments, numbered_id(number))
    sampled = f'{said}<tool_call>\n{{"name": "execute_sql", "arguments": {arguments}}}\n</tool_call>'
    answer = {"role": "tool", "tool_call_id": asked["id"], "name": "execute_sql", "content": f"probe_answer {number}."}
    return ScriptedTurn(name, sampled, {"role": "assistant", "content": said, "tool_calls": [asked]}, answer)
