"""The records of local training. Importing this module is instant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sql_agent.datatypes import RolloutRecord
from sql_agent.environments.base import Playable as Playable
from sql_agent.rollouts.stitch import Trajectory


class DivergedError(RuntimeError):
    """Loss or gradient was no finite number several times in a row; the weights are those of the last good step."""


class UnjudgedError(RuntimeError):
    """Time after time nothing can be judged; the message says why."""


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
