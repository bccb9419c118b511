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
import importlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scripts.bench.report import Row, add_options, check_options, facts, finish

PARTS = ("sampling", "tokens", "memory")
"""Each is measured by `measure` of `scripts.bench.local_PART`."""
MODEL = Path("models") / "tiny-sql"


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
    with tempfile.TemporaryDirectory(prefix="bench-local-") as folder:
        for part in filter(args.only.__contains__, PARTS):
            rows += importlib.import_module(f"scripts.bench.local_{part}").measure(args.model, Path(folder))
    return finish(rows, found, args.json)


def parse_args(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench_local_rl",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, PARTS)
    parser.add_argument("--model", type=Path, default=MODEL, help="the small policy (default %(default)s)")
    args = parser.parse_args(arguments)
    check_options(parser, args, PARTS)
    if not (args.model / "config.json").is_file():
        parser.error(f"--model {args.model}: no model there; make it with `python -m scripts.make_tiny_policy`")
    return args


if __name__ == "__main__":
    execute(main)
