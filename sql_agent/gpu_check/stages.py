"""Runs a command within a limit, kills it where that is the stage's purpose, and says how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

POLL_S = 1.0
PATIENCE_S = 20.0
"""From SIGTERM to SIGKILL; a training run ends what it has started in that time."""
TAIL_LINES = 30


@dataclass(frozen=True)
class Stage:
    name: str
    command: Sequence[str]
    limit_s: float
    read: Callable[[str], dict[str, Any]]
    """What the stage found, from its output; it raises where that is not what the stage is for."""
    kill_at: Callable[[], bool] | None = None
    """When the stage has what it wants: its process gets SIGKILL then."""
    also: Path | None = None
    """A log of the command's, whose end is shown too."""


@dataclass(frozen=True)
class Result:
    name: str
    state: Literal["ok", "failed", "too long"]
    seconds: float
    found: dict[str, Any] = field(default_factory=dict)
    why: str = ""
    tail: str = ""
    peak: int | None = None
    """The most bytes of a GPU that were taken, by whoever."""


def run(stage: Stage, log: Path, environment: Mapping[str, str], used: Callable[[], int | None] | None) -> Result:
    """
    Args:
        log: where the command's output goes.
        used: reads the bytes of the GPU that are taken, None where the driver does not answer; None without a GPU.
    """
    began, peak, state = time.monotonic(), None, "failed"
    with log.open("w") as out:
        process = subprocess.Popen(
            stage.command,
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                if stage.kill_at is not None and stage.kill_at():
                    process.kill()
                    state = "killed"
                    break
                if time.monotonic() - began > stage.limit_s:
                    state = "too long"
                    break
                taken = used() if used else None
                peak = peak if taken is None else max(peak or 0, taken)
                time.sleep(POLL_S)
        finally:
            if state != "killed":
                _end(process)
        process.wait()
    seconds = time.monotonic() - began
    if state == "too long":
        why = f"it had not ended after {stage.limit_s:.0f} s, its limit"
        return Result(stage.name, "too long", seconds, why=why, tail=tail_of(log, stage.also), peak=peak)
    if stage.kill_at is not None and state != "killed":
        why = f"it ended (exit status {process.returncode}) before it could be killed"
        return Result(stage.name, "failed", seconds, why=why, tail=tail_of(log, stage.also), peak=peak)
    if process.returncode and state != "killed":
        why = f"exit status {process.returncode}"
        return Result(stage.name, "failed", seconds, why=why, tail=tail_of(log, stage.also), peak=peak)
    try:
        return Result(stage.name, "ok", seconds, found=stage.read(log.read_text(errors="replace")), peak=peak)
    except (LookupError, OSError, TypeError, ValueError) as error:
        why = f"what it left behind cannot be read: {error!r}"
        return Result(stage.name, "failed", seconds, why=why, tail=tail_of(log, stage.also), peak=peak)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command and its session's processes."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_S)


def tail_of(*logs: Path | None) -> str:
    parts = []
    for log in logs:
        if log is not None and log.is_file():
            lines = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
            parts.append("\n".join([f"{log.name}:", *lines]))
    return "\n".join(parts)
