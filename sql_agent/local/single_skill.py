"""Single-skill REINFORCE: each reset draws a skill, then a task of it; one adapter learns them all.

One update is `grad_accum` episodes, played side by side since the policy does not change among them, and the gradient
of their mean of -(reward - baseline) * sum of the sampled tokens' log-probs (Williams 1992: a sum over tokens, no
mean). What could not be judged is left out of that mean and counted. Leaves out where tasks and settings come from.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from dbbench_adapter.datatypes import Task
from dbbench_adapter.tasks.single_skill import SingleSkillTaskGenerator
from sql_agent.local.config import LossConfig
from sql_agent.local.datatypes import GREEDY, DivergedError, LocalRollout, Sampling, UnjudgedError
from sql_agent.local.experiment import ExperimentConfig
from sql_agent.local.learner import Learner
from sql_agent.local.policy import LocalPolicy
from sql_agent.local.rollouts import Player
from sql_agent.local.run_folder import RunFolder
from sql_agent.rewards import reward
from sql_agent.success import Rate

LOSS = LossConfig(name="reinforce", aggregation="seq-mean-token-sum-norm", max_tokens=1)
"""Sums over tokens, means over episodes."""
FREE_ON_RESUME = ("training_callback", "output_dir")
MAX_UNJUDGED = 3


class SessionFolder(RunFolder):
    """A run's folder with sessions/, logs/ and checkpoints/."""

    SETTINGS, METRICS, TRAJECTORIES = "logs/config.json", "logs/metrics.jsonl", "sessions/episodes.jsonl"

    def __init__(self, path: Path, config: BaseModel, *, resumed: bool) -> None:
        super().__init__(path, config, resumed=resumed, free=FREE_ON_RESUME)


@dataclass
class Progress:
    """Where a run is; JSON values."""

    updates: int = 0
    """Batches of episodes; `Learner.steps` counts those that moved the adapter."""
    episodes: int = 0
    """Also the place in the order of tasks: so many were drawn."""
    means: dict[str, float] = field(default_factory=dict)
    """Running mean of the reward by skill."""
    unjudged: dict[str, int] = field(default_factory=dict)
    """Episodes left out, by reason."""
    unjudged_in_a_row: int = 0
    """Updates of which no episode was judged."""


# Training -------------------------------------------------------------------------------------------------------------


def take_baseline(
    skills: Sequence[str], rewards: Sequence[float | None], means: Mapping[str, float], decay: float
) -> tuple[list[float | None], dict[str, float]]:
    """Take off each reward its skill's running mean as it was before that episode.

    Args:
        skills: of the episodes, in the order in which they were drawn.
        rewards: one per episode; None for one that could not be judged, which changes no mean.
        means: by skill; a skill's first reward is its first mean, and nothing is taken off it.
        decay: weight of the old mean against the new reward, in [0, 1).
    Returns:
        One advantage per episode, None where the reward is, and the means after the last one.
    """
    after, advantages = dict(means), list[float | None]()
    for skill, value in zip(skills, rewards, strict=True):
        if value is None:
            advantages.append(None)
            continue
        advantages.append(value - after.get(skill, 0.0))
        after[skill] = decay * after[skill] + (1 - decay) * value if skill in after else value
    return advantages, after


def train(
    policy: LocalPolicy,
    learner: Learner,
    player: Player,
    tasks: SingleSkillTaskGenerator,
    held_out: Mapping[str, Sequence[Task]],
    cfg: ExperimentConfig,
    folder: RunFolder,
    progress: Progress,
    say: Callable[[str], None],
) -> None:
    """Play and learn from `progress` on until so many episodes are done; `progress` is kept up to date.

    Args:
        tasks: fresh; those that `progress` has behind it are drawn again and passed over.
        held_out: by skill; empty where nothing is evaluated.
    Raises:
        DivergedError: see `Learner.learn`.
        UnjudgedError: no episode of three updates in a row could be judged.
    """
    for _ in range(progress.episodes):
        tasks.draw()
    callback = cfg.training_callback
    if held_out and progress.updates == 0:
        _log_evaluation(player, held_out, folder, progress, say)
    while progress.episodes < callback.stop_after_episodes:
        try:
            _update(learner, player, tasks, cfg, folder, progress, say)
        except DivergedError:
            folder.save(progress.updates, policy, learner, asdict(progress))
            raise
        last = progress.episodes >= callback.stop_after_episodes
        if held_out and (last or progress.updates % callback.evaluate_every == 0):
            _log_evaluation(player, held_out, folder, progress, say)
        if last or progress.updates % callback.save_every == 0:
            folder.save(progress.updates, policy, learner, asdict(progress))


def _update(
    learner: Learner,
    player: Player,
    tasks: SingleSkillTaskGenerator,
    cfg: ExperimentConfig,
    folder: RunFolder,
    progress: Progress,
    say: Callable[[str], None],
) -> None:
    started = time.perf_counter()
    drawn = [tasks.draw() for _ in range(cfg.training.grad_accum)]
    skills = [skill for skill, _ in drawn]
    sampling = Sampling(cfg.agent.temperature, cfg.agent.top_p)
    rollouts = player.play([task for _, task in drawn], [sampling] * len(drawn))
    played_s = time.perf_counter() - started
    rewards = [reward(rollout.record, cfg.task.rewards.preset).value for rollout in rollouts]
    advantages, means = rewards, progress.means
    if cfg.training.baseline == "running_mean":
        advantages, means = take_baseline(skills, rewards, progress.means, cfg.training.baseline_decay)
    learnt = [(r.trajectory, a) for r, a in zip(rollouts, advantages, strict=True) if a is not None and r.trajectory]
    metrics: dict[str, float] = {}
    if learnt:
        metrics = learner.learn(
            [t for t, _ in learnt], [a for _, a in learnt], temperature=sampling.temperature
        ).metrics
    progress.means = means
    progress.updates += 1
    progress.episodes += len(drawn)
    _count_unjudged(rollouts, progress)
    for skill, rollout, value, advantage in zip(skills, rollouts, rewards, advantages, strict=True):
        episode = {"update": progress.updates, "skill": skill, "reward": value, "advantage": advantage}
        folder.keep(episode | rollout.record.to_dict())
    line = _line(skills, rollouts, rewards, metrics, learner, progress)
    folder.log(line | {"time/play_s": played_s, "time/update_s": time.perf_counter() - started - played_s})
    say(_shown(line, cfg.training_callback.stop_after_episodes))
    if progress.unjudged_in_a_row >= MAX_UNJUDGED:
        lost = rollouts[0].record
        raise UnjudgedError(
            f"no episode of the last {MAX_UNJUDGED} updates could be judged ({lost.score.reason}: "
            f"{lost.error or lost.stop_reason}); look at the database, then go on with --resume {folder.path}"
        )


def _count_unjudged(rollouts: Sequence[LocalRollout], progress: Progress) -> None:
    lost = [rollout.record.score.reason for rollout in rollouts if rollout.record.score.value is None]
    progress.unjudged = dict(Counter(progress.unjudged) + Counter(lost))
    progress.unjudged_in_a_row = progress.unjudged_in_a_row + 1 if len(lost) == len(rollouts) else 0


def _line(
    skills: Sequence[str],
    rollouts: Sequence[LocalRollout],
    rewards: Sequence[float | None],
    metrics: Mapping[str, float],
    learner: Learner,
    progress: Progress,
) -> dict[str, Any]:
    judged = [value for value in rewards if value is not None]
    by_name = {name: [r for s, r in zip(skills, rollouts, strict=True) if s == name] for name in sorted(set(skills))}
    return {
        "update": progress.updates,
        "episodes": progress.episodes,
        "reward/mean": sum(judged) / len(judged) if judged else None,
        "reward/unjudged": progress.unjudged,
        "success": asdict(rate(rollouts)),
        "success/skill": {name: asdict(rate(own)) for name, own in by_name.items()},
        "baseline/skill": progress.means,
        "rollout/stop": dict(Counter(rollout.record.stop_reason for rollout in rollouts)),
        "train/steps": learner.steps,
        "train/bad_steps": learner.bad_steps,
        **metrics,
    }


def _shown(line: Mapping[str, Any], total: int) -> str:
    success = line["success"]
    loss = f"loss {line['policy/loss']:+.3f}" if "policy/loss" in line else "nothing judged, no update"
    mean = "none" if line["reward/mean"] is None else f"{line['reward/mean']:+.2f}"
    return (
        f"update {line['update']}  episodes {line['episodes']}/{total}  correct {success['correct']} of "
        f"{success['judged']}  reward {mean}  {loss}  not judged so far {sum(line['reward/unjudged'].values())}"
    )


# Evaluation -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evaluation:
    """Greedy success on held-out tasks."""

    overall: Rate
    """Each task once, whatever the number of skills it stands under."""
    by_skill: dict[str, Rate]


def rate(rollouts: Sequence[LocalRollout]) -> Rate:
    values = [rollout.record.score.value for rollout in rollouts]
    judged = [value for value in values if value is not None]
    return Rate(len(values), len(judged), sum(value == 1.0 for value in judged))


def evaluate(player: Player, held_out: Mapping[str, Sequence[Task]]) -> Evaluation:
    """Play every task greedily, once; the random generators are left as they were."""
    tasks = {task.id: task for listed in held_out.values() for task in listed}
    with torch.random.fork_rng():
        rollouts = dict(zip(tasks, player.play([*tasks.values()], [GREEDY] * len(tasks)), strict=True))
    own = {skill: rate([rollouts[task.id] for task in listed]) for skill, listed in held_out.items()}
    return Evaluation(rate([*rollouts.values()]), own)


def _log_evaluation(
    player: Player,
    held_out: Mapping[str, Sequence[Task]],
    folder: RunFolder,
    progress: Progress,
    say: Callable[[str], None],
) -> None:
    started = time.perf_counter()
    found = evaluate(player, held_out)
    folder.log(
        {
            "update": progress.updates,
            "episodes": progress.episodes,
            "held_out": asdict(found.overall),
            "held_out/skill": {skill: asdict(own) for skill, own in found.by_skill.items()},
            "time/evaluate_s": time.perf_counter() - started,
        }
    )
    say(f"held-out after {progress.updates} updates: {found.overall}")
