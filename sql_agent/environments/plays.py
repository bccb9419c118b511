"""Plays an environment without a model, with scripted and random replies that a policy might write.

Every play is a list of assistant messages; the same seed gives the same play. Leaves out the evaluation (`check`).
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy

from dbbench_adapter.datatypes import Score
from dbbench_adapter.engines import BackendUnavailable, TableError
from dbbench_adapter.protocols import Message
from sql_agent.datatypes import OWN_REWARD, AgentConfig
from sql_agent.environments.base import Environment, EpisodeLostError, with_observation

MOST_REPLIES = 8
LONG = 100_000
"""Characters of a very long text."""
ODD_ARGUMENTS = ("", "null", "[]", '"a text"', "{", "{}", '{"a": 1}', "[" * LONG, '{"\\ud800": "\\ud800"}')
"""Wrong arguments that a policy may write; a JSON object with the tool's arguments is expected."""
ODD_VALUES: tuple[Any, ...] = (None, True, 0, -1, 10**30, 1.5, "", "1", "\ud800", "' OR 1=1 --", [], {}, [[None]])


@dataclass
class Played:
    """Holds the course and the result of one play."""

    play: str
    task_id: str
    answers: list[str] = field(default_factory=list)
    """The first prompt with the observation of `reset`, then every result in order."""
    called: list[str] = field(default_factory=list)
    score: Score | None = None
    lost: str | None = None
    """The reason for which the rollout would be lost; `error` has the traceback."""
    error: str = ""
    slowest_s: float = 0.0

    @property
    def value(self) -> float | None:
        """Return the verdict, or the reward if the environment gives one."""
        return self.score.value if self.score else None

    @property
    def success(self) -> float | None:
        if self.score is None or self.score.value is None:
            return None
        return self.score.parts.get("correctness") if self.score.reason == OWN_REWARD else float(self.value == 1.0)


def play(environment: Environment, task: Any, name: str, replies: Sequence[Message]) -> Played:
    """Play one whole episode."""
    played = Played(name, task.id)
    for _ in _steps(environment, task, replies, played):
        pass
    return played


def play_together(environment: Environment, tasks: Sequence[Any], replies: Sequence[Sequence[Message]]) -> list[Played]:
    """Play several episodes at once, a reply of each in turn."""
    played = [Played("together", task.id) for task in tasks]
    going = [_steps(environment, t, r, p) for t, r, p in zip(tasks, replies, played, strict=True)]
    while going:
        going = [each for each in going if next(each, "ended") is None]
    return played


def _steps(environment: Environment, task: Any, replies: Sequence[Message], played: Played) -> Iterator[None]:
    lots, episode = Lots(), None
    try:
        with lots:
            episode = environment.open(task, AgentConfig())
        shown = with_observation(environment.messages(task), episode)[-1]["content"]
        played.answers.append(str(shown))
        for reply in replies[: environment.max_replies(AgentConfig())]:
            if episode.done:
                break
            with lots:
                _answer(environment, episode, reply, played)
            yield
        with lots:
            played.score = environment.judge(episode)
    except EpisodeLostError as lost:
        played.lost, played.error = lost.reason, str(lost)
    except (BackendUnavailable, TableError) as failure:
        played.lost, played.error = type(failure).__name__, str(failure)
    finally:
        if episode is not None:
            episode.close()


def _answer(environment: Environment, episode: Any, reply: Message, played: Played) -> None:
    if not environment.tools:
        played.answers += [str(m["content"]) for m in episode.step(reply.get("content") or "")]
        return
    if not reply.get("tool_calls"):
        played.answers += [str(m["content"]) for m in episode.without_call(reply.get("content") or "")]
        return
    for call in reply["tool_calls"]:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        played.called.append(f"{name}({arguments[:200]}{'…' if len(arguments) > 200 else ''})")
        started = time.perf_counter()
        played.answers.append(episode.call_tool(name, arguments))
        played.slowest_s = max(played.slowest_s, time.perf_counter() - started)
        if episode.done:
            return


class Lots:
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


def say(text: str) -> Message:
    return {"role": "assistant", "content": text}


def call(name: str, arguments: str) -> Message:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "", "type": "function", "function": function}]}


NOTHING = [say("")]
TALK = [say("I do not know. " * (LONG // 15))]


def random_calls(tools: Sequence[dict[str, Any]], words: Sequence[str], seed: int) -> list[Message]:
    """Make calls that fit the schemas, with texts from the prompt's words, then a reply without a call."""
    rng = random.Random(seed)
    calls = [rng.choice(tools)["function"] for _ in range(MOST_REPLIES - 1)] if tools else []
    made = [call(t["name"], json.dumps(_arguments(t["parameters"], words, rng), ensure_ascii=False)) for t in calls]
    return [*made, say(" ".join(rng.choices(words, k=3)) if words else "")]


def odd_calls(tools: Sequence[dict[str, Any]], words: Sequence[str], seed: int) -> list[Message]:
    """Make calls that are each wrong in one way.

    Arguments do not parse, have other types, are missing or too many; tools do not exist; values are very long.
    """
    rng = random.Random(seed)
    replies = [call(name, "{}") for name in ("no_such_tool", "__init__", "reset", "get_reward", "")]
    for tool in (each["function"] for each in tools):
        replies += [call(tool["name"], arguments) for arguments in ODD_ARGUMENTS]
        fitting = _arguments(tool["parameters"], words, rng)
        replies.append(call(tool["name"], json.dumps({**fitting, "no_such_argument": 1})))
        for name in tool["parameters"].get("properties", {}):
            for value in (*ODD_VALUES, "x" * LONG):
                replies.append(call(tool["name"], json.dumps({**fitting, name: value})))
    rng.shuffle(replies)
    return replies


def words_of(text: str) -> list[str]:
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
