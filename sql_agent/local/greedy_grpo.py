"""Greedy, then sample, then update: the policy changes after every task, so the next task meets the updated one.

For each task one greedy episode, which counts for the accuracy, and `group_size` sampled ones, all in one batch since
one policy plays them all; then a GRPO update. Groups without spread teach nothing: they are skipped and counted.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sql_agent.datatypes import RolloutRecord
from sql_agent.local.config import GreedyGrpoConfig
from sql_agent.local.datatypes import GREEDY, DivergedError, LocalRollout, Sampling, UnjudgedError
from sql_agent.local.learner import Learner
from sql_agent.local.losses import group_advantages, has_spread
from sql_agent.local.policy import LocalPolicy
from sql_agent.local.rollouts import Player
from sql_agent.local.run_folder import RunFolder
from sql_agent.rewards import REWARDS, reward
from sql_agent.success import Rate

REWARD = REWARDS["rllm"]
"""Correct +1, wrong -1, out of rounds -0.8, illegal -0.2."""
CUT_REWARD = dataclasses.replace(REWARD, out_of_limits=REWARD.incorrect)
MAX_UNJUDGED = 3


def reward_of(record: RolloutRecord) -> float | None:
    """A reply that `max_new_tokens` cut counts as wrong, not as out of rounds: at -0.8 writing without end would
    pay for a policy that is mostly wrong."""
    return reward(record, CUT_REWARD if record.stop_reason == "max_tokens" else REWARD).value


@dataclass
class Progress:
    """Where the loop is, and what it has counted; JSON values."""

    place: int = 0
    """Tasks done, over all epochs."""
    correct: int = 0
    judged: int = 0
    skipped: dict[str, int] | None = None
    """Groups without an update, by reason."""
    unjudged_in_a_row: int = 0
    """Tasks of which no episode could be judged."""

    @property
    def accuracy(self) -> Rate:
        """Of the greedy episodes so far."""
        return Rate(self.place, self.judged, self.correct)


def train(
    policy: LocalPolicy,
    learner: Learner,
    player: Player,
    tasks: Sequence[Any],
    held_out: Sequence[Any],
    cfg: GreedyGrpoConfig,
    folder: RunFolder,
    progress: Progress,
    say: Callable[[str], None],
) -> None:
    """Go through the tasks from `progress.place` on; `progress` is kept up to date.

    Args:
        held_out: evaluated before the first task, every `eval_every` and after the last; empty: never.
    Raises:
        DivergedError: see `Learner.learn`.
    """
    sampled = Sampling(cfg.temperature, cfg.top_p)
    skipped = Counter(progress.skipped or {})
    total = len(tasks) * cfg.num_epochs
    if held_out and progress.place == 0:
        _evaluate(player, held_out, 0, folder, say)
    while progress.place < total:
        task = tasks[progress.place % len(tasks)]
        started = time.perf_counter()
        greedy, *group = player.play([task] * (1 + cfg.group_size), [GREEDY] + [sampled] * cfg.group_size)
        played_s = time.perf_counter() - started
        rewards = [reward_of(rollout.record) for rollout in group]
        _stop_if_nobody_judges(progress, (greedy, *group))
        try:
            metrics = _update(learner, group, rewards, cfg) if has_spread(rewards) else {}
        except DivergedError:
            folder.save(progress.place, policy, learner, vars(progress))
            raise
        if not metrics:
            skipped[why_without_spread(group, rewards)] += 1
        progress.place += 1
        if greedy.record.score.value is not None:
            progress.judged += 1
            progress.correct += greedy.record.score.value == 1.0
        progress.skipped = dict(skipped)
        folder.log(_line(progress, task, greedy, group, rewards, metrics, learner, played_s, started))
        folder.keep({"place": progress.place, "mode": "greedy", **greedy.record.to_dict()})
        for rollout, value in zip(group, rewards, strict=True):
            folder.keep({"place": progress.place, "mode": "sampled", "reward": value, **rollout.record.to_dict()})
        say(_shown(progress, total, rewards, metrics, skipped))
        if progress.place == total:
            learner.flush()
        if held_out and (progress.place == total or (cfg.eval_every and progress.place % cfg.eval_every == 0)):
            _evaluate(player, held_out, progress.place, folder, say)
        if progress.place == total or progress.place % cfg.save_every == 0:
            folder.save(progress.place, policy, learner, vars(progress))


def evaluate(player: Player, tasks: Sequence[Any], sampling: Sampling = GREEDY) -> Rate:
    """Success on these tasks; the run's random numbers stay as they are."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        values = [rollout.record.score.value for rollout in player.play(tasks, [sampling] * len(tasks))]
    judged = [value for value in values if value is not None]
    return Rate(len(values), len(judged), sum(value == 1.0 for value in judged))


def _stop_if_nobody_judges(progress: Progress, rollouts: Sequence[LocalRollout]) -> None:
    lost = all(rollout.record.score.value is None for rollout in rollouts)
    progress.unjudged_in_a_row = progress.unjudged_in_a_row + 1 if lost else 0
    if progress.unjudged_in_a_row >= MAX_UNJUDGED:
        record = rollouts[0].record
        raise UnjudgedError(
            f"no episode of the last {MAX_UNJUDGED} tasks could be judged ({record.score.reason}: "
            f"{record.error or record.stop_reason}); look at the database, then go on with --resume"
        )


def _evaluate(
    player: Player, held_out: Sequence[Any], place: int, folder: RunFolder, say: Callable[[str], None]
) -> None:
    greedy, sampled = evaluate(player, held_out), evaluate(player, held_out, Sampling(1.0))
    folder.log({"task": place, "held_out/greedy": asdict(greedy), "held_out/sampled": asdict(sampled)})
    say(f"held-out after {place} tasks  greedy {greedy}  at temperature 1 {sampled}")


def _update(
    learner: Learner, group: Sequence[LocalRollout], rewards: Sequence[float | None], cfg: GreedyGrpoConfig
) -> dict[str, float]:
    advantages = group_advantages(rewards, scale=cfg.loss.scale)
    pairs = [
        (rollout.trajectory, advantage)
        for rollout, advantage in zip(group, advantages, strict=True)
        if advantage is not None and rollout.trajectory is not None
    ]
    update = learner.learn([t for t, _ in pairs], [a for _, a in pairs], temperature=cfg.temperature)
    return update.metrics


def why_without_spread(group: Sequence[LocalRollout], rewards: Sequence[float | None]) -> str:
    """The reason under which a group without spread is counted."""
    judged = [value for value in rewards if value is not None]
    if len(judged) < 2:
        return "unjudged"
    verdicts = {rollout.record.score.value for rollout in group} - {None}
    return "all_correct" if verdicts == {1.0} else "all_wrong" if verdicts == {0.0} else "all_equal"


def _line(
    progress: Progress,
    task: Any,
    greedy: LocalRollout,
    group: Sequence[LocalRollout],
    rewards: Sequence[float | None],
    metrics: dict[str, float],
    learner: Learner,
    played_s: float,
    started: float,
) -> dict[str, Any]:
    judged = [value for value in rewards if value is not None]
    return {
        "task": progress.place,
        "task_id": task.id,
        "kind": task.kind,
        "greedy/correct": greedy.record.score.value,
        "greedy/accuracy": progress.accuracy.success,
        "reward/mean": sum(judged) / len(judged) if judged else None,
        "reward/unjudged": len(rewards) - len(judged),
        "group/skipped": progress.skipped,
        "rollout/stop": dict(Counter(rollout.record.stop_reason for rollout in (greedy, *group))),
        "train/steps": learner.steps,
        "train/bad_steps": learner.bad_steps,
        "time/play_s": played_s,
        "time/update_s": time.perf_counter() - started - played_s,
        **metrics,
    }


def _shown(
    progress: Progress, total: int, rewards: Sequence[float | None], metrics: dict[str, float], skipped: Counter[str]
) -> str:
    values = " ".join("?" if value is None else f"{value:+.1f}" for value in rewards)
    what = f"loss {metrics['policy/loss']:+.4f}" if metrics else "no spread, no update"
    return (
        f"task {progress.place}/{total}  greedy accuracy {progress.accuracy}  rewards {values}  {what}  "
        f"skipped groups {skipped.total()}"
    )
