"""Plays an environment without a model, with scripted and random replies that a policy might write.

Every play is a list of assistant messages; the same seed gives the same play. Leaves out the evaluation (`check`).
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy

from agentgrpo.chat.calls import call, calls
from dbbench_adapter.interaction import ENDS, Message
from sql_agent.datatypes import success_of
from sql_agent.environments.base import Environment
from sql_agent.play.state import Play
from sql_agent.settings.groups import AgentConfig

MOST_REPLIES = 8
# Characters of a very long text.
LONG = 100_000
# Wrong arguments that a policy may write; a JSON object with the tool's arguments is expected.
ODD_ARGUMENTS = ("", "null", "[]", '"a text"', "{", "{}", '{"a": 1}', "[" * LONG, '{"\\ud800": "\\ud800"}')
ODD_VALUES: tuple[Any, ...] = (None, True, 0, -1, 10**30, 1.5, "", "1", "\ud800", "' OR 1=1 --", [], {}, [[None]])


class ScriptedPlay(Play):
    """
    Args:
        name: what kind of script it is.
    """

    def __init__(self, name: str, task: Any, environment: Environment) -> None:
        super().__init__(task, environment, AgentConfig())
        self.name = name
        self.num_prompt = len(self.messages)
        """Messages of the first prompt."""
        self.slowest_s = 0.0
        """How long the slowest answer took."""

    @property
    def answers(self) -> list[str]:
        """The first prompt with the observation of `reset`, then every result in order."""
        if self._episode is None:
            return []
        prompt, *after = self.messages[self.num_prompt - 1 :]
        return [str(message["content"]) for message in (prompt, *after) if message["role"] != "assistant"]

    @property
    def called(self) -> list[str]:
        calls = (call["function"] for message in self.messages for call in message.get("tool_calls") or ())
        return [f"{call['name']}({call['arguments'][:200]}{'…' * (len(call['arguments']) > 200)})" for call in calls]

    @property
    def lost(self) -> str | None:
        """The reason; `error` has the traceback."""
        return self.score.reason if self.score and self.stop and ENDS[self.stop] == "lost" else None

    @property
    def value(self) -> float | None:
        """The verdict, or the reward if the environment gives one."""
        return self.score.value if self.score else None

    @property
    def success(self) -> float | None:
        return success_of(self.score) if self.score else None

    def next_answer(self) -> Message | None:
        started = time.perf_counter()
        answer = super().next_answer()
        self.slowest_s = max(self.slowest_s, time.perf_counter() - started)
        return answer

    def steps(self, replies: Sequence[Message], around: AbstractContextManager[None]) -> Iterator[None]:
        """Play the replies up to the end of the rollout, and judge it; it yields after each reply.

        Args:
            around: entered whenever the environment's code runs.
        """
        try:
            with around, self.lose_on_failure():
                self.open()
            for reply in replies:
                if self.stop is not None:
                    break
                with around:
                    self.step(reply)
                yield
            with around, self.lose_on_failure():
                self.judge()
        finally:
            self.close()


def play_scripted(
    environment: Environment,
    task: Any,
    name: str,
    replies: Sequence[Message],
    around: AbstractContextManager[None] | None = None,
) -> ScriptedPlay:
    played = ScriptedPlay(name, task, environment)
    for _ in played.steps(replies, around or nullcontext()):
        pass
    return played


def play_together(
    environment: Environment, tasks: Sequence[Any], replies: Sequence[Sequence[Message]]
) -> list[ScriptedPlay]:
    """Play the episodes at once, a reply of each in turn."""
    played = [ScriptedPlay("together", task, environment) for task in tasks]
    going = [each.steps(script, SameRandom()) for each, script in zip(played, replies, strict=True)]
    while going:
        going = [each for each in going if next(each, "ended") is None]
    return played


class SameRandom:
    """Gives every play the same numbers from `random` and numpy's generator, even if other plays run beside it."""

    def __init__(self) -> None:
        self._states = random.Random(0).getstate(), numpy.random.RandomState(0).get_state()

    def __enter__(self) -> None:
        self._outside = random.getstate(), numpy.random.get_state()
        self._draw_from(self._states)

    def __exit__(self, *_: object) -> None:
        self._states = random.getstate(), numpy.random.get_state()
        self._draw_from(self._outside)

    @staticmethod
    def _draw_from(states: Any) -> None:
        random.setstate(states[0])
        numpy.random.set_state(states[1])


# what is played -----------------------------------------------------------------------------------------------------


def _say(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _ask(name: str, arguments: str) -> Message:
    return calls(call(name, arguments, ""))


NOTHING = [_say("")]
TALK = [_say("I do not know. " * (LONG // 15))]


def random_calls(tools: Sequence[dict[str, Any]], words: Sequence[str], seed: int) -> list[Message]:
    """Make calls that fit the schemas, with texts from the prompt's words, then a reply without a call."""
    rng = random.Random(seed)
    drawn = [rng.choice(tools)["function"] for _ in range(MOST_REPLIES - 1)] if tools else []
    made = [_ask(t["name"], json.dumps(_arguments(t["parameters"], words, rng), ensure_ascii=False)) for t in drawn]
    return [*made, _say(" ".join(rng.choices(words, k=3)) if words else "")]


def odd_calls(tools: Sequence[dict[str, Any]], words: Sequence[str], seed: int) -> list[Message]:
    """Make calls that are each wrong in one way.

    Arguments do not parse, have other types, are missing or too many; tools do not exist; values are very long.
    """
    rng = random.Random(seed)
    replies = [_ask(name, "{}") for name in ("no_such_tool", "__init__", "reset", "get_reward", "")]
    for tool in (each["function"] for each in tools):
        replies += [_ask(tool["name"], arguments) for arguments in ODD_ARGUMENTS]
        fitting = _arguments(tool["parameters"], words, rng)
        replies.append(_ask(tool["name"], json.dumps({**fitting, "no_such_argument": 1})))
        for name in tool["parameters"].get("properties", {}):
            for value in (*ODD_VALUES, "x" * LONG):
                replies.append(_ask(tool["name"], json.dumps({**fitting, name: value})))
    rng.shuffle(replies)
    return replies


def split_words(text: str) -> list[str]:
    return re.findall(r"[^\s.,;:!?()\"'`]+", text)


def _arguments(parameters: dict[str, Any], words: Sequence[str], rng: random.Random) -> dict[str, Any]:
    required = parameters.get("required", ())
    known = parameters.get("properties", {})
    return {name: _value(known[name], words, rng) for name in known if name in required or rng.random() < 0.5}


def _value(schema: dict[str, Any], words: Sequence[str], rng: random.Random) -> Any:
    if schema.get("enum"):
        return rng.choice(schema["enum"])
    if schema.get("anyOf"):
        return _value(rng.choice(schema["anyOf"]), words, rng)
    kind = schema.get("type", "string")
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    if kind == "array":
        return [_value(schema.get("items", {}), words, rng) for _ in range(rng.randint(0, 3))]
    if kind == "object":
        return _arguments(schema, words, rng)
    simple = {"integer": rng.randint(-1, 10), "number": rng.uniform(-1, 10), "boolean": rng.random() < 0.5}
    if kind in simple or kind == "null":
        return simple.get(kind)
    named = re.findall(r"[\"'`]([^\"'`\s]{1,30})[\"'`]", schema.get("description", ""))  # One of "up", "down"
    return rng.choice(named) if named and rng.random() < 0.8 else _text(words, rng)


def _text(words: Sequence[str], rng: random.Random) -> str:
    return " ".join(rng.choices(words, k=rng.randint(1, 4))) if words else "word"
