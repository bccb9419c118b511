"""Speed and memory of local training: `python -m scripts.bench_local_rl`; 13 minutes on two idle cores.

Sampling a group together against one reply at a time, training a rollout as one sequence against one sample per turn,
and peak memory against its estimate. Needs models/tiny-sql (`python -m scripts.make_tiny_policy`); larger models are
random and made on the spot. Ends with 1 if a target is missed. Leaves out GPUs.
"""

import os
import sys

if __package__ in (None, ""):
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # run as a script

from core.commands import execute, starting

if __name__ == "__main__":
    starting()

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from scripts.bench.report import Row, facts, table

PARTS = ("sampling", "tokens", "memory")
MODEL = Path("models") / "tiny-sql"
LARGER = "60M"


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_args(arguments)
    # by default threads spin while they wait for each other: beside any other process 20 times as slow
    os.environ.update(HF_HUB_OFFLINE="1", OMP_WAIT_POLICY="PASSIVE")
    found = facts()
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(1)  # for ratios; what is measured in processes of their own has all cores
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bench-local-") as name:
        for part, measured in (("sampling", _sampling), ("tokens", _tokens), ("memory", _memory)):
            if part in args.only:
                rows += measured(args.model, Path(name))
    print(table(rows))
    print(f"\ncommit {found['commit']}, load {found['load']} at the start, {os.cpu_count()} cores of {found['cpu']}")
    if args.json:
        args.json.write_text(json.dumps({"facts": found, "rows": [asdict(row) for row in rows]}, indent=2) + "\n")
    return int(any(row.met is False for row in rows))


def parse_args(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench_local_rl",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=list(PARTS), help=f"of {','.join(PARTS)}; default all"
    )
    parser.add_argument("--model", type=Path, default=MODEL, help="the small policy (default %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    args = parser.parse_args(arguments)
    if unknown := set(args.only) - set(PARTS):
        parser.error(f"--only {','.join(sorted(unknown))}: known are {', '.join(PARTS)}")
    if not (args.model / "config.json").is_file():
        parser.error(f"--model {args.model}: no model there; make it with `python -m scripts.make_tiny_policy`")
    if args.json and not args.json.parent.is_dir():
        parser.error(f"--json {args.json}: no such folder")
    return args


def _sampling(model: Path, folder: Path) -> list[Row]:
    from scripts.bench.local_models import save_random_model
    from scripts.bench.local_sampling import episodes, fixed_replies
    from sql_agent.local.config import AdapterConfig
    from sql_agent.local.policy import load_policy

    small = load_policy(model, adapter=AdapterConfig(), device="cpu")
    rows = episodes(small) + fixed_replies(small, "small policy")
    larger = load_policy(save_random_model(folder / "sampled", LARGER, model), adapter=AdapterConfig(), device="cpu")
    return rows + fixed_replies(larger, f"random model of {LARGER}")


def _tokens(model: Path, folder: Path) -> list[Row]:
    from scripts.bench.local_tokens import measure
    from sql_agent.local.config import AdapterConfig
    from sql_agent.local.policy import load_policy

    return measure(load_policy(model, adapter=AdapterConfig(dropout=0.0), device="cpu"))


def _memory(model: Path, folder: Path) -> list[Row]:
    from scripts.bench.local_memory import measure

    return measure(folder, model)


if __name__ == "__main__":
    execute(main)
