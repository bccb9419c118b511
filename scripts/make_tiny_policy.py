"""Make the small policy that training starts from: a Hugging Face folder, built on this machine in minutes.

    python -m scripts.make_tiny_policy [--output models/tiny-sql]
    python -m scripts.make_tiny_policy --output models/tiny-demo --for-run sql_agent/configs/demo.yaml

The warm start ends after `--steps`. With `--for-run` it ends when the policy solves about half of that run's kinds of
tasks, wherever that is on this machine: it measures on development tasks, which are none of the run's, and prints what
it measured.
`sql_agent/tiny_policy` has the recipe and its measurements. A folder made by the same recipe is left as it is.
"""

from __future__ import annotations

from core.commands import execute, starting

if __name__ == "__main__":
    starting()

from pathlib import Path

from core.flags import Parser
from sql_agent.config import load_config
from sql_agent.tiny_policy.make import DEVELOPMENT_TASKS, STEPS, SUCCESS, make_tiny_policy

OUTPUT = Path("models") / "tiny-sql"


def main() -> None:
    parser = Parser(prog="python -m scripts.make_tiny_policy", description="Make the small policy to train from.")
    parser.add_argument("--output", type=Path, default=OUTPUT, help=f"folder (default {OUTPUT})")
    parser.add_argument("--seed", type=int, default=0, help="seed of its first weights and of its tasks (default 0)")
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument("--steps", type=int, default=STEPS, help=f"steps of the warm start (default {STEPS})")
    ends.add_argument(
        "--for-run",
        type=Path,
        metavar="CONFIG",
        help="end the warm start by success on development tasks that show this run's data.skills: between "
        f"{100 * SUCCESS[0]:.0f} and {100 * SUCCESS[1]:.0f} %% of {DEVELOPMENT_TASKS}, or at the step nearest to that",
    )
    args = parser.parse_args()
    if args.steps < 1:
        parser.error(f"--steps is {args.steps}; it has to be 1 or more")
    skills = load_config(args.for_run, []).data.skills if args.for_run else ()
    if args.for_run and not skills:
        parser.error(f"--for-run {args.for_run}: it names no data.skills to measure; use --steps or name them there")
    make_tiny_policy(args.output, seed=args.seed, steps=args.steps, for_skills=skills)


if __name__ == "__main__":
    execute(main)
