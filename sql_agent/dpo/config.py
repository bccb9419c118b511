"""Defines the settings of DPO. Importing this module is instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from agentgrpo.flags import FlagName
from sql_agent.sft.config import FineTuningConfig


class DpoConfig(FineTuningConfig):
    """Holds the flags of `agentgrpo dpo` with their defaults."""

    dataset: Path = Field(validation_alias="train_file")
    """Pairs to train on: a file that `pairs_from_rollouts` or `agentgrpo reward convert` wrote, or one that the latter
    reads."""
    eval_dataset: Annotated[Path | None, FlagName("val-file")] = None
    """Held-out pairs; none: a part of the prompts of --dataset is held out."""
    held_out_fraction: float = Field(default=0.1, ge=0, lt=1)
    """Without --val-file: the share of the pairs to hold out, whole prompts at a time; 0 for none."""
    output_dir: Annotated[Path, FlagName("run-dir")] = Path("outputs/dpo")
    """Folder of the run, new or empty."""
    num_epochs: int = Field(default=1, ge=1)
    """Passes over the pairs; held-out pairs are measured after each."""
    batch_size: int = Field(default=8, ge=1)
    """Pairs of one batch."""
    learning_rate: float = Field(default=1e-5, gt=0, le=1)
    """Learning rate at the start; it falls linearly to 0."""
    beta: float = Field(default=0.1, gt=0)
    """Strength of the pull towards the reference policy, which is the model before training."""
