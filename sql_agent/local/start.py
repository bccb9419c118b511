"""How a local run starts: seeds, device, the model looked at before it is loaded."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from sql_agent.local.config import AdapterConfig, ModelConfig


class StartError(ValueError):
    """The run cannot start as asked; the message says what to do."""


def start_policy(model: ModelConfig, adapter: AdapterConfig, *, seed: int, reference_path: str | None = None):
    """The policy, loaded; nothing random happened before `seed` was set."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    check(model)
    import torch
    from transformers.utils import logging

    from sql_agent.local.policy import load_policy

    logging.disable_progress_bar()
    torch.manual_seed(seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return load_policy(
        model.model_path,
        adapter=adapter,
        device=device if model.device == "auto" else model.device,
        reference_path=reference_path,
        load_in_4bit=model.load_in_4bit,
        gradient_checkpointing=model.gradient_checkpointing,
    )


def check(model: ModelConfig) -> None:
    """
    Raises:
        StartError: no such model, or 4 bits without what they need.
    """
    if model.load_in_4bit and importlib.util.find_spec("bitsandbytes") is None:
        raise StartError(
            "--load_in_4bit needs bitsandbytes, which is not installed; install it (with a GPU), or leave the flag out"
        )
    if not Path(model.model_path).is_dir() and "/" in model.model_path.strip("/"):
        pass
