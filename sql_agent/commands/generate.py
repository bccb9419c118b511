"""Generate new tasks: `agentgrpo tasks generate --num-tasks 100 --output data/entry_dict.json`.

The command writes LifelongAgentBench's form, which its code and `dbbench_adapter.tasks.load` read. It needs no model,
and runs every reference. The file appears once all tasks are made. `dbbench_adapter.generate` describes the tasks.
"""

import itertools
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from agentgrpo.flags import Parser
from agentgrpo.outputs import check_output, written
from dbbench_adapter.datatypes import Task
from dbbench_adapter.generate import SKILL_COUNTS, THEMES, ExhaustedError, task_stream
from dbbench_adapter.sql_skills import SKILLS
from dbbench_adapter.tasks.load import entry_dict


def skill_weights(text: str) -> dict[str, float]:
    """Read `limit_only,delete:3` as {"limit_only": 1.0, "delete": 3.0}.

    Raises:
        ValueError: a weight is not a number above 0.
    """
    weights: dict[str, float] = {}
    for part in text.split(","):
        skill, colon, weight = part.strip().partition(":")
        try:
            weights[skill] = float(weight) if colon else 1.0
        except ValueError:
            weights[skill] = math.nan
        if not 0 < weights[skill] < math.inf:
            raise ValueError(f"--skills {part.strip()!r}: expected skill or skill:number, the number above 0")
    return weights


def describe_tasks(tasks: Sequence[Task], seconds: float, path: Path) -> list[str]:
    kinds = Counter(task.kind for task in tasks)
    skills = Counter(skill for task in tasks for skill in task.skills)
    return [
        "  ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())),
        *(f"  {skill:46} {skills[skill]:6}" for skill in SKILLS if skills[skill]),
        f"{len(tasks)} tasks in {seconds:.1f} s: {path}",
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(description="Generate DB-Bench tasks in LifelongAgentBench's form.")
    parser.add_argument("--num-tasks", "--num-samples", type=int, default=100, help="number of tasks; default 100")
    parser.add_argument("--output", "--output-path", type=Path, required=True, help="the entry_dict.json to write")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same tasks; default 0")
    parser.add_argument(
        "--split", choices=list(THEMES), default="train", help="held_out shares no table with train; default train"
    )
    ranges = ", ".join(f"{level} {low}-{high}" for level, (low, high) in SKILL_COUNTS.items())
    parser.add_argument("--difficulty", choices=list(SKILL_COUNTS), help=f"skills per task: {ranges}; default a mix")
    parser.add_argument("--skills", metavar="A,B:2", help="every task shows one of these, drawn by weight; default all")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    args = parser.parse_args(argv)
    path: Path = args.output
    if args.num_tasks < 1:
        print(f"error: --num-tasks is {args.num_tasks}, expected 1 or more", file=sys.stderr)
        return 1
    start = time.monotonic()
    try:
        check_output(path, "--output", overwrite=args.overwrite)
        stream = task_stream(
            seed=args.seed,
            split=args.split,
            difficulty=args.difficulty,
            skills=skill_weights(args.skills) if args.skills else None,
        )
        # None shows a progress bar only on a terminal
        tasks = list(tqdm(itertools.islice(stream, args.num_tasks), total=args.num_tasks, disable=None))
    except (ValueError, ExhaustedError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    with written(path) as unfinished:
        unfinished.write_text(json.dumps(entry_dict(tasks), ensure_ascii=False) + "\n", "utf-8")
    print("\n".join(describe_tasks(tasks, time.monotonic() - start, path)))
    return 0
