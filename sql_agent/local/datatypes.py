"""The records of local training. Importing this module is instant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from sql_agent.datatypes import RolloutRecord
from sql_agent.environments.base import Playable as Playable
from sql_agent.rollouts.stitch import Trajectory
from sql_agent.success import Rate


class DivergedError(RuntimeError):
    """Loss or gradient was not finite several times in a row; the weights are those of the last good step."""


class UnjudgedError(RuntimeError):
    """Several batches in a row got no verdict at all; the message says why."""


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
    """Log-probs of `ids`, in nats, under softmax(logits / temperature) before top-p; greedy: temperature 1."""
    finish_reason: Literal["stop", "length"]


@dataclass(frozen=True)
class LocalRollout:
    """One played episode: what happened, and the one sequence it is trained as."""

    record: RolloutRecord
    trajectory: Trajectory | None
    """None where the policy never came to speak."""


@dataclass
class BatchEpisode:
    """One episode of a batch that is trained on."""

    task: Any
    skill: str
    """What the task is listed under."""
    greedy: bool
    """Whether it was played greedily, for the accuracy alone; nothing is learnt from it."""
    rollout: LocalRollout
    reward: float | None
    """None where the episode could not be judged."""
    advantage: float | None = None
    """None where nothing is learnt from the episode."""


@dataclass
class Progress:
    """Where a run is, and what it has counted so far. The values are JSON; checkpoints hold them."""

    batches: int = 0
    """Batches that were played and learnt from, over all epochs."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Groups that taught nothing, by reason."""
    unjudged: dict[str, int] = field(default_factory=dict)
    """Sampled episodes that could not be judged, by reason."""
    unjudged_in_a_row: int = 0
    """The newest batches of which no episode could be judged."""
    judged: int = 0
    correct: int = 0
    """Greedy episodes that were judged, and those of them that were right."""
    means: dict[str, float] = field(default_factory=dict)
    """Running mean of the reward by skill."""

    @property
    def accuracy(self) -> Rate:
        """Success of the greedy episodes, where each batch has one."""
        return Rate(self.batches, self.judged, self.correct)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The progress in a checkpoint; earlier versions named the count of batches differently."""
        batches = next((state[name] for name in ("batches", "place", "updates") if name in state), 0)
        own = {name: value for name, value in state.items() if name in cls.__dataclass_fields__ and value is not None}
        own["batches"] = batches
        return cls(**own)
