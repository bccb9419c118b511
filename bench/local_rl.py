"""Measures speed and memory of local training: `python -m bench.local_rl`; 13 minutes on two idle cores.

It compares sampling a group together with sampling one reply at a time, training a rollout as one sequence with one
sample per turn, and peak memory with its estimate. It needs models/tiny-sql (`agentgrpo tiny-policy`);
larger models are random and made by the command. The exit status is 1 if a target is missed.
"""

import os

from agentgrpo.commands import execute, starting

if __name__ == "__main__":
    starting()

import argparse
import importlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from agentgrpo.flags import Parser
from agentgrpo.printed_commands import agentgrpo_command
from bench.parts.report import Row, add_options, check_options, facts, finish

# `measure` of `bench.parts.local_PART` measures each part.
PARTS = ("sampling", "tokens", "memory")
MODEL = Path("models") / "tiny-sql"


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_args(arguments)
    # by default threads spin while they wait for each other, which is 20 times as slow beside another process
    os.environ.update(HF_HUB_OFFLINE="1", OMP_WAIT_POLICY="PASSIVE")
    found = facts()
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(1)  # parts in their own processes use all cores
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bench-local-") as folder:
        for part in filter(args.only.__contains__, PARTS):
            rows += importlib.import_module(f"bench.parts.local_{part}").measure(args.model, Path(folder))
    return finish(rows, found, args.output)


def parse_args(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m bench.local_rl",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, PARTS)
    parser.add_argument("--model", type=Path, default=MODEL, help="the small policy (default %(default)s)")
    args = parser.parse_args(arguments)
    check_options(parser, args, PARTS)
    if not (args.model / "config.json").is_file():
        make = agentgrpo_command("tiny-policy")
        parser.error(f"--model {args.model}: no model there; make it with `{make}`")
    return args


if __name__ == "__main__":
    execute(main)
