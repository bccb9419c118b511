"""What the commands of fine-tuning and DPO share: quiet libraries, errors in a line, Ctrl-C."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TypeVar

from agentgrpo.checkpoints import CHECKPOINTS
from agentgrpo.checks import UsageError, require
from agentgrpo.disk_errors import OutputError
from agentgrpo.processes import ends_in_order
from agentgrpo.run_folder import claim
from sql_agent.settings.flags import in_words_of
from sql_agent.settings.tuning import FineTuningConfig

Run = TypeVar("Run")


def quiet_libraries() -> None:
    """Set what torch, tokenizers and the hub's client read when they are imported."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # TRL would report the run otherwise
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # torch reads this variable at import: threads that wait in a loop stop while another process has their core
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # this is one process on one GPU


def run_command(prepare: Callable[[], Run], train: Callable[[Run], None], cfg: FineTuningConfig) -> int:
    """Prepare and train, while no other run may write to the folder; return the exit status.

    What the user can correct is one line: any `ValueError` of `prepare`, and what `train` says in words.
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
        resume = f"the same command with --resume goes on from the last checkpoint in {output_dir}"
        print(f"\ninterrupted; {resume}", file=sys.stderr)
        return 130
    return 0
