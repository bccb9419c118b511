"""Yields tasks without end: draws a plan, a table and a draft, runs the reference, and keeps what makes a good task.

A reference runs on the SQLite backend, which answers as MySQL does; a good task's answer is the same on MySQL and
MariaDB. A draft is refused and drawn again if it gives no row, an answer longer than the part that an agent sees, a
change that changes nothing, or a question or statement that came before.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from dbbench_adapter.datatypes import Gold, Rows, Table, Task
from dbbench_adapter.dialect.sql_types import to_cell
from dbbench_adapter.engines import open_backend
from dbbench_adapter.engines.base import Backend, Database
from dbbench_adapter.generate.changes import draw_change
from dbbench_adapter.generate.plans import (
    FEWEST_SKILLS,
    LIFELONG_SHARES,
    MOST_SKILLS,
    SKILL_COUNTS,
    Difficulty,
    NoDraft,
    draw_plan,
    has_room,
)
from dbbench_adapter.generate.queries import QueryDraft, draw_query
from dbbench_adapter.generate.themes import THEMES, Scene, Split, draw_scene
from dbbench_adapter.sql_skills import SKILLS, recognise_skills

NUM_ROWS: Mapping[Difficulty, tuple[int, int]] = {"easy": (8, 20), "medium": (20, 50), "hard": (20, 50)}
# The longest result, printed as a list of tuples, that DB-Bench shows an agent in full.
MAX_SHOWN_CHARS = 800
TASKS_PER_TABLE = 3
MAX_REFUSALS = 500


class ExhaustedError(RuntimeError):
    """Many draws gave no new task: the arguments allow too few different ones."""


def generate(
    n: int,
    *,
    seed: int,
    split: Split = "train",
    difficulty: Difficulty | None = None,
    skills: Mapping[str, float] | None = None,
    refused: Counter[str] | None = None,
) -> list[Task]:
    """
    Raises:
        ValueError: `n` is below 1, or `task_stream` refuses an argument.
        ExhaustedError: there are fewer than `n` different tasks.
    """
    if n < 1:
        raise ValueError(f"n is {n}, expected 1 or more")
    stream = task_stream(seed=seed, split=split, difficulty=difficulty, skills=skills, refused=refused)
    return list(itertools.islice(stream, n))


def task_stream(
    *,
    seed: int,
    split: Split = "train",
    difficulty: Difficulty | None = None,
    skills: Mapping[str, float] | None = None,
    refused: Counter[str] | None = None,
) -> Iterator[Task]:
    """Yield tasks without end, the same for the same arguments; no question and no statement is repeated.

    Args:
        split: `held_out` has subjects, and so table names, statements and questions, that `train` never has.
        difficulty: sets how many skills a task shows (`SKILL_COUNTS`) and how large its table is; None mixes the three
            as LifelongAgentBench does.
        skills: weight per skill; every task shows at least one of these, drawn by weight. None gives all 22 the same
            weight. In both cases a weight is divided by 1 + the number of tasks that show the skill already.
        refused: a counter, by reason, of the drafts that were drawn again.
    Raises:
        ValueError: a split, difficulty or skill is unknown, a weight is not positive, or the difficulty
            excludes a skill.
    """
    weights = _checked(split, difficulty, skills)
    return _stream(random.Random(f"{split} {seed}"), f"synthetic-{split}-{seed}", split, difficulty, weights, refused)


def _checked(split: str, difficulty: Difficulty | None, skills: Mapping[str, float] | None) -> Mapping[str, float]:
    if split not in THEMES:
        raise ValueError(f"unknown split {split!r}, expected one of {', '.join(THEMES)}")
    if difficulty is not None and difficulty not in SKILL_COUNTS:
        raise ValueError(f"unknown difficulty {difficulty!r}, expected one of {', '.join(SKILL_COUNTS)}")
    weights = dict.fromkeys(SKILLS, 1.0) if skills is None else dict(skills)
    if unknown := [skill for skill in weights if skill not in FEWEST_SKILLS]:
        raise ValueError(f"unknown skill {unknown[0]!r}, expected some of {', '.join(SKILLS)}")
    if not weights or any(not weight > 0 for weight in weights.values()):
        raise ValueError(f"skill weights are {weights}, expected one or more, each above 0")
    unfit = [skill for skill in skills or () if difficulty is not None and not has_room(difficulty, skill)]
    if difficulty is not None and unfit:
        raise ValueError(
            f"a task with {unfit[0]} shows {FEWEST_SKILLS[unfit[0]]} to {MOST_SKILLS[unfit[0]]} skills, "
            f"{difficulty} ones show {' to '.join(map(str, SKILL_COUNTS[difficulty]))}; take another difficulty"
        )
    return weights


def _stream(
    rng: random.Random,
    name: str,
    split: Split,
    difficulty: Difficulty | None,
    weights: Mapping[str, float],
    refused: Counter[str] | None,
) -> Iterator[Task]:
    refused = Counter() if refused is None else refused
    counts: Counter[str] = Counter()
    seen: set[str] = set()
    scenes: dict[Difficulty, tuple[Scene, int]] = {}
    with open_backend("sqlite") as backend:
        for index in itertools.count():
            level = difficulty or _drawn_difficulty(rng, weights)
            for _ in range(MAX_REFUSALS):
                scene, uses = scenes.get(level, (None, TASKS_PER_TABLE))
                if scene is None or uses >= TASKS_PER_TABLE:
                    scene, uses = draw_scene(rng, THEMES[split], rng.randint(*NUM_ROWS[level])), 0
                scenes[level] = scene, uses + 1
                try:
                    plan = draw_plan(rng, weights, counts, level)
                    draft = draw_query(rng, scene, plan) if plan.verb == "select" else draw_change(rng, scene, plan)
                    shown = recognise_skills(draft.sql)
                    if shown != plan.skills():
                        raise NoDraft("other_skills")
                    if {draft.sql, f"{scene.table.name}: {draft.question}"} & seen:
                        raise NoDraft("repeated")
                    gold = checked_gold(backend, scene.table, draft)
                except NoDraft as reason:
                    refused[str(reason)] += 1
                    continue
                break
            else:
                raise ExhaustedError(
                    f"no new task in {MAX_REFUSALS} draws after {index} tasks (seed {name}); ask for fewer tasks, "
                    f"more skills or another difficulty; refused so far: {dict(refused)}"
                )
            seen |= {draft.sql, f"{scene.table.name}: {draft.question}"}
            counts.update(shown)
            yield Task(
                id=f"{name}-{index}",
                question=draft.question,
                kind=draft.kind,
                tables=(scene.table,),
                gold=gold,
                table_note=scene.table.note,
                skills=shown,
                source="generated",
                typed=True,
                ordered=draft.ordered,
            )


def _drawn_difficulty(rng: random.Random, weights: Mapping[str, float]) -> Difficulty:
    shares: dict[Difficulty, float] = {
        level: share for level, share in LIFELONG_SHARES.items() if any(has_room(level, skill) for skill in weights)
    }
    return rng.choices(list(shares), list(shares.values()))[0]


def checked_gold(backend: Backend, table: Table, draft: QueryDraft) -> Gold:
    """Run the reference on a fresh copy of the table and read the gold.

    Raises:
        NoDraft: the result makes no good task.
        RuntimeError: the reference does not run, which is a fault of this package.
    """
    with backend.open((table,), typed=True) as database:
        before = database.table_hash((table,)) if draft.kind != "SELECT" else None
        result = database.run(draft.sql)
        if result.error is not None:
            raise RuntimeError(f"the reference {draft.sql!r} does not run: {result.error}")
        if draft.kind == "SELECT":
            return Gold(rows=_checked_rows(result.rows or ()), sql=draft.sql + ";")
        return Gold(sql=draft.sql + ";", table_hash=_checked_hash(database, table, before))


def _checked_rows(found: Sequence[Sequence[object]]) -> Rows:
    rows: Rows = tuple(tuple(to_cell(cell) for cell in row) for row in found)
    if not rows or any(cell is None for row in rows for cell in row):
        raise NoDraft("empty_answer")
    if len(str(list(found))) > MAX_SHOWN_CHARS:
        raise NoDraft("long_answer")
    return rows


def _checked_hash(database: Database, table: Table, before: str | None) -> str:
    after = database.table_hash((table,))
    if after is None or after in (before, "None"):
        raise NoDraft("no_change" if after == before else "empty_table")
    return after
