"""Writes and reads checkpoints of a local run atomically; a resumed run ends like an uninterrupted one.

A checkpoint is a folder `step_000123` with the adapter, the learner's state, the random generators, the progress of the
loop (`state.json`), and a signed manifest of sizes and hashes. Only checkpoints that this user wrote are loaded
(`agentgrpo.signed`), because `training.pt` is a pickle.
"""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agentgrpo import signed
from agentgrpo.checkpoints import MANIFEST, newest_whole, prune
from agentgrpo.json_text import parse_json
from agentgrpo.outputs import sync, written
from sql_agent.local.learner import Learner
from sql_agent.local.policy import LocalPolicy

log = logging.getLogger(__name__)

REMEDY = "start anew in another folder, or move these away to begin this run again from its first task"
STATE = "state.json"
KEPT = 2
"""Number of checkpoints that stay: the newest, and the one before it in case the newest gets damaged."""


def save_checkpoint(folder: Path, step: int, policy: LocalPolicy, learner: Learner, state: dict[str, Any]) -> Path:
    """Write `folder/step_…` and remove all but the newest `KEPT` checkpoints.

    Args:
        state: the loop's state as JSON values.
    """
    target = folder / f"step_{step:06d}"
    with written(target) as unfinished:
        unfinished.mkdir()
        policy.save(unfinished)
        torch.save({"learner": learner.state(), "random": _random_state()}, unfinished / "training.pt")
        (unfinished / STATE).write_text(json.dumps(state))
        signed.seal(unfinished, MANIFEST, {"step": step})
        for path in unfinished.rglob("*"):
            sync(path)
    sync(folder)
    prune(target, KEPT)
    return target


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint, None if there is none at all; damaged ones are skipped with a warning.

    Raises:
        CheckpointError: there are checkpoints, and none of them is whole.
        NotOursError: another user wrote the checkpoint.
    """
    return newest_whole(folder, log.warning, run_dir=folder.parent, remedy=REMEDY)


def resume(checkpoint: Path, policy: LocalPolicy, learner: Learner) -> dict[str, Any]:
    """Restore adapter, learner and random generators, and return the loop's `state`.

    Raises:
        ValueError: the adapter's shape differs from this run's.
    """
    policy.load(checkpoint)
    training = torch.load(checkpoint / "training.pt", weights_only=False, map_location="cpu")
    learner.load_state(training["learner"])
    _set_random_state(training["random"])
    return parse_json((checkpoint / STATE).read_text())


def _random_state() -> dict[str, Any]:
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def _set_random_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
