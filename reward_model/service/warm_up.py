"""Whether the scores of a loaded model are reliable, before the service says that it is ready."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from pydantic import BaseModel, Field

from agentgrpo.chat.messages import Message
from agentgrpo.hub import ModelError
from agentgrpo.json_text import parse_json
from reward_model.datatypes import EncodedConversation
from reward_model.scorer import RECORD, Scorer
from reward_model.service.batch_scorer import CPU, GPU, BatchScorer

log = logging.getLogger(__name__)

# A score may change this much with the other conversations of its batch, relative above 1; measured on a CPU: 1e-6.
TOLERANCE = {torch.float32: 1e-4}
HALF_PRECISION_TOLERANCE = 0.05


class Probe(BaseModel):
    # A conversation whose score was recorded by merging.

    messages: tuple[Message, ...] = Field(strict=False)
    score: float
    tolerance: float = Field(gt=0)


def load_warm(path: Path, *, device: str, threads: int) -> tuple[Scorer, BatchScorer]:
    """Raises ModelError: the folder holds no reward model, its scores depend on their batch, or it is not the model
    whose probe was recorded.
    """
    scorer = Scorer.load(path, device=device)
    limits = CPU if scorer.model.device.type == "cpu" else GPU
    trial = [scorer.encode(_exchange(number)) for number in range(6)]
    alone = [scorer.score([each])[0].value for each in trial]
    bound = TOLERANCE.get(scorer.model.dtype, HALF_PRECISION_TOLERANCE)
    unshared = replace(limits, min_saved=None)
    if not _agree(alone, _scores(BatchScorer(scorer, unshared, threads=threads), trial), bound):
        raise ModelError(
            f"{path}: scores in a batch differ from those of the same conversations alone by more than {bound}; this "
            "architecture cannot be served in batches, take another base"
        )
    if limits.min_saved is not None:
        sharing = BatchScorer(scorer, replace(limits, min_saved=1), threads=threads)
        if not _can_share(sharing, trial, alone, bound):
            log.warning("this architecture computes shared prefixes differently; each conversation is computed whole")
            limits = unshared
    _check_probe(path, scorer, bound)
    return scorer, BatchScorer(scorer, limits, threads=threads)


def _can_share(
    batch_scorer: BatchScorer, trial: Sequence[EncodedConversation], alone: Sequence[float], bound: float
) -> bool:
    try:
        # the second round uses the prefixes that the first one cached
        return all(_agree(alone, _scores(batch_scorer, trial), bound) for _ in range(2))
    except Exception as error:  # caches that cannot be repeated raise different errors
        log.warning("sharing prefixes failed with %s", type(error).__name__)
        return False


def _check_probe(path: Path, scorer: Scorer, bound: float) -> None:
    record = path / RECORD
    recorded = parse_json(record.read_text()).get("probe") if record.is_file() else None
    if recorded is None:
        return
    probe = Probe.model_validate(recorded)
    score = scorer.score([scorer.encode(probe.messages)])[0].value
    # a merged folder is float32; saved again in half precision, its scores may differ by that tolerance
    if abs(score - probe.score) > max(probe.tolerance, bound * max(1.0, abs(probe.score))):
        raise ModelError(
            f"{path}: the conversation in {RECORD} scores {score:.6f}, but {probe.score:.6f} was recorded; weights, "
            "tokenizer or chat template were changed since; merge again with agentgrpo reward merge"
        )


def _scores(batch_scorer: BatchScorer, trial: Sequence[EncodedConversation]) -> list[float]:
    found = dict(pair for scored in batch_scorer.score(trial) for pair in scored)
    return [found[number].value for number in range(len(trial))]


def _agree(some: Sequence[float], others: Sequence[float], bound: float) -> bool:
    return all(abs(a - b) <= bound * max(1.0, abs(a)) for a, b in zip(some, others, strict=True))


def _exchange(number: int) -> list[Message]:
    question = "How many rows has the table?" if number % 2 else "Which city has the most inhabitants, and how many?"
    return [Message(role="user", content=question), Message(role="assistant", content="There are 12. " * (number + 1))]
