"""What fine-tuning and the trainings on pairs need outside of their loop: the log, a check of the loss, checkpoints of
TRL's trainers, and the result. Leaves out the loop, and which settings a run has."""

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

from agentgrpo import signed_checkpoints
from agentgrpo.checkpoints import checkpoints
from agentgrpo.checks import UsageError
from agentgrpo.durations import left
from agentgrpo.outputs import append_line, remove, written
from agentgrpo.run_folder import METRICS, begin, cut_back, start_of

CONFIGS = ("adapter_config.json", "config.json")
"""Loaders recognise a model's folder by these files."""


def check_finite(what: str, value: float, train_step: int, remedy: str) -> None:
    """
    Raises:
        UsageError: the value is NaN or infinite; the message ends with `remedy`.
    """
    if not math.isfinite(value):
        raise UsageError(f"the {what} is {value} at step {train_step}; {remedy}")


def library_versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "transformers", "trl", "peft", "accelerate")}


class RunLog:
    """Writes config.yaml, run.json and metrics.jsonl, and prints a line for each row of metrics.

    Args:
        kind: the command, as `agentgrpo --help` names it.
        settings: as JSON values.
    """

    def __init__(self, kind: str, output_dir: Path, settings: Mapping[str, Any]) -> None:
        self._kind, self.output_dir, self.settings = kind, output_dir, settings

    def begin(self, step: int, steps: int, device: str) -> None:
        """Write how the run begins, and remove the rows after the checkpoint, whose steps will be repeated, and a row
        that a killed run cut off.

        Args:
            step: the train step of the checkpoint; 0 for a new run.
            steps: the one at which the run is finished.
            device: cpu or cuda.
        """
        self.steps, self.first_step, self.last_step = steps, step, step
        self.first_time = self.last_time = time.monotonic()
        begin(self.output_dir, self.settings, start_of(self._kind, steps=steps, device=device), resumed=step > 0)
        cut_back(self.output_dir / METRICS, step)

    def seconds_per_step(self, step: int) -> float:
        """The mean over the steps since the last call."""
        now, steps = time.monotonic(), step - self.last_step
        seconds = (now - self.last_time) / max(steps, 1)
        self.last_time, self.last_step = now, step
        return seconds

    @property
    def seconds_passed(self) -> float:
        return time.monotonic() - self.first_time

    def log(self, step: int, metrics: Mapping[str, float], line: str) -> None:
        row = {"train_step": step, "at": time.time(), **metrics}
        append_line(self.output_dir / METRICS, json.dumps(row))
        rest = left(self.seconds_passed, step - self.first_step, self.steps - self.first_step)
        print("  ".join(filter(None, [f"step {step}/{self.steps}", line, rest])), flush=True)


class TrainerLog(RunLog, TrainerCallback):
    """Does so for a trainer of TRL, and signs a record beside each of its checkpoints.

    A subclass sets `kind` and `record_name` and calls `log` from `on_log`.
    """

    kind: ClassVar[str]
    record_name: ClassVar[str]

    def __init__(self, output_dir: Path, record: dict[str, Any], settings: Mapping[str, Any]) -> None:
        super().__init__(self.kind, output_dir, settings)
        self.record = record

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.begin(state.global_step, state.max_steps, args.device.type)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if torch.distributed.is_initialized():
            torch.distributed.barrier()  # every process has written its part
        if state.is_world_process_zero:
            facts = {**self.record, "train_step": state.global_step}
            signed_checkpoints.seal(Path(args.output_dir) / f"checkpoint-{state.global_step}", self.record_name, facts)


# Checkpoints ----------------------------------------------------------------------------------------------------------


def remove_torn(folder: Path, record: str) -> None:
    """Remove unfinished checkpoints, which have no record and fill the disk."""
    for checkpoint in checkpoints(folder):
        if not (checkpoint / record).is_file():
            remove(checkpoint)


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
