"""Compare the skills that a task file states with those that its reference statements show.

    agentgrpo tasks skills FILE

It prints precision and recall per skill. `dbbench_adapter.sql_skills` recognises the skills of one statement.
"""

from __future__ import annotations

if __name__ == "__main__":
    from agentgrpo.commands import run_module

    run_module("dbbench_adapter.skills")

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentgrpo.flags import Parser
from dbbench_adapter.datatypes import Task
from dbbench_adapter.sql_skills import SKILLS, NotOneStatementError, recognise_skills
from dbbench_adapter.tasks.load import TaskFileError, load_tasks


@dataclass(frozen=True)
class Agreement:
    skill: str
    labelled: int
    recognised: int
    both: int

    @property
    def precision(self) -> float | None:
        """The share of the recognised tasks that are labelled; None if the skill is never recognised."""
        return self.both / self.recognised if self.recognised else None

    @property
    def recall(self) -> float | None:
        """The share of the labelled tasks that are recognised; None if the skill is never labelled."""
        return self.both / self.labelled if self.labelled else None


def agreement(tasks: Iterable[Task]) -> list[Agreement]:
    """Compare `Task.skills` with the skills of the reference statement; one entry per skill.

    Raises:
        NotOneStatementError: a task has no reference statement, or one that cannot be read.
    """
    pairs = [(set(task.skills), set(recognise_skills(task.gold.sql or ""))) for task in tasks]
    return [
        Agreement(
            skill,
            sum(skill in labelled for labelled, _ in pairs),
            sum(skill in recognised for _, recognised in pairs),
            sum(skill in labelled & recognised for labelled, recognised in pairs),
        )
        for skill in SKILLS
    ]


def _table_lines(agreements: Iterable[Agreement]) -> Iterator[str]:
    yield f"{'skill':46} {'labelled':>8} {'recognised':>10} {'precision':>9} {'recall':>6}"
    for a in agreements:
        precision, recall = ("-" if share is None else f"{share:.3f}" for share in (a.precision, a.recall))
        yield f"{a.skill:46} {a.labelled:8} {a.recognised:10} {precision:>9} {recall:>6}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="agentgrpo tasks skills", description="Compare labelled with recognised skills.")
    parser.add_argument("file", type=Path, help="a task file with skills, e.g. LifelongAgentBench's entry_dict.json")
    path = parser.parse_args(argv).file
    try:
        tasks = load_tasks(path)
        labelled = [task for task in tasks if task.skills]
        if not labelled:
            raise TaskFileError(f"{path}: no task has skills; AgentBench files have none, give an entry_dict.json")
        found = agreement(labelled)
    except (TaskFileError, NotOneStatementError) as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join([*_table_lines(found), f"{len(labelled)} of {len(tasks)} tasks have skills"]))
    return 0
