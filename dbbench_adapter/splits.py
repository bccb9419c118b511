"""Split a set of tasks into parts that share no table; the same inputs, seed and fractions give the same bytes.

    agentgrpo tasks split --input FILE... --output DIR --fractions 0.8,0.1,0.1 --seed 0

The command writes train.jsonl, validation.jsonl, test.jsonl and manifest.json (inputs and parts with their SHA-256,
counts, seed, fractions, versions). Tasks over the same tables stay together, and every kind of task is in every part if
its tables allow it. The numbers of kinds or skills are not balanced; the manifest lists them.
"""

from __future__ import annotations

if __name__ == "__main__":
    from agentgrpo.commands import run_module

    run_module("dbbench_adapter.splits")

import argparse
import itertools
import json
import platform
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TypeVar

from agentgrpo.commands import failed
from agentgrpo.flags import Parser
from agentgrpo.outputs import check_output, written
from agentgrpo.signed_checkpoints import file_sha256
from dbbench_adapter.datatypes import Task
from dbbench_adapter.tasks.load import load_tasks, refuse_repeated_ids, task_file, write_tasks

PARTS = ("train", "validation", "test")
MANIFEST = "manifest.json"
MANIFEST_VERSION = 1


class _OfKind(Protocol):
    @property
    def kind(self) -> str: ...


T = TypeVar("T", bound=_OfKind)


def draw_by_kind(tasks: Sequence[T], limit: int | None, seed: int) -> list[T]:
    """Draw at most `limit` tasks, the same number of every kind, in the order given; a file may be sorted by kind.

    A kind that has fewer than its share gives all its tasks, and the others share the rest. If the numbers cannot be
    equal, the kinds that come first in `tasks` have one more. So every kind has the same weight in the success rate of
    the draw, whatever its share of `tasks` is. A larger limit draws all tasks that a smaller one draws.

    Args:
        limit: 1 or more; None draws all tasks.
        seed: the same seed, tasks and limit give the same draw.
    """
    if limit is None or limit >= len(tasks):
        return list(tasks)
    positions: dict[str, list[int]] = {}
    for position, task in enumerate(tasks):
        positions.setdefault(task.kind, []).append(position)
    rng = random.Random(seed)
    for of_kind in positions.values():
        rng.shuffle(of_kind)
    turns = itertools.zip_longest(*positions.values())  # each turn has one task of every kind that still has tasks
    drawn = [position for turn in turns for position in turn if position is not None][:limit]
    return [tasks[position] for position in sorted(drawn)]


def count_kinds(tasks: Iterable[_OfKind]) -> dict[str, int]:
    """Count the tasks of each kind; kinds are in the order of their first task."""
    return dict(Counter(task.kind for task in tasks))


def split_by_table(tasks: Sequence[Task], held_out_fraction: float, seed: int) -> tuple[list[Task], list[Task]]:
    """Split into (train, held out) so that no table name is in both; each part keeps the order given.

    Args:
        held_out_fraction: share of the table groups to hold out, in [0, 1); each part gets at least one group, unless
            the share is 0, which holds nothing out.
        seed: the same seed, tasks and fraction give the same split.
    Raises:
        ValueError: the fraction is outside [0, 1), or all tasks are connected by shared tables.
    """
    if held_out_fraction == 0:
        return list(tasks), []
    if not 0 < held_out_fraction < 1:
        raise ValueError(f"held_out_fraction is {held_out_fraction}, expected a number between 0 and 1")
    train, held_out = split_tasks(tasks, (1 - held_out_fraction, held_out_fraction), seed)
    return train, held_out


def split_tasks(tasks: Sequence[Task], fractions: Sequence[float], seed: int) -> list[list[Task]]:
    """One part per fraction, with no table name in two of them; each part keeps the order given.

    The seed draws the groups of tables. If a part has no task of a kind, one of its groups is exchanged for a group
    with such a task, unless a part would lose a kind by that.

    Args:
        fractions: shares of the table groups, each in (0, 1), adding up to 1; every part gets at least one group.
        seed: the same seed, tasks and fractions give the same parts.
    Raises:
        ValueError: the fractions are not shares that add up to 1, or there are fewer groups of tables than parts.
    """
    if len(fractions) < 2 or not all(0 < share < 1 for share in fractions) or abs(sum(fractions) - 1) > 1e-9:
        raise ValueError(
            f"fractions are {list(fractions)}, expected two or more numbers between 0 and 1 that add up to 1"
        )
    groups = table_groups(tasks)
    names = sorted(set(groups))
    if len(names) < len(fractions):
        raise ValueError(
            f"{len(tasks)} tasks over {len(names)} group(s) of tables cannot be split by table into {len(fractions)} "
            "parts; give a held-out file instead"
        )
    random.Random(seed).shuffle(names)
    part_of: dict[str, int] = {}
    for part in range(len(fractions) - 1, 0, -1):  # the last parts are drawn first, and the first part gets the rest
        count = max(round(fractions[part] * len(names)), 1)
        drawn = [name for name in names if name not in part_of][: min(count, len(names) - len(part_of) - part)]
        part_of |= dict.fromkeys(drawn, part)
    kinds_of: dict[str, set[str]] = {name: set() for name in names}
    for task, group in zip(tasks, groups, strict=True):
        kinds_of[group].add(task.kind)
    part_of = _with_every_kind({name: part_of.get(name, 0) for name in names}, kinds_of, len(fractions))
    parts: list[list[Task]] = [[] for _ in fractions]
    for task, group in zip(tasks, groups, strict=True):
        parts[part_of[group]].append(task)
    return parts


def _with_every_kind(part_of: Mapping[str, int], kinds_of: Mapping[str, set[str]], parts: int) -> dict[str, int]:
    """Exchange groups so that parts get the kinds they lack, as far as possible; return the part of each group.

    Args:
        part_of: the part of each group before; groups are tried in this order.
    """
    part_of = dict(part_of)
    num_groups = [Counter[str]() for _ in range(parts)]  # for each part, the number of its groups by kind
    for name, part in part_of.items():
        num_groups[part].update(kinds_of[name])

    def keeps_kinds(part: int, gives: str, takes: str) -> bool:
        return all(num_groups[part][kind] > 1 or kind in kinds_of[takes] for kind in kinds_of[gives])

    for part, kind in itertools.product(range(parts), sorted(set().union(*kinds_of.values()))):
        if num_groups[part][kind]:
            continue
        wanted = [name for name in part_of if kind in kinds_of[name]]
        own = [name for name in part_of if part_of[name] == part]
        for takes, gives in itertools.product(wanted, own):
            other = part_of[takes]
            if keeps_kinds(part, gives, takes) and keeps_kinds(other, takes, gives):
                part_of[takes], part_of[gives] = part, other
                for here, gained, lost in ((part, takes, gives), (other, gives, takes)):
                    num_groups[here].update(kinds_of[gained])
                    num_groups[here].subtract(kinds_of[lost])
                break
    return part_of


def table_groups(tasks: Sequence[Task]) -> list[str]:
    """The group of each task: tasks that share a table, directly or through other tasks, have the same group."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    names_of = [[table.name.casefold() for table in task.tables] or [f"no table: {task.id}"] for task in tasks]
    for names in names_of:
        for name in names[1:]:
            parent[root(name)] = root(names[0])
    return [root(names[0]) for names in names_of]


def write_splits(inputs: Sequence[Path], output_dir: Path, fractions: Sequence[float], seed: int) -> dict[str, Any]:
    """Read the inputs, split them as one set and write the parts and the manifest.

    Args:
        fractions: the shares of train, validation and test.
    Returns:
        The manifest.
    Raises:
        ValueError: see `split_tasks`; or two inputs share an id, or there are not three fractions.
        TaskFileError: an input cannot be read.
        OutputError: an output file exists already or cannot be written; then nothing is written.
    """
    if len(fractions) != len(PARTS):
        raise ValueError(f"{len(fractions)} fractions, expected one each for {', '.join(PARTS)}")
    for name in (*(f"{part}.jsonl" for part in PARTS), MANIFEST):
        check_output(output_dir / name, "--output")
    files = [task_file(path) for path in inputs]
    loaded = [load_tasks(file) for file in files]
    tasks = [task for part in loaded for task in part]
    refuse_repeated_ids(tasks)
    parts = dict(zip(PARTS, split_tasks(tasks, fractions, seed), strict=True))
    for name, part in parts.items():
        write_tasks(output_dir / f"{name}.jsonl", part)
    manifest = {
        "manifest_version": MANIFEST_VERSION,
        "seed": seed,
        "fractions": dict(zip(PARTS, fractions, strict=True)),
        "inputs": [
            {"file": file.name, "sha256": file_sha256(file), "tasks": len(part)}
            for file, part in zip(files, loaded, strict=True)
        ],
        "parts": {name: _summary(output_dir / f"{name}.jsonl", part) for name, part in parts.items()},
        "versions": {"python": platform.python_version(), **{name: version(name) for name in ("pydantic", "sqlglot")}},
    }
    with written(output_dir / MANIFEST) as part:
        part.write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
    return manifest


def _summary(file: Path, tasks: Sequence[Task]) -> dict[str, object]:
    return {
        "file": file.name,
        "sha256": file_sha256(file),
        "tasks": len(tasks),
        "tables": len({table.name.casefold() for task in tasks for table in task.tables}),
        "kinds": dict(sorted(Counter(task.kind for task in tasks).items())),
        "skills": dict(sorted(Counter(skill for task in tasks for skill in task.skills).items())),
    }


def _fractions(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}, expected three numbers such as 0.8,0.1,0.1") from None


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="agentgrpo tasks split", description="Split tasks into parts that share no table.")
    parser.add_argument("--input", type=Path, nargs="+", required=True, help="task files, split as one set")
    parser.add_argument("--output", "--output-dir", type=Path, required=True, help="folder for the parts")
    parser.add_argument("--fractions", type=_fractions, default="0.8,0.1,0.1", help="shares of train,validation,test")
    parser.add_argument("--seed", type=int, default=0, help="seed of the split; default 0")
    args = parser.parse_args(argv)
    try:
        manifest = write_splits(args.input, args.output, args.fractions, args.seed)
    except ValueError as error:
        return failed(error, 2)
    for name, part in manifest["parts"].items():
        print(f"{name:10} {part['tasks']:6} tasks over {part['tables']:5} tables: {args.output / part['file']}")
    return 0
