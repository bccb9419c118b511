"""Prepares wandb, SwanLab and TensorBoard, which a run may write its metrics to beside its metrics.jsonl."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from agentgrpo.printed_commands import remedy_of

logger = logging.getLogger(__name__)


def usable_trackers(wanted: Sequence[str], folder: Path) -> list[str]:
    """Those that are installed, and have them write into a run's folder.

    Without an API key wandb and SwanLab write there and nowhere else. What the environment already says stays: it may
    name another folder, or switch uploading on for somebody who has logged in.
    """
    usable = [name for name in wanted if importlib.util.find_spec(name) is not None]
    for name in wanted:
        if name not in usable:
            logger.warning("%s is not installed; going on without it. To add it: %s", name, remedy_of(name))
    if not usable:
        return []
    defaults = {
        "TENSORBOARD_DIR": str(folder / "tensorboard"),  # verl reads this name, transformers the next
        "TENSORBOARD_LOGGING_DIR": str(folder / "tensorboard"),
        "WANDB_DIR": str(folder),  # wandb adds wandb/
        "SWANLAB_LOG_DIR": str(folder / "swanlab"),
    }
    if not os.environ.get("WANDB_API_KEY"):
        defaults["WANDB_MODE"] = "offline"
    if not os.environ.get("SWANLAB_API_KEY"):
        defaults["SWANLAB_MODE"] = "offline"  # `local` needs a dashboard of its own, swanboard
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    return usable
