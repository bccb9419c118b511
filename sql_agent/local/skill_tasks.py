"""Provides the tasks of a single-skill run, for training and for evaluation."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

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
from sql_agent.environments.dbbench import fingerprint_of
from sql_agent.settings.groups import SPLIT_SEED, DataConfig
from sql_agent.settings.single_skill import TaskConfig

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
