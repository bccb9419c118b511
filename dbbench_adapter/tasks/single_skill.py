"""Picks tasks that train one skill at a time, from any task file or from a generator.

A task trains a skill best when it shows few others. `select` is not counted as another skill, since nearly every task
shows it. Some skills cannot come alone: in our tasks LIMIT needs ORDER BY, and HAVING needs GROUP BY. This module does
not measure whether a model has a skill.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from agentgrpo.outputs import written
from agentgrpo.printed_commands import agentgrpo_command
from agentgrpo.row_files import iter_rows
from dbbench_adapter.datatypes import Task
from dbbench_adapter.generate import SKILL_COUNTS, Difficulty, Split, task_stream
from dbbench_adapter.generate.plans import has_room
from dbbench_adapter.sql_skills import SKILLS, NotOneStatementError, recognise_skills
from dbbench_adapter.tasks.load import TaskFileError, load_tasks


def by_skill(tasks: Iterable[Task], *, min_tasks: int = 1) -> dict[str, list[Task]]:
    """For each skill the tasks that show it with the fewest others, the purest first.

    Args:
        min_tasks: if fewer tasks share the fewest others, tasks with more others follow up to this number.
    Returns:
        An entry per skill in the order of `SKILLS`; it is shorter than `min_tasks`, or empty, if there are not enough
        tasks. A task may be listed under several skills.
    """
    shown = [(task, skills_of(task)) for task in tasks]
    return {skill: _purest(skill, shown, min_tasks) for skill in SKILLS}


def skills_of(task: Task) -> frozenset[str]:
    """The task's labels if the file has them, else the skills of its reference statement, if it can be read."""
    if task.skills:
        return frozenset(task.skills)
    try:
        return frozenset(recognise_skills(task.gold.sql)) if task.gold.sql else frozenset()
    except NotOneStatementError:
        return frozenset()


def num_others(skill: str, shown: frozenset[str]) -> int:
    """Count the skills that a task shows beside this one; `select` is not counted."""
    return len(shown - {skill, "select"})


def _purest(skill: str, shown: Sequence[tuple[Task, frozenset[str]]], min_tasks: int) -> list[Task]:
    ranked = [(num_others(skill, skills), task) for task, skills in shown if skill in skills]
    ranked.sort(key=lambda pair: pair[0])  # sorting is stable, so tasks keep the file order within a count
    return [task for place, (others, task) in enumerate(ranked) if others == ranked[0][0] or place < min_tasks]


def write_single_skill(path: Path, tasks_by_skill: Mapping[str, Sequence[Task]]) -> None:
    """Write a JSON object from skill to `Task.to_dict()` records; `read_single_skill` is the inverse."""
    records = {skill: [task.to_dict() for task in tasks] for skill, tasks in tasks_by_skill.items()}
    with written(path) as unfinished:
        unfinished.write_text(json.dumps(records, ensure_ascii=False) + "\n", "utf-8")


def read_single_skill(path: Path) -> dict[str, list[Task]]:
    """Tasks by skill, from a file of `write_single_skill` or from any task file (`by_skill` sorts it).

    Raises:
        TaskFileError: there is no such file, or its form is unknown.
    """
    records = _records_by_skill(path)
    if records is None:
        return {skill: tasks for skill, tasks in by_skill(load_tasks(path)).items() if tasks}
    try:
        return {skill: [Task.from_dict(record) for record in listed] for skill, listed in records.items()}
    except (ValueError, TypeError) as error:
        raise TaskFileError(
            f"{path}: a record is no task ({str(error)[:200]}); make the file again with "
            f"`{agentgrpo_command('tasks single-skill')}`"
        ) from None


def read_each_once(path: Path) -> list[Task]:
    """Every task of such a file once; in a single-skill file a task may stand under several skills.

    Raises:
        TaskFileError: see `read_single_skill`.
    """
    if _records_by_skill(path) is None:
        return load_tasks(path)
    return [*{task.id: task for tasks in read_single_skill(path).values() for task in tasks}.values()]


def _records_by_skill(path: Path) -> dict[str, list[object]] | None:
    try:
        rows = list(iter_rows(path))
    except ValueError:
        return None
    whole = rows[0].value if len(rows) == 1 else None
    return whole if isinstance(whole, dict) and whole and set(whole) <= set(SKILLS) else None


class SingleSkillTaskGenerator:
    """Draws a skill by weight, then a task of that skill, without end.

        tasks = SingleSkillTaskGenerator.from_file(Path("data/single_skill_tasks.json"), seed=0)
        skill, task = tasks.draw()

    Iteration yields the tasks alone. The same arguments give the same draws.
    """

    def __init__(
        self, sources: Mapping[str, Iterator[Task]], *, seed: int, weights: Mapping[str, float] | None = None
    ) -> None:
        """
        Args:
            sources: an endless iterator of tasks for each skill; `from_file` and `from_generator` make them.
            weights: the chance of each skill relative to the others, each > 0; None gives all skills the same.
        Raises:
            ValueError: there is no source, a weight is not positive and finite, or a skill with a weight has no source.
        """
        chances = dict.fromkeys(sources, 1.0) if weights is None else dict(weights)
        if not chances or any(not 0 < chance < math.inf for chance in chances.values()):
            raise ValueError(f"skill weights are {chances}, expected one or more, each above 0 and finite")
        if missing := [skill for skill in chances if skill not in sources]:
            raise ValueError(f"no tasks of skill {missing[0]!r}; choose among {', '.join(sources)}")
        self._sources = sources
        self._skills, self._chances = list(chances), list(chances.values())
        self._rng = random.Random(f"skills {seed}")

    @classmethod
    def from_file(
        cls, path: Path, *, seed: int, weights: Mapping[str, float] | None = None
    ) -> SingleSkillTaskGenerator:
        """Draw from a single_skill_tasks.json or any task file; all tasks of a skill come once before one is repeated.

        Raises:
            TaskFileError: see `read_single_skill`.
            ValueError: see the constructor.
        """
        return cls.from_tasks(read_single_skill(path), seed=seed, weights=weights)

    @classmethod
    def from_tasks(
        cls, by_skill: Mapping[str, Sequence[Task]], *, seed: int, weights: Mapping[str, float] | None = None
    ) -> SingleSkillTaskGenerator:
        """Draw from tasks by skill, as `from_file` does.

        Raises:
            ValueError: see the constructor.
        """
        sources = {skill: _passes(tasks, f"{seed} {skill}") for skill, tasks in by_skill.items()}
        return cls(sources, seed=seed, weights=weights)

    @classmethod
    def from_generator(
        cls,
        *,
        seed: int,
        split: Split = "train",
        weights: Mapping[str, float] | None = None,
    ) -> SingleSkillTaskGenerator:
        """Draw from new tasks of the lowest difficulty that has room for their skill, so that they show few others; no
        statement comes twice.

        Raises:
            ValueError: the split or difficulty is unknown, or the difficulty has no room for a skill; or see the
                constructor.
        """
        known = SKILLS if weights is None else tuple(skill for skill in SKILLS if skill in weights)
        seen: set[str | None] = set()
        sources: dict[str, Iterator[Task]] = {}
        for skill in known:
            own_seed = seed * len(SKILLS) + SKILLS.index(skill)  # so ids differ from skill to skill
            level: Difficulty = next(lowest for lowest in SKILL_COUNTS if has_room(lowest, skill))
            stream = task_stream(seed=own_seed, split=split, difficulty=level, skills={skill: 1.0})
            sources[skill] = _new(stream, seen)
        return cls(sources, seed=seed, weights=weights)

    def draw(self) -> tuple[str, Task]:
        skill = self._rng.choices(self._skills, self._chances)[0]
        return skill, next(self._sources[skill])

    def __iter__(self) -> Iterator[Task]:
        return self

    def __next__(self) -> Task:
        return self.draw()[1]


def _passes(tasks: Sequence[Task], seed: str) -> Iterator[Task]:
    rng = random.Random(seed)
    while True:
        yield from rng.sample(tasks, len(tasks))


def _new(stream: Iterator[Task], seen: set[str | None]) -> Iterator[Task]:
    for task in stream:
        if task.gold.sql not in seen:
            seen.add(task.gold.sql)
            yield task
