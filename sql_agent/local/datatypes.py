"""Defines the records of local training. Importing this module is instant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from sql_agent.source.datatypes import StopError
from sql_agent.success_rate import Rate


class DivergedError(RuntimeError):
    """Loss or gradient was not finite several times in a row; the weights are those of the last good step."""


class UnjudgedError(StopError):
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
    """Token ids, the end token included if the reply reached it."""
    log_probs: tuple[float, ...]
    """Log-probs of `ids`, in nats, under softmax(logits / temperature) before top-p; greedy: temperature 1."""
    finish_reason: Literal["stop", "length"]


@dataclass
class TrainerState:
    """How far a run has come, and its counts so far. The values are JSON; checkpoints hold them."""

    batches: int = 0
    """Batches that were played and trained on, over all epochs."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Groups that were not trained on, by reason."""
    unjudged: dict[str, int] = field(default_factory=dict)
    """Sampled episodes that could not be judged, by reason."""
    unjudged_in_a_row: int = 0
    """Number of newest batches in which no episode could be judged."""
    judged: int = 0
    correct: int = 0
    """Greedy episodes that were judged, and those of them that were right."""
    means: dict[str, float] = field(default_factory=dict)
    """Running mean of the reward by skill."""
    scores: list[dict[str, float]] = field(default_factory=list)
    """What `RewardHackingAlarm` remembers of the last batches, if there is a reward model."""

    @property
    def accuracy(self) -> Rate:
        """The success rate of the greedy episodes, if each batch has one."""
        return Rate(self.batches, self.judged, self.correct)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The progress of a checkpoint; earlier versions had other names for the number of batches."""
        batches = next((state[name] for name in ("batches", "place", "updates") if name in state), 0)
        own = {name: value for name, value in state.items() if name in cls.__dataclass_fields__ and value is not None}
        own["batches"] = batches
        return cls(**own)
