"""Trains with GRPO task by task: greedy episode, sampled episodes, update.

Each task is played once greedily, which counts for the accuracy, and `group_size` times sampled, all in one batch,
because the same policy plays them all. Then a GRPO update follows, so the next task is played by the updated policy.
Groups without spread teach nothing; they are skipped and counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from sql_agent.local.datatypes import Progress, Sampling
from sql_agent.local.trainer import (
    EVALUATED_TOGETHER,
    Group,
    Measure,
    Recipe,
    describe_loss,
    estimator_of,
    success_rate,
)
from sql_agent.rewards import REWARDS
from sql_agent.settings.local import GreedyGrpoConfig
from sql_agent.source.datatypes import Rollout


class GreedyGrpo(Recipe):
    """Plays one task per batch. One epoch is the whole run: gradients accumulate across passes over the tasks."""

    unit = "tasks"
    greedy_first = True
    preset = dataclasses.replace(REWARDS["rllm"], out_of_tokens=REWARDS["rllm"].incorrect)
    """Correct +1, wrong -1, out of turns -0.8, illegal -0.2. A reply that `max_new_tokens` cut is wrong, not out of
    turns: at -0.8, endless writing would pay for a policy that is mostly wrong."""

    def __init__(self, cfg: GreedyGrpoConfig, tasks: Sequence[Any], held_out: Sequence[Any]) -> None:
        self._tasks, self.held_out = tasks, held_out
        self.num_batches = self.batches_per_epoch = len(tasks) * cfg.num_epochs
        self.group_size, self.estimator = cfg.group_size, estimator_of(cfg.loss)
        self.sampling = Sampling(cfg.temperature, cfg.top_p)
        self.rows = max(1 + cfg.group_size, min(len(held_out), EVALUATED_TOGETHER))
        self.evaluate_every, self.save_every = cfg.eval_every, cfg.save_every

    def draw(self, batch: int) -> list[tuple[str, Any]]:
        task = self._tasks[batch % len(self._tasks)]
        return [(task.kind, task)]

    def some_tasks(self) -> Sequence[Any]:
        return self._tasks[:100]

    def metrics(self, groups: Sequence[Group], first: Sequence[Rollout], progress: Progress) -> dict[str, Any]:
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

    def describe(self, line: dict[str, Any], groups: Sequence[Group], progress: Progress) -> str:
        rewards = ["?" if e.reward is None else f"{e.reward:+.1f}" for e in groups[1]]
        return (
            f"task {progress.batches}/{self.num_batches}  greedy accuracy {progress.accuracy}  "
            f"rewards {' '.join(rewards)}  {describe_loss(line, 'no spread')}  "
            f"skipped groups {sum(progress.skipped.values())}"
        )

    def evaluate(self, measure: Measure, batches: int) -> tuple[dict[str, Any], str]:
        greedy, sampled = success_rate(measure(self.held_out)), success_rate(measure(self.held_out, 1.0))
        line = {
            "task": batches,
            "held_out/greedy": dataclasses.asdict(greedy),
            "held_out/sampled": dataclasses.asdict(sampled),
        }
        return line, f"held-out after {batches} tasks  greedy {greedy}  at temperature 1 {sampled}"

    def describe_done(self, progress: Progress) -> str:
        return f"task {progress.batches}"
