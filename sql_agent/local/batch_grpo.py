"""Trains with GRPO in batches of tasks, on any environment that says what a rollout is worth.

Each epoch plays every task as a group of episodes, batch by batch, and trains on each batch before it plays the next.
The reward is a preset's value for the verdict, or the number that the environment itself gives. Groups without spread
teach nothing; they are skipped and counted. After each epoch the adapter is written to `epoch_N`.
"""

from __future__ import annotations

import pkgutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sql_agent.local.datatypes import Progress, Sampling
from sql_agent.local.trainer import Group, Measure, Recipe, describe_loss, estimator_of, success_rate
from sql_agent.names import SAMPLERS
from sql_agent.reward_functions.load import load_functions
from sql_agent.settings.local import BatchGrpoConfig
from sql_agent.source.datatypes import Rollout
from sql_agent.success import Rate


class BatchGrpo(Recipe):
    """Plays batches of tasks; the held-out ones are played before the first batch and after each epoch."""

    unit = "batches"
    writes_epochs = whole_lines = True

    def __init__(self, cfg: BatchGrpoConfig, tasks: Sequence[Any], held_out: Sequence[Any]) -> None:
        self._cfg, self._tasks, self.held_out = cfg, tasks, held_out
        self._order = pkgutil.resolve_name(SAMPLERS[cfg.sampler])
        self.batches_per_epoch = self.evaluate_every = -(-len(tasks) // cfg.batch_size)
        self.num_batches, self.save_every = self.batches_per_epoch * cfg.num_epochs, cfg.save_every
        self.group_size, self.estimator = cfg.group_size, estimator_of(cfg.loss)
        self.sampling = Sampling(cfg.temperature, cfg.top_p)
        self.rows = cfg.batch_size * cfg.group_size
        self.rollout, self.reward_model = cfg.rollout, cfg.reward_model
        self.functions = load_functions(cfg.rollout, cfg.llm_judge, cfg.run_dir)
        self.replacements = [task.to_dict() for task in tasks] if cfg.rollout.redraws else []

    def draw(self, batch: int) -> list[tuple[str, Any]]:
        epoch, place = divmod(batch, self.batches_per_epoch)
        ordered = self._order(self._tasks, self._cfg.seed, epoch)
        return [(task.kind, task) for task in ordered[place * self._cfg.batch_size :][: self._cfg.batch_size]]

    def some_tasks(self) -> Sequence[Any]:
        return self._tasks[:100]

    def metrics(self, groups: Sequence[Group], first: Sequence[Rollout], progress: Progress) -> dict[str, Any]:
        epoch, place = divmod(progress.batches - 1, self.batches_per_epoch)
        records = [rollout.record for rollout in first]
        return {
            "epoch": epoch + 1,
            "batch": place + 1,
            "rollout/success": asdict(success_rate(first)),
            "rollout/reason": dict(Counter(record.score.reason for record in records)),
            "rollout/tool_calls": sum(record.tool_calls for record in records) / len(records),
            "rollout/malformed_calls": sum(record.malformed_calls for record in records),
            "reward/unjudged": progress.unjudged,
            "group/with_spread": sum(any(rollout.advantage is not None for rollout in group) for group in groups),
            "group/skipped": progress.skipped,
        }

    def labels(self, rollout: Rollout, batches: int) -> dict[str, Any]:
        return {"batch": batches}

    def describe(self, line: dict[str, Any], groups: Sequence[Group], progress: Progress) -> str:
        skipped, unjudged = (
            f"{sum(counts.values())}{f' ({listed(counts)})' if counts else ''}"
            for counts in (progress.skipped, progress.unjudged)
        )
        episodes = [(rollout.reward, rollout.success) for group in groups for rollout in group]
        return (
            f"epoch {line['epoch']}/{self._cfg.num_epochs}  batch {line['batch']}/{self.batches_per_epoch}  "
            f"{describe_outcome(Rate(**line['rollout/success']), episodes)}  {describe_loss(line, 'no spread')}  "
            f"groups with spread {line['group/with_spread']}  skipped so far {skipped}  not judged so far {unjudged}"
        )

    def evaluate(self, measure: Measure, batches: int) -> tuple[dict[str, Any], str]:
        epoch = batches // self.batches_per_epoch
        rollouts = measure(self.held_out)
        found = success_rate(rollouts)
        rewards = [(rollout.reward, rollout.success) for rollout in rollouts]
        known = [value for value, _ in rewards if value is not None]
        lost = dict(Counter(rollout.lost for rollout in rollouts if rollout.lost))
        line = {
            "epoch": epoch,
            "held_out": asdict(found),
            "held_out/reward": sum(known) / len(known) if known else None,
            "held_out/unjudged": lost,
        }
        words = f"{found}" if found.judged or not known else f"success of {found.n} is unknown"
        words += describe_rewards(rewards) + (f"  not judged: {listed(lost)}" if lost else "")
        return line, f"held-out after {epoch} epochs: {words}"

    def describe_done(self, progress: Progress) -> str:
        return f"{progress.batches} batches"


def listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))


def describe_outcome(success: Rate, episodes: Sequence[tuple[float | None, float | None]]) -> str:
    """Return how many were right, or that nobody knows, and the mean reward if it says more.

    Args:
        episodes: pairs of reward and success; None in either is unknown.
    """
    unknown = not success.judged and any(value is not None for value, _ in episodes)
    right = "success unknown" if unknown else f"correct {success.correct} of {success.judged}"
    return right + describe_rewards(episodes)


def describe_rewards(episodes: Sequence[tuple[float | None, float | None]]) -> str:
    """Return the mean reward as text; empty if each reward is 1 for success and 0 else, or none is known."""
    rewards = [value for value, _ in episodes if value is not None]
    if not rewards or all(value == success for value, success in episodes if value is not None):
        return ""
    return f"  reward {sum(rewards) / len(rewards):+.3f}"
