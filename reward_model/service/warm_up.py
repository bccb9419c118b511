"""Loads a model and finds out whether its scores can be relied on, before the service says that it is ready."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from pydantic import BaseModel, Field

from core.hub import ModelError
from core.json_text import parse_json
from core.messages import Message
from reward_model.datatypes import Encoded
from reward_model.scorer import RECORD, Scorer
from reward_model.service.forward import CPU, GPU, Rounds

log = logging.getLogger(__name__)

TOLERANCE = {torch.float32: 1e-4}
"""How far a score may move with its company, relative above 1; measured on a CPU: about 1e-6."""
COARSE = 0.05
"""The same in half precision."""


class Probe(BaseModel):
    """A conversation whose score merging recorded."""

    messages: tuple[Message, ...] = Field(strict=False)
    score: float
    tolerance: float = Field(gt=0)


def load_warm(path: Path, *, device: str, threads: int) -> tuple[Scorer, Rounds]:
    """The model, ready to score.

    Raises:
        ModelError: no reward model, one whose scores depend on their batch, or not the one whose probe was recorded.
    """
    scorer = Scorer.load(path, device=device)
    pace = CPU if scorer.model.device.type == "cpu" else GPU
    trial = [scorer.encode(_exchange(number)) for number in range(6)]
    alone = [scorer.score([each])[0].value for each in trial]
    bound = TOLERANCE.get(scorer.model.dtype, COARSE)
    if not _agree(alone, _scores(Rounds(scorer, replace(pace, min_saved=None), threads=threads), trial), bound):
        raise ModelError(f"{path}: scores of a batch differ from those of its conversations alone by more than {bound}")
    if pace.min_saved is not None and not _shares(
        Rounds(scorer, replace(pace, min_saved=1), threads=threads), trial, alone, bound
    ):
        log.warning("this architecture computes beginnings together differently; each conversation is computed whole")
        pace = replace(pace, min_saved=None)
    _check_probe(path, scorer, bound)
    return scorer, Rounds(scorer, pace, threads=threads)


def _shares(rounds: Rounds, trial: Sequence[Encoded], alone: Sequence[float], bound: float) -> bool:
    try:
        # the second time with beginnings that were kept of the first
        return all(_agree(alone, _scores(rounds, trial), bound) for _ in range(2))
    except Exception as error:  # what a cache that cannot be repeated raises differs from class to class
        log.warning("sharing of beginnings failed with %s", type(error).__name__)
        return False


def _check_probe(path: Path, scorer: Scorer, bound: float) -> None:
    record = path / RECORD
    said = parse_json(record.read_text()).get("probe") if record.is_file() else None
    if said is None:
        return
    probe = Probe.model_validate(said)
    score = scorer.score([scorer.encode(probe.messages)])[0].value
    # a merged folder is float32; one that was saved again in half precision rounds as far as its batches may
    if abs(score - probe.score) > max(probe.tolerance, bound * max(1.0, abs(probe.score))):
        raise ModelError(
            f"{path}: the conversation that {RECORD} holds scores {score:.6f}, {probe.score:.6f} was recorded; "
            "weights, tokenizer or template were changed since; merge again with python -m reward_model.merge"
        )


def _scores(rounds: Rounds, trial: Sequence[Encoded]) -> list[float]:
    found = dict(pair for part in rounds.score(trial) for pair in part)
    return [found[number].value for number in range(len(trial))]


def _agree(some: Sequence[float], others: Sequence[float], bound: float) -> bool:
    return all(abs(a - b) <= bound * max(1.0, abs(a)) for a, b in zip(some, others, strict=True))


def _exchange(number: int) -> list[Message]:
    question = "How many rows has the table?" if number % 2 else "Which city has the most inhabitants, and how many?"
    return [Message(role="user", content=question), Message(role="assistant", content="There are 12. " * (number + 1))]
