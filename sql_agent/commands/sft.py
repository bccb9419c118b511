"""Fine-tune a chat model on demonstrations: the loss is on what the assistant says, and on nothing else.

    agentgrpo sft --num-tasks 10 --num-epochs 1      # a quick test: the small policy, generated tasks
    agentgrpo sft --model MODEL --dataset dbbench --run-dir outputs/sft
    agentgrpo sft --model MODEL --dataset demonstrations.jsonl --num-epochs 3

--dataset is one of
  dbbench   DB-Bench tasks played by the scripted oracle: the episodes that the judge calls right (the default)
  text2sql  your own questions with their reference queries: --database FILE.sqlite --train-file train.json
  gsm8k     GSM8K's solutions with calculator calls; gsm8k:FILE and gsm8k:generated need no network
  FILE      JSONL in TRL's forms: {"messages": [...], "tools": [...]}, {"prompt": ..., "completion": ...} with messages
            or texts, {"text": ...}; texts are learnt without a chat template
Without it, --env FILE.py:NAME plays the references in the rows of --train-file in an environment of your own.

The command writes an adapter with its tokenizer, which every --model takes (a whole model with --lora-rank 0),
metrics.jsonl, sft.json and checkpoints/ into --run-dir. doc/sft.md explains it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from agentgrpo.checkpoints import CHECKPOINTS, MANIFEST, how_to_go_on
from agentgrpo.checks import UsageError, require
from agentgrpo.disk_errors import OutputError
from agentgrpo.hub import go_offline
from agentgrpo.processes import ends_in_order
from agentgrpo.run_folder import claim
from sql_agent.settings.flags import in_words_of, read_flags, training_parser
from sql_agent.settings.tuning import FineTuningConfig, SftConfig


def parse(argv: Sequence[str] | None = None) -> tuple[SftConfig, bool]:
    parser = training_parser("sft", __doc__, SftConfig)
    args = parser.parse_args(argv)
    return read_flags(parser, SftConfig, args), args.resume


def main(argv: Sequence[str] | None = None) -> int:
    cfg, resume = parse(argv)
    quiet_libraries()
    if cfg.dataset != "gsm8k":
        go_offline()
    from sql_agent.sft.run import prepare, train
    from sql_agent.tiny_policy.make import make_if_default

    make_if_default(cfg.model_path)
    return run_command(lambda: prepare(cfg, resume=resume), train, cfg)


Run = TypeVar("Run")


def quiet_libraries() -> None:
    """Set what torch, tokenizers and the hub's client read when they are imported."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # TRL would report the run otherwise
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # torch reads this variable at import: threads that wait in a loop stop while another process has their core
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # this is one process on one GPU


def run_command(
    prepare: Callable[[], Run], train: Callable[[Run], None], cfg: FineTuningConfig, sealed: str = MANIFEST
) -> int:
    """Prepare and train, while no other run may write to the folder; return the exit status.

    What the user can correct is one line: any `ValueError` of `prepare`, and what `train` says in words.

    Args:
        sealed: the name of the signed record of the run's checkpoints.
    """
    output_dir = cfg.run_dir
    try:
        require(run_dir=output_dir)
        with ends_in_order(), claim(output_dir):
            try:
                run = prepare()
            except ValueError as error:
                raise UsageError(str(error)) from error
            train(run)
    except (OutputError, UsageError) as error:
        print(f"error: {in_words_of(type(cfg))(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if not (output_dir / CHECKPOINTS).is_dir():  # nothing was trained
            raise
        left = how_to_go_on(output_dir / CHECKPOINTS, "the same command with --resume", record=sealed)
        print(f"\ninterrupted; {left}", file=sys.stderr)
        return 130
    return 0
