"""What sets the commands apart that share the local trainer: the tasks that they draw and the lines that they print.

`Preset` is GRPO in batches of tasks, on any environment (`local`, `gsm8k`): each epoch plays every task as a group of
episodes, and after it the adapter is written to `epoch_N`. `GreedyGrpo` plays one task at a time, greedily first.
Single-skill REINFORCE is in `single_skill`. Defaults are in `sql_agent.settings.local`. `SAMPLERS` (`sql_agent.names`)
has a row for each order in which tasks are drawn, an epoch at a time.
"""

from __future__ import annotations

import dataclasses
import pkgutil
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Protocol, TypeVar

from sql_agent.credit.registry import ESTIMATORS, Credit, made
from sql_agent.local.datatypes import Sampling, TrainerState
from sql_agent.names import SAMPLERS
from sql_agent.rewards import REWARDS, RewardPreset
from sql_agent.settings.local import LocalConfig, LossConfig
from sql_agent.source.datatypes import Rollout
from sql_agent.source.dynamic_sampling import credit_groups
from sql_agent.success_rate import Rate

EVALUATED_TOGETHER = 32
"""Held-out episodes that are played side by side, unless a batch has more."""

Group = Sequence[Rollout]
"""The rollouts of one task in one batch."""


class Measure(Protocol):
    """Plays each task once and changes nothing of the run; greedily unless it gets a temperature."""

    def __call__(self, tasks: Sequence[Any], temperature: float = 0.0) -> list[Rollout]: ...


class Preset:
    """A command's own part of a run.

    Args:
        tasks: those to train on.
        held_out: tasks for evaluation before the first batch, every so often and after the last; empty: never.
    """

    unit = "batches"
    """Name of batches in messages."""
    greedy_first = False
    """Whether each task is also played greedily, before its group."""
    writes_epochs = True
    """Whether the adapter is written after each epoch; else gradients accumulate over the whole run."""
    whole_lines = True
    """Whether metrics.jsonl has the source's metrics too, and the trajectories the held-out rollouts."""
    values: RewardPreset | None = None
    """Rewards by outcome, where the settings name no reward."""

    def __init__(self, cfg: LocalConfig, tasks: Sequence[Any], held_out: Sequence[Any]) -> None:
        self.cfg, self.tasks, self.held_out = cfg, tasks, held_out
        per_epoch = -(-len(tasks) // cfg.batch_size)
        self.num_batches = per_epoch * cfg.num_epochs
        self.batches_per_epoch = per_epoch if self.writes_epochs else self.num_batches
        self.evaluate_every = per_epoch if cfg.eval_every is None else cfg.eval_every
        self.estimator, self.sampling = estimator_of(cfg.loss), Sampling(cfg.temperature, cfg.top_p)
        self.batch_rows = cfg.batch_size * (cfg.group_size + self.greedy_first)
        if cfg.reward is not None:
            self.values = None
        self.whole_lines |= cfg.reward is not None or cfg.reward_model.url is not None

    @property
    def rows(self) -> int:
        """Largest number of episodes that are played side by side."""
        return max(self.batch_rows, 0 if self.writes_epochs else min(len(self.held_out), EVALUATED_TOGETHER))

    def draw(self, batch: int) -> list[tuple[str, Any]]:
        """Pairs of skill, or kind, and task for a batch; batches are requested in order."""
        size, per_epoch = self.cfg.batch_size, -(-len(self.tasks) // self.cfg.batch_size)
        epoch, place = divmod(batch, per_epoch)
        ordered = pkgutil.resolve_name(SAMPLERS[self.cfg.sampler])(self.tasks, self.cfg.seed, epoch)
        return [(task.kind, task) for task in ordered[place * size :][:size]]

    def credit(self, groups: Sequence[Group], means: dict[str, float]) -> dict[str, float]:
        """Set the advantages of the rollouts that are trained on.

        Args:
            means: running mean of the reward by skill.
        Returns:
            The means after this batch.
        """
        credit_groups(groups, self.estimator, whiten=self.cfg.loss.whiten, zeros=False)
        return means

    def metrics(self, groups: Sequence[Group], first: Sequence[Rollout], progress: TrainerState) -> dict[str, Any]:
        """The preset's own metrics of a batch.

        Args:
            groups: those that are trained on.
            first: the rollouts of the tasks that were drawn first, which no other task replaces.
            progress: already counts the batch.
        """
        epoch, place = divmod(progress.batches - 1, self.batches_per_epoch)
        records = [rollout.record for rollout in first]
        return {
            "epoch": epoch + 1,
            "batch": place + 1,
            "rollout/success": asdict(success_rate(first)),
            "rollout/reason": dict(Counter(record.score.reason for record in records)),
            "rollout/tool_calls": sum(record.tool_calls for record in records) / len(records),
            "rollout/malformed_calls": sum(record.malformed_calls for record in records),
            "rollout/refused_statements": sum(record.refused_statements for record in records),
            "reward/unjudged": progress.unjudged,
            "group/trained": sum(any(rollout.advantage is not None for rollout in group) for group in groups),
            "group/skipped": progress.skipped,
        }

    def labels(self, rollout: Rollout, batches: int) -> dict[str, Any]:
        """Fields that come before a rollout's own in its line; `batches` counts the rollout's batch."""
        return {"batch": batches}

    def describe(self, line: dict[str, Any], groups: Sequence[Group], progress: TrainerState) -> str:
        """One line for the screen about a batch; `line` is the one in metrics.jsonl."""
        skipped, unjudged = (
            f"{sum(counts.values())}{f' ({format_reasons(counts)})' if counts else ''}"
            for counts in (progress.skipped, progress.unjudged)
        )
        episodes = [(rollout.reward, rollout.success) for group in groups for rollout in group]
        return (
            f"epoch {line['epoch']}/{self.cfg.num_epochs}  batch {line['batch']}/{self.batches_per_epoch}  "
            f"{describe_outcome(Rate(**line['rollout/success']), episodes)}  {describe_loss(line, 'zero variance')}  "
            f"trained groups {line['group/trained']}  skipped so far {skipped}  not judged so far {unjudged}"
        )

    def evaluate(self, measure: Measure, batches: int) -> tuple[dict[str, Any], str]:
        """Play the held-out tasks; the line for metrics.jsonl and the one for the screen."""
        epoch, inside = divmod(batches, self.batches_per_epoch)
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
        words += describe_rewards(rewards) + (f"  not judged: {format_reasons(lost)}" if lost else "")
        return line, f"held-out after {f'{batches} batches' if inside else f'{epoch} epochs'}: {words}"

    def describe_done(self, progress: TrainerState) -> str:
        """The place from which a resumed run continues, e.g. "task 12"."""
        return f"{progress.batches} batches"


class GreedyGrpo(Preset):
    """One task per batch: a greedy episode, which counts for the accuracy, and a sampled group."""

    unit = "tasks"
    greedy_first = True
    writes_epochs = whole_lines = False
    values = dataclasses.replace(REWARDS["rllm"], out_of_tokens=REWARDS["rllm"].incorrect)
    """Correct +1, wrong -1, out of turns -0.8, illegal -0.2. A reply that `max_new_tokens` cut is wrong, not out of
    turns: at -0.8, endless writing would pay for a policy that is mostly wrong."""

    def metrics(self, groups: Sequence[Group], first: Sequence[Rollout], progress: TrainerState) -> dict[str, Any]:
        [greedy], sampled = groups
        return {
            "task": progress.batches,
            "task_id": greedy.task_id,
            "kind": greedy.record.kind,
            "greedy/correct": greedy.record.score.value,
            "greedy/accuracy": progress.accuracy.success,
            "reward/unjudged": sum(rollout.reward is None for rollout in sampled),
            "group/skipped": progress.skipped,
        }

    def labels(self, rollout: Rollout, batches: int) -> dict[str, Any]:
        return {"place": batches, "mode": "sampled" if rollout.temperature is None else "greedy"}

    def describe(self, line: dict[str, Any], groups: Sequence[Group], progress: TrainerState) -> str:
        rewards = ["?" if e.reward is None else f"{e.reward:+.1f}" for e in groups[1]]
        return (
            f"task {progress.batches}/{self.num_batches}  greedy accuracy {progress.accuracy}  "
            f"rewards {' '.join(rewards)}  {describe_loss(line, 'zero variance')}  "
            f"skipped groups {sum(progress.skipped.values())}"
        )

    def evaluate(self, measure: Measure, batches: int) -> tuple[dict[str, Any], str]:
        greedy, sampled = success_rate(measure(self.held_out)), success_rate(measure(self.held_out, 1.0))
        line = {"task": batches, "held_out/greedy": asdict(greedy), "held_out/sampled": asdict(sampled)}
        return line, f"held-out after {batches} tasks  greedy {greedy}  at temperature 1 {sampled}"

    def describe_done(self, progress: TrainerState) -> str:
        return f"task {progress.batches}"


def success_rate(rollouts: Sequence[Rollout]) -> Rate:
    return Rate.of([rollout.success for rollout in rollouts])


def estimator_of(cfg: LossConfig) -> Credit:
    return made(ESTIMATORS[cfg.estimator or "grpo"], cfg)


def format_reasons(counts: dict[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))


def describe_loss(line: dict[str, Any], reason: str) -> str:
    """The loss of a batch as text, or `reason` if there was no update."""
    return f"loss {line['policy/loss']:+.4f}" if "policy/loss" in line else f"{reason}, no update"


def describe_outcome(success: Rate, episodes: Sequence[tuple[float | None, float | None]]) -> str:
    """How many were right, or that nobody knows, and the mean reward if it says more.

    Args:
        episodes: pairs of reward and success; None in either is unknown.
    """
    unknown = not success.judged and any(value is not None for value, _ in episodes)
    right = "success unknown" if unknown else f"correct {success.correct} of {success.judged}"
    return right + describe_rewards(episodes)


def describe_rewards(episodes: Sequence[tuple[float | None, float | None]]) -> str:
    """The mean reward as text; empty if each reward is 1 for success and 0 else, or none is known."""
    rewards = [value for value, _ in episodes if value is not None]
    if not rewards or all(value == success for value, success in episodes if value is not None):
        return ""
    return f"  reward {sum(rewards) / len(rewards):+.3f}"


Task = TypeVar("Task")


def shuffled(tasks: Sequence[Task], seed: int, epoch: int) -> list[Task]:
    """Every task once, in an order that depends only on the seed and the epoch."""
    return random.Random(f"{seed}/{epoch}").sample(tasks, len(tasks))


def in_order(tasks: Sequence[Task], seed: int, epoch: int) -> list[Task]:
    """Every task once, in the order of its file."""
    return list(tasks)
