"""Replay the references of task files: `agentgrpo tasks replay FILE...`.

Two scripted agents play every task under each protocol and on each backend. Both run the reference statement; then one
answers with the gold, and the other with the rows that it got. The protocol's own judge and `strict` count how many
they solve. The first number is the most that a file allows, the second shows the quality of its references. A change
needs no answer. `agentgrpo evaluate` measures models, and
`agentgrpo tasks validate` finds faulty rows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import track

from agentgrpo.flags import Parser
from agentgrpo.passwords import hidden
from dbbench_adapter.datatypes import Gold, Task
from dbbench_adapter.dialect.sql_types import to_cell
from dbbench_adapter.engines import Backend, BackendUnavailable, TableError, open_backend
from dbbench_adapter.protocols import PROTOCOLS, ProtocolName, open_episode, solution
from dbbench_adapter.tasks.load import load_tasks

# The knowledge of an agent about a task: the reference that it runs and the answer that it gives.
Known = Callable[[Task], Gold]


def misses(
    tasks: Sequence[Task], backend: Backend, protocol: ProtocolName, known: Known
) -> tuple[list[str], list[str]]:
    """The tasks that an agent with this knowledge fails, under the protocol's own judge and under `strict`."""
    own: list[str] = []
    strict: list[str] = []
    for task in tasks:
        try:
            with open_episode(task, backend, protocol) as episode:
                for message in solution(replace(task, gold=known(task)), protocol):
                    list(episode.answer(message))
                values = episode.judge(PROTOCOLS[protocol].judge).value, episode.judge("strict").value
        except TableError:
            values = None, None
        own += [task.id] * (values[0] != 1.0)
        strict += [task.id] * (values[1] != 1.0)
    return own, strict


def reads_rows(backend: Backend) -> Known:
    """An agent that answers with the rows of its reference, or not at all if the reference fails."""

    def known(task: Task) -> Gold:
        if task.changes_state or task.gold.sql is None:
            return replace(task.gold, answers=None, rows=())
        try:
            with backend.open(task.tables, typed=task.typed) as database:
                rows = tuple(tuple(map(to_cell, row)) for row in database.run(task.gold.sql).rows or ())
        except TableError:
            rows = ()
        if task.gold.rows is None:  # labels are texts
            return Gold(answers=tuple(str(row[0]) if len(row) == 1 else repr(row) for row in rows), sql=task.gold.sql)
        return Gold(rows=rows, sql=task.gold.sql)

    return known


def main() -> None:
    parser = Parser(prog="agentgrpo tasks replay", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", help="task files of any form")
    parser.add_argument("--backends", default="sqlite,mariadb", help="databases to replay on; default sqlite,mariadb")
    args = parser.parse_args()
    print("| file | backend | protocol | tasks | with the gold: own judge, strict | from the rows: own judge, strict |")
    print("| --- | --- | --- | --- | --- | --- |")
    notes: list[str] = []
    try:
        for spec in map(hidden, args.backends.split(",")):
            with open_backend(spec) as backend:
                for path in args.files:
                    notes += _replay(path, spec, backend)
    except (BackendUnavailable, ValueError) as failure:
        raise SystemExit(str(failure)) from failure
    print("\nnot solved with the gold, under the protocol's own judge:", *(notes or ["none"]), sep="\n")


def _replay(path: Path, spec: str, backend: Backend) -> list[str]:
    tasks, notes = load_tasks(path), []
    for protocol in track(PROTOCOLS, f"{path.name} on {spec}", console=Console(file=sys.stderr), transient=True):
        counts: list[str] = []
        for known in (lambda task: task.gold, reads_rows(backend)):
            own, strict = misses(tasks, backend, protocol, known)
            counts.append(f"{len(tasks) - len(own)}, {len(tasks) - len(strict)}")
            if own and len(counts) == 1:
                notes.append(f"- {path.name}, {spec}, {protocol}: {', '.join(own)}")
        print("|", " | ".join([path.name, spec, protocol, str(len(tasks)), *counts]), "|", flush=True)
    return notes
