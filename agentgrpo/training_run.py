"""Holds what a training run with transformers' or TRL's trainers needs outside the loop: its log, a check of the loss,
its checkpoints and its result. Leaves out the loop, and which settings a run has."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import TrainerCallback

from agentgrpo import signed
from agentgrpo.checkpoints import checkpoints
from agentgrpo.checks import UsageError
from agentgrpo.durations import left
from agentgrpo.outputs import append_line, remove, written
from agentgrpo.run_folder import METRICS, begin, cut_back, start_of

CONFIGS = ("adapter_config.json", "config.json")
"""Loaders recognise a model's folder by these files."""


def check_loss(loss: float, train_step: int, remedy: str) -> None:
    """Raise an error if the loss is not a finite number.

    Raises:
        UsageError: the loss is NaN or infinite; the message ends with `remedy`.
    """
    if not math.isfinite(loss):
        raise UsageError(f"the loss is {loss} at step {train_step}; {remedy}")


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "transformers", "trl", "peft", "accelerate")}


class RunLog(TrainerCallback):
    """Writes config.yaml, run.json and metrics.jsonl, prints a line for each row of metrics, and signs a record beside
    each checkpoint.

    A subclass sets `kind` and `record_name` and calls `log` from `on_log`.
    """

    kind: ClassVar[str]
    """The command, as `agentgrpo --help` names it."""
    record_name: ClassVar[str]

    def __init__(self, output_dir: Path, record: dict[str, Any], settings: Mapping[str, Any]) -> None:
        self.output_dir, self.record, self.settings = output_dir, record, settings
        self.last_time, self.last_step = time.monotonic(), 0
        self.first_time, self.first_step = self.last_time, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write how the run begins, and remove the rows after the checkpoint, whose steps will be repeated, and a row
        that a killed run cut off."""
        self.last_time, self.last_step = time.monotonic(), state.global_step
        self.first_time, self.first_step = self.last_time, self.last_step
        if state.is_world_process_zero:
            start = start_of(self.kind, steps=state.max_steps, device=args.device.type)
            begin(self.output_dir, self.settings, start, resumed=state.global_step > 0)
            cut_back(self.output_dir / METRICS, state.global_step)

    def seconds_per_step(self, state: Any) -> float:
        """Return the mean over the steps since the last call."""
        now, steps = time.monotonic(), state.global_step - self.last_step
        seconds = (now - self.last_time) / max(steps, 1)
        self.last_time, self.last_step = now, state.global_step
        return seconds

    def log(self, state: Any, metrics: Mapping[str, float], line: str) -> None:
        row = {"train_step": state.global_step, "at": time.time(), **metrics}
        append_line(self.output_dir / METRICS, json.dumps(row))
        done, total = (step - self.first_step for step in (state.global_step, state.max_steps))
        rest = left(time.monotonic() - self.first_time, done, total)
        print("  ".join(filter(None, [f"step {state.global_step}/{state.max_steps}", line, rest])), flush=True)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if torch.distributed.is_initialized():
            torch.distributed.barrier()  # every process has written its part
        if state.is_world_process_zero:
            facts = {**self.record, "train_step": state.global_step}
            signed.seal(Path(args.output_dir) / f"checkpoint-{state.global_step}", self.record_name, facts)


# Checkpoints ----------------------------------------------------------------------------------------------------------


def remove_torn(folder: Path, record: str) -> Path | None:
    """Remove unfinished checkpoints, which have no record and fill the disk; return the newest finished one."""
    finished = []
    for checkpoint in checkpoints(folder):
        if (checkpoint / record).is_file():
            finished.append(checkpoint)
        else:
            remove(checkpoint)
    return finished[0] if finished else None


def check_same_run(checkpoint: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to continue from the checkpoint of another run.

    Args:
        before: the values on which the checkpoint's weights depend, by name.
        now: the same for the run that would continue from it.
    Raises:
        UsageError: the values differ.
    """
    changed = [f"{name}: was {before.get(name)}, is {new}" for name, new in now.items() if before.get(name) != new]
    if changed:
        raise UsageError(
            f"{checkpoint} belongs to another run ({'; '.join(changed)}); name another --run-dir to start a new "
            "run, or give the settings and data of the old one"
        )


# The result -----------------------------------------------------------------------------------------------------------


def publish(scratch: Path, output: Path) -> None:
    """Move the files of a saved model to their folder. Its config comes last, when the other files are there."""
    for file in sorted(scratch.iterdir(), key=lambda file: file.name in CONFIGS):
        os.replace(file, output / file.name)


def write_record(path: Path, record: Mapping[str, Any], train_step: int) -> None:
    """Write the record of a finished model, whole or not at all."""
    with written(path) as part:
        part.write_text(json.dumps({**record, "train_step": train_step}, indent=2) + "\n")
