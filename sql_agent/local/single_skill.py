"""Trains single-skill REINFORCE: each episode draws a skill, then a task of it; one adapter learns all skills.

One update plays `grad_accum` episodes side by side, because the policy does not change among them. Its loss is their
mean of -(reward - baseline) * sum of the sampled tokens' log-probs (Williams 1992: a sum over tokens, not a mean).
Episodes that could not be judged are left out of that mean and counted. Leaves out the settings.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dbbench_adapter import generator as plain
from dbbench_adapter.datatypes import Task
from dbbench_adapter.generate import Split
from dbbench_adapter.splits import draw_by_kind, split_by_table
from dbbench_adapter.sql_skills import SKILLS
from dbbench_adapter.tasks.single_skill import (
    SingleSkillTaskGenerator,
    by_skill,
    num_others,
    read_each_once,
    read_single_skill,
    skills_of,
    write_single_skill,
)
from sql_agent.credit.reinforce import take_baseline
from sql_agent.environments.dbbench import fingerprint_of
from sql_agent.local.datatypes import TrainerState
from sql_agent.local.presets import EVALUATED_TOGETHER, Group, Measure, Preset, describe_loss, success_rate
from sql_agent.rewards import RewardPreset
from sql_agent.settings.groups import SPLIT_SEED, DataConfig
from sql_agent.settings.single_skill import ExperimentConfig, TaskConfig
from sql_agent.source.datatypes import Rollout
from sql_agent.source.dynamic_sampling import credit_group, credit_groups
from sql_agent.trained_on import TrainedOn, read_trained_on, source_of, trained_further

HELD_OUT_SEED = 1
"""The seed of held-out tasks, fixed so that runs with different seeds are compared on the same tasks."""


def draws(cfg: TaskConfig, *, seed: int) -> SingleSkillTaskGenerator:
    """An endless stream of training tasks; the same seed gives the same tasks.

    Raises:
        TaskFileError: `data` is missing or has no known form.
        ValueError: a requested skill has no tasks, or those of `data` cannot be split.
    """
    if cfg.data:
        return SingleSkillTaskGenerator.from_tasks(file_split(cfg)[0], seed=seed, weights=cfg.skills)
    if cfg.generator == "synthesis":
        return _synthesised(cfg.skills, "train", seed)
    return SingleSkillTaskGenerator(_plain_sources("train", seed), seed=seed, weights=cfg.skills)


def held_out_tasks(cfg: TaskConfig, per_skill: int) -> dict[str, list[Task]]:
    """`per_skill` held-out tasks of each trained skill, evenly over their kinds; fewer if the file has fewer.

    Raises:
        TaskFileError: see `draws`.
        ValueError: a skill has no held-out task.
    """
    skills = trained_skills(cfg)
    if cfg.held_out_data or cfg.data:
        found = read_single_skill(cfg.held_out_data) if cfg.held_out_data else file_split(cfg)[1]
        if missing := [skill for skill in skills if not found.get(skill)]:
            where = cfg.held_out_data or f"the held-out part of {cfg.data}"
            raise ValueError(
                f"{where} has no tasks of {', '.join(missing)}; give a larger file as task.held_out_data, or name the "
                "skills to train in task.skills"
            )
        return {skill: draw_by_kind(found[skill], per_skill, HELD_OUT_SEED) for skill in skills}
    if cfg.generator == "plain":
        sources = _plain_sources("held_out", HELD_OUT_SEED)
    else:
        sources = {skill: _synthesised({skill: 1.0}, "held_out", HELD_OUT_SEED) for skill in skills}
    return {skill: list(itertools.islice(sources[skill], per_skill)) for skill in skills}


def file_split(cfg: TaskConfig) -> tuple[dict[str, list[Task]], dict[str, list[Task]]]:
    """The tasks of `data` by skill: those to train on, and held-out ones.

    What `held_out_data` holds is never trained on; without it a share of the tables is held out, as in every command.

    Raises:
        TaskFileError: a file is missing or has no known form.
        ValueError: `data` cannot be split.
    """
    assert cfg.data is not None
    if cfg.held_out_data:
        held_out = read_each_once(cfg.held_out_data)
    else:
        _, held_out = split_by_table(read_each_once(cfg.data), DataConfig().held_out_fraction, SPLIT_SEED)
    held_out_prints = set(map(fingerprint_of, held_out))
    parts: tuple[dict[str, list[Task]], dict[str, list[Task]]] = {}, {}
    for skill, tasks in read_single_skill(cfg.data).items():
        for task in tasks:
            parts[fingerprint_of(task) in held_out_prints].setdefault(skill, []).append(task)
    if not parts[0]:
        raise ValueError(
            f"all tasks of {cfg.data} are held out too, in {cfg.held_out_data}, so nothing is left to train on; name "
            "other held-out tasks as task.held_out_data"
        )
    return parts


def each_once(by_skill: Mapping[str, Sequence[Task]]) -> list[Task]:
    """All tasks; a task may stand under several skills."""
    return [*{task.id: task for tasks in by_skill.values() for task in tasks}.values()]


def trained_skills(cfg: TaskConfig) -> list[str]:
    if cfg.skills:
        return list(cfg.skills)
    if cfg.data:
        return list(file_split(cfg)[0])
    return list(SKILLS if cfg.generator == "synthesis" else _plain_sources("train", 0))


def _synthesised(weights: Mapping[str, float] | None, split: Split, seed: int) -> SingleSkillTaskGenerator:
    return SingleSkillTaskGenerator.from_generator(seed=seed, split=split, weights=weights)


def _plain_sources(split: Split, seed: int) -> dict[str, Iterator[Task]]:
    """For each skill of the plain kinds an endless stream of tasks that show it with the fewest others."""
    one_of_each_kind = plain.generate_tasks(len(plain.DRAFTS), seed=0)
    return {
        skill: _of_skill(skill, num_others(skill, skills_of(tasks[0])), split, seed * len(SKILLS) + SKILLS.index(skill))
        for skill, tasks in by_skill(one_of_each_kind).items()
        if tasks
    }


def _of_skill(skill: str, others: int, split: Split, seed: int) -> Iterator[Task]:
    for task in plain.task_stream(seed=seed, split=split):
        shown = skills_of(task)
        if skill in shown and num_others(skill, shown) == others:
            yield task


def write_generated(file: Path, count: int, split: Split) -> None:
    """Write a single-skill file of `count` generated tasks, rounded up to the same number of each skill."""
    each = -(-count // len(SKILLS))
    sources = {skill: _synthesised({skill: 1.0}, split, seed=0) for skill in SKILLS}
    write_single_skill(file, {skill: list(itertools.islice(source, each)) for skill, source in sources.items()})


OTHER_TASKS = (
    "Measure on tasks that it has not learnt: task.held_out_data=FILE; or training_callback.evaluate_every=0, which "
    "measures nothing"
)


class SingleSkill(Preset):
    """Plays one update per batch, and each of its tasks once.

    Raises:
        TaskFileError, ValueError: see `draws` and `held_out_tasks`.
    """

    unit = "updates"
    writes_epochs = whole_lines = False

    def __init__(self, cfg: ExperimentConfig) -> None:
        callback, self.experiment = cfg.training_callback, cfg
        self._stream, self._drawn = draws(cfg.task, seed=cfg.seed), 0
        self._by_skill = held_out_tasks(cfg.task, callback.evaluate_tasks_per_skill) if callback.evaluate_every else {}
        held_out = {task.id: task for tasks in self._by_skill.values() for task in tasks}
        self.values = RewardPreset(**dict(cfg.task.rewards))
        others = draws(cfg.task, seed=cfg.seed)  # their prompts say how long those of the endless stream are
        super().__init__(cfg.trained(), [next(others) for _ in range(100)], [*held_out.values()])
        self.num_batches = self.batches_per_epoch = callback.stop_after_episodes // self.cfg.batch_size
        self.batch_rows = min(self.batch_rows, EVALUATED_TOGETHER)

    def draw(self, batch: int) -> list[tuple[str, Any]]:
        """Draw the next tasks; tasks of earlier batches, which a resumed run has already played, are skipped."""
        size = self.cfg.batch_size
        drawn = [self._stream.draw() for _ in range((batch + 1) * size - self._drawn)]
        self._drawn = (batch + 1) * size
        return drawn[-size:]

    def credit(self, groups: Sequence[Group], means: dict[str, float]) -> dict[str, float]:
        training = self.experiment.training
        if training.baseline != "running_mean":
            credit_groups(groups, self.estimator)
            return means
        rollouts = [rollout for group in groups for rollout in group]
        skills, rewards = [rollout.drawn_for for rollout in rollouts], [rollout.reward for rollout in rollouts]
        advantages, means = take_baseline(skills, rewards, means, training.baseline_decay)
        for rollout, advantage in zip(rollouts, advantages, strict=True):
            credit_group([rollout], lambda _, own=advantage: [None if own is None else [own]])
        return means

    def metrics(self, groups: Sequence[Group], first: Sequence[Rollout], progress: TrainerState) -> dict[str, Any]:
        by_skill: dict[str, list[Rollout]] = {}
        for rollout in sorted((rollout for group in groups for rollout in group), key=lambda each: each.drawn_for):
            by_skill.setdefault(rollout.drawn_for, []).append(rollout)
        return {
            "update": progress.batches,
            "episodes": progress.batches * self.cfg.batch_size,
            "reward/unjudged": progress.unjudged,
            "success": asdict(success_rate([rollout for own in by_skill.values() for rollout in own])),
            "success/skill": {skill: asdict(success_rate(own)) for skill, own in by_skill.items()},
            "baseline/skill": progress.means,
        }

    def labels(self, rollout: Rollout, batches: int) -> dict[str, Any]:
        return {"update": batches, "skill": rollout.drawn_for}

    def describe(self, line: dict[str, Any], groups: Sequence[Group], progress: TrainerState) -> str:
        success = line["success"]
        mean = "none" if line["reward/mean"] is None else f"{line['reward/mean']:+.2f}"
        return (
            f"update {line['update']}  episodes {line['episodes']}/{self.num_batches * self.cfg.batch_size}  "
            f"correct {success['correct']} of {success['judged']}  reward {mean}  "
            f"{describe_loss(line, 'nothing judged')}  not judged so far {sum(progress.unjudged.values())}"
        )

    def evaluate(self, measure: Measure, batches: int) -> tuple[dict[str, Any], str]:
        """Play each held-out task once; it counts for every skill that lists it."""
        rollouts = {task.id: r for task, r in zip(self.held_out, measure(self.held_out), strict=True)}
        overall = success_rate([*rollouts.values()])
        line = {
            "update": batches,
            "episodes": batches * self.cfg.batch_size,
            "held_out": asdict(overall),
            "held_out/skill": {
                skill: asdict(success_rate([rollouts[task.id] for task in tasks]))
                for skill, tasks in self._by_skill.items()
            },
        }
        return line, f"held-out after {batches} updates: {overall}"

    def describe_done(self, progress: TrainerState) -> str:
        return f"{progress.batches * self.cfg.batch_size} episodes"


def trained_on(cfg: ExperimentConfig, held_out: Sequence[Task]) -> TrainedOn:
    """The record of the trained model; it lists the tasks of a file, but not those of an endless generator.

    Raises:
        ValueError: see `file_split`, and `read_trained_on`.
    """
    task, train = cfg.task, list[Task]()
    if task.data:
        train, held_out = map(each_once, file_split(task))
    source = source_of(
        "agentgrpo single-skill", DataConfig(train_file=task.data, val_file=task.held_out_data), train, held_out
    )
    if not task.data:
        source = source.model_copy(update={"learnt": cfg.training_callback.stop_after_episodes, "listed": False})
    learnt, rest = ([fingerprint_of(one) for one in tasks] for tasks in (train, held_out))
    before = read_trained_on(cfg.language_model.model_path)
    return trained_further(before, source, settings=cfg.trained().environment, learnt=learnt, held_out=rest)
