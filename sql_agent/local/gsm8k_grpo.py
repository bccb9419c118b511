"""Trains with GRPO on word problems.

Each epoch plays every problem as a group of episodes, batch by batch, and trains on each batch before it plays the
next. The reward is the judge's verdict, 1 or 0, without a reward for form. Groups without spread teach nothing; they
are skipped and counted. After each epoch the adapter is written to `epoch_N`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sql_agent.datatypes import RolloutRecord
from sql_agent.environments.rows import RowTask
from sql_agent.local.config import Gsm8kGrpoConfig
from sql_agent.local.datatypes import BatchEpisode, Progress
from sql_agent.local.rollouts import Player
from sql_agent.local.trainer import Group, Recipe, describe_loss, evaluate, success_rate


class Gsm8kGrpo(Recipe):
    """Plays batches of problems. A run continues without verdicts: prompts of long problems may fill all positions."""

    writes_epochs = True

    def __init__(self, cfg: Gsm8kGrpoConfig, problems: Sequence[RowTask], held_out: Sequence[RowTask]) -> None:
        self._cfg, self._problems, self.held_out = cfg, problems, held_out
        self.batches_per_epoch = self.evaluate_every = -(-len(problems) // cfg.batch_size)
        self.num_batches, self.save_every = self.batches_per_epoch * cfg.num_epochs, cfg.save_every
        self.group_size, self.sampling, self.scale = cfg.group_size, cfg.sampling, cfg.loss.scale
        self.rows = cfg.batch_size * cfg.group_size

    def draw(self, batch: int) -> list[tuple[str, Any]]:
        epoch, place = divmod(batch, self.batches_per_epoch)
        ordered = epoch_order(self._problems, self._cfg.seed, epoch)
        return [(problem.kind, problem) for problem in ordered[place * self._cfg.batch_size :][: self._cfg.batch_size]]

    def some_tasks(self) -> Sequence[Any]:
        return self._problems[:100]

    def reward(self, record: RolloutRecord) -> float | None:
        return record.score.value

    def metrics(self, groups: Sequence[Group], progress: Progress) -> dict[str, Any]:
        epoch, place = divmod(progress.batches - 1, self.batches_per_epoch)
        rollouts = [episode.rollout for group in groups for episode in group]
        records = [rollout.record for rollout in rollouts]
        return {
            "epoch": epoch + 1,
            "batch": place + 1,
            "rollout/success": asdict(success_rate(rollouts)),
            "rollout/reason": dict(Counter(record.score.reason for record in records)),
            "rollout/tool_calls": sum(record.tool_calls for record in records) / len(records),
            "rollout/malformed_calls": sum(record.malformed_calls for record in records),
            "reward/unjudged": progress.unjudged,
            "group/with_spread": sum(any(e.advantage is not None for e in group) for group in groups),
            "group/skipped": progress.skipped,
        }

    def labels(self, episode: BatchEpisode, batches: int) -> dict[str, Any]:
        return {"batch": batches, "advantage": episode.advantage}

    def describe(self, line: dict[str, Any], groups: Sequence[Group], progress: Progress) -> str:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(progress.skipped.items()))
        success = line["rollout/success"]
        return (
            f"epoch {line['epoch']}/{self._cfg.num_epochs}  batch {line['batch']}/{self.batches_per_epoch}  "
            f"correct {success['correct']} of {success['judged']}  {describe_loss(line, 'no spread')}  "
            f"groups with spread {line['group/with_spread']}  "
            f"skipped so far {sum(progress.skipped.values())}{f' ({reasons})' if reasons else ''}  "
            f"not judged so far {sum(progress.unjudged.values())}"
        )

    def evaluate(self, player: Player, batches: int) -> tuple[dict[str, Any], str]:
        epoch = batches // self.batches_per_epoch
        found = success_rate(evaluate(player, self.held_out))
        return {"epoch": epoch, "held_out": asdict(found)}, f"held-out after {epoch} epochs: {found}"

    def describe_done(self, progress: Progress) -> str:
        return f"{progress.batches} batches"


def epoch_order(problems: Sequence[RowTask], seed: int, epoch: int) -> list[RowTask]:
    """Return the problems in the order of that epoch, which depends only on the seed and the epoch."""
    return random.Random(f"{seed}/{epoch}").sample(problems, len(problems))
