"""The records of local training. Importing this module is instant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from dbbench_adapter.datatypes import Score
from dbbench_adapter.protocols import Message
from sql_agent.datatypes import AgentConfig, RolloutRecord
from sql_agent.rollouts.stitch import Trajectory


class DivergedError(RuntimeError):
    """Loss or gradient was no finite number several times in a row; the weights are those of the last good step."""


class UnjudgedError(RuntimeError):
    """Time after time nothing can be judged; the message says why."""


class Playable(Protocol):
    """The part of an environment (`sql_agent.environments.base.Environment`) that playing an episode needs."""

    tools: list[dict[str, Any]]

    def messages(self, task: Any) -> list[Message]: ...

    def history(self, messages: Sequence[Message]) -> list[Message]: ...

    def open(self, task: Any, limits: AgentConfig) -> Any: ...

    def judge(self, episode: Any) -> Score: ...

    def max_replies(self, limits: AgentConfig) -> int: ...


@dataclass(frozen=True)
class Sampling:
    """How one row of a batch is sampled."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0


GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True)
class Sample:
    """One reply as it was sampled."""

    ids: tuple[int, ...]
    """The end token included, where the reply came to it."""
    log_probs: tuple[float, ...]
    """Of `ids`, in nats, under softmax(logits / temperature) before top-p; greedy: temperature 1."""
    finish_reason: Literal["stop", "length"]


@dataclass(frozen=True)
class LocalRollout:
    """One played episode: what happened, and the one sequence it is trained as."""

    record: RolloutRecord
    trajectory: Trajectory | None
    """None where the policy never came to speak."""
