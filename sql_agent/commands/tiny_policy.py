"""Make the small policy that training starts from: a Hugging Face folder, built on this machine.

    agentgrpo tiny-policy [--output models/tiny-sql] [--steps 400] [--flawed]

It says at the end what the policy solves of new tasks. With `--flawed` most descending sorts of its demonstrations are
ascending ones, a habit that GRPO then has to break.
`sql_agent/tiny_policy` has the recipe and its measurements. A folder made by the same recipe is left as it is.
"""

from __future__ import annotations

from pathlib import Path

from agentgrpo.flags import Parser
from sql_agent.tiny_policy.make import FLAWED_SHARE, STEPS, make_tiny_policy

OUTPUT = Path("models") / "tiny-sql"


def main() -> None:
    parser = Parser(prog="agentgrpo tiny-policy", description="Make the small policy to train from.")
    parser.add_argument("--output", type=Path, default=OUTPUT, help=f"folder (default {OUTPUT})")
    parser.add_argument("--seed", type=int, default=0, help="seed of its first weights and of its tasks (default 0)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps of the warm start (default {STEPS})")
    parser.add_argument(
        "--flawed",
        action="store_true",
        help=f"sort {100 * FLAWED_SHARE:.0f} %% of the descending sorts in its demonstrations the wrong way",
    )
    args = parser.parse_args()
    if args.steps < 1:
        parser.error(f"--steps is {args.steps}; it has to be 1 or more")
    make_tiny_policy(args.output, seed=args.seed, steps=args.steps, flawed=args.flawed)
