"""Fine-tune a chat model on demonstrations: the loss is on the assistant's tokens only.

    agentgrpo sft --num-tasks 10 --num-epochs 1      # a quick test: the small policy, generated tasks
    agentgrpo sft --model MODEL --dataset dbbench --run-dir outputs/sft
    agentgrpo sft --model MODEL --dataset demonstrations.jsonl --num-epochs 3

--dataset is one of
  dbbench   DB-Bench tasks solved by the scripted oracle: the episodes that the judge calls right (the default)
  text2sql  your own questions with their reference queries: --database FILE.sqlite --train-file train.json
  gsm8k     GSM8K's solutions with calculator calls; gsm8k:FILE and gsm8k:generated need no network
  FILE      JSONL in TRL's forms: {"messages": [...], "tools": [...]}, {"prompt": ..., "completion": ...} with messages
            or texts, {"text": ...}; texts are learnt without a chat template
Without it, --env FILE.py:NAME runs the references in the rows of --train-file in your own environment.

The command writes an adapter with its tokenizer, which every --model takes (a whole model with --lora-rank 0),
metrics.jsonl, sft.json and checkpoints/ into --run-dir. doc/guides/fine_tuning.md explains it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from agentgrpo.checkpoints import CHECKPOINTS, MANIFEST, how_to_go_on
from agentgrpo.checks import UsageError, require
from agentgrpo.disk_errors import OutputError
from agentgrpo.hub import go_offline
from agentgrpo.processes import ends_in_order
from agentgrpo.run_folder import check_begun, claim
from agentgrpo.spelling import did_you_mean
from sql_agent.settings.flags import message_formatter, read_flags, training_parser
from sql_agent.settings.tuning import DATASETS, FineTuningConfig, SftConfig

if TYPE_CHECKING:
    from sql_agent.sft.run import SftRun


def parse_argv(argv: Sequence[str] | None = None) -> tuple[SftConfig, bool]:
    parser = training_parser("sft", __doc__, SftConfig)
    args = parser.parse_args(argv)
    return read_flags(parser, SftConfig, args), args.resume


def main(argv: Sequence[str] | None = None) -> int:
    cfg, resume = parse_argv(argv)
    quiet_libraries()
    if cfg.dataset != "gsm8k":
        go_offline()

    def load() -> Work[SftRun]:
        require(files=cfg.expected(cfg.environment.type) if cfg.source != "file" else (), place=cfg.database)
        if cfg.source == "file":
            check_messages(Path(cfg.data_name))
        if cfg.source == "gsm8k":
            require(problems=cfg.data_name.removeprefix("gsm8k:"))
        require_start_model(cfg)
        from sql_agent.sft.run import prepare_sft, train_sft

        return lambda: prepare_sft(cfg, resume=resume), train_sft

    return run_command(load, cfg, "sft.json", MANIFEST, resume=resume)


def check_messages(path: Path) -> None:
    """Raises UsageError: there is no such file, nor other data of that name."""
    if not path.is_file():
        meant = did_you_mean(str(path), DATASETS) or did_you_mean(path)
        raise UsageError(f"--dataset {path}: no such file; give {', '.join(DATASETS)}, or a JSONL of messages{meant}")


AnyRun = TypeVar("AnyRun")
Work = tuple[Callable[[], AnyRun], Callable[[AnyRun], None]]
"""`prepare_sft`, and `train_sft`, which takes what it returned."""


def require_start_model(cfg: FineTuningConfig) -> None:
    """Check the model, which is made first if it is the default."""
    from sql_agent.tiny_policy.make import make_if_default

    make_if_default(cfg.model_path)
    require(policy=cfg.model_path)


def quiet_libraries() -> None:
    """Set what torch, tokenizers and the hub's client read when they are imported."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # TRL would report the run otherwise
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # torch reads this variable at import: threads that wait in a loop stop while another process has their core
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # this is one process on one GPU


def run_command(
    load: Callable[[], Work[AnyRun]],
    cfg: FineTuningConfig,
    record: str,
    sealed: str,
    *,
    resume: bool,
) -> int:
    """Prepare and train, while no other run may write to the folder; return the exit status.

    What the user can correct is one line: any `ValueError` until `train_sft` begins, and what `train_sft` says in
        words.

    Args:
        load: checks what takes no library, then imports them.
        record: the name of the run's record file.
        sealed: the name of the signed record of its checkpoints.
    """
    output_dir = cfg.run_dir
    try:
        try:
            require(run_dir=output_dir)
            check_folder(output_dir, record, sealed, resume=resume)
            prepare, train = load()
        except ValueError as error:
            raise UsageError(str(error)) from error
        with ends_in_order(), claim(output_dir):
            try:
                run = prepare()
            except ValueError as error:
                raise UsageError(str(error)) from error
            train(run)
    except (OutputError, UsageError) as error:
        print(f"error: {message_formatter(type(cfg))(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if not (output_dir / CHECKPOINTS).is_dir():  # nothing was trained
            raise
        left = how_to_go_on(output_dir / CHECKPOINTS, "the same command with --resume", record=sealed)
        print(f"\ninterrupted; {left}", file=sys.stderr)
        return 130
    return 0


def check_folder(output: Path, record: str, sealed: str, *, resume: bool) -> None:
    """
    Raises:
        ValueError: the folder holds something that would be overwritten, or nothing to resume; or this user has no key
            to sign checkpoints with.
    """
    if (output / record).is_file():
        raise UsageError(f"{output} holds a finished model ({record}); name another --run-dir")
    earlier = sealed != record and any((output / CHECKPOINTS).glob(f"*/{record}"))  # a version with other checkpoints
    check_begun(output, kind=Path(record).stem, resume=resume, begun=(output / CHECKPOINTS).is_dir() and not earlier)
