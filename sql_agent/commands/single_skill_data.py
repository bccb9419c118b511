"""Sort tasks by the one skill they train.

    agentgrpo tasks single-skill --input data/entry_dict.json \
        --output data/single_skill_tasks.json --min-tasks-per-skill 1

The command reads any task file and writes a JSON object from skill to tasks, from which
`SingleSkillTaskGenerator.from_file` draws. Under each skill are the tasks that show it with the fewest others. A skill
with fewer tasks than asked for is not in the file, but listed on the screen. If no skill is left, nothing is written
and the exit status is 1.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentgrpo.flags import Parser
from agentgrpo.outputs import OutputError, check_output
from dbbench_adapter.datatypes import Task
from dbbench_adapter.tasks.load import TaskFileError, load_tasks
from dbbench_adapter.tasks.single_skill import by_skill, num_others, skills_of, write_single_skill


def describe_skills(tasks_by_skill: Mapping[str, Sequence[Task]], min_tasks: int) -> list[str]:
    """A line per skill: the number of its tasks, and of other skills in them."""
    lines = [f"{'skill':46} {'tasks':>6}  others"]
    for skill, tasks in tasks_by_skill.items():
        others = sorted({num_others(skill, skills_of(task)) for task in tasks})
        shown = "" if not others else str(others[0]) if len(others) == 1 else f"{others[0]}-{others[-1]}"
        note = f"  left out: fewer than {min_tasks}" if len(tasks) < min_tasks else ""
        lines.append(f"{skill:46} {len(tasks):6}  {shown:6}{note}".rstrip())
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(description="Sort tasks by the one skill they train.")
    parser.add_argument(
        "--input", "--input-data-path", type=Path, required=True, help="any task file, e.g. an entry_dict.json"
    )
    parser.add_argument(
        "--output", "--output-path", type=Path, required=True, help="the single_skill_tasks.json to write"
    )
    parser.add_argument("--min-tasks-per-skill", type=int, default=1, help="skills with fewer are left out; default 1")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    args = parser.parse_args(argv)
    path, min_tasks = args.output, args.min_tasks_per_skill
    if min_tasks < 1:
        print(f"error: --min-tasks-per-skill is {min_tasks}, expected 1 or more", file=sys.stderr)
        return 1
    try:
        check_output(path, "--output", overwrite=args.overwrite)
        tasks = load_tasks(args.input)
    except (TaskFileError, OutputError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    found = by_skill(tasks, min_tasks=min_tasks)
    print("\n".join(describe_skills(found, min_tasks)))
    enough = {skill: listed for skill, listed in found.items() if len(listed) >= min_tasks}
    if not enough:
        print(
            f"error: no skill has {min_tasks} tasks in {args.input}; lower --min-tasks-per-skill or make "
            "more with agentgrpo tasks generate",
            file=sys.stderr,
        )
        return 1
    write_single_skill(path, enough)
    print(f"{len(enough)} of {len(found)} skills from {len(tasks)} tasks: {path}")
    return 0
