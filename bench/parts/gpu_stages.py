"""Runs a command within a limit, kills it where that is the stage's purpose, and writes the page of how all ended."""

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
    discards: Path | None = None
    """A model's folder whose weights no later stage needs."""


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
    elif stage.kill_at is not None and state != "killed":
        why = f"it ended (exit status {process.returncode}) before it could be killed"
    elif process.returncode and state != "killed":
        why = f"exit status {process.returncode}"
    else:
        try:
            return Result(stage.name, "ok", seconds, found=stage.read(log.read_text(errors="replace")), peak=peak)
        except (LookupError, OSError, TypeError, ValueError) as error:
            why = f"what it left behind cannot be read: {error!r}"
    ended = "too long" if state == "too long" else "failed"
    return Result(stage.name, ended, seconds, why=why, tail=tail_of(log, stage.also), peak=peak)


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


METRICS = {
    "time/rollout_s": "rollouts, s",
    "time/log_prob_s": "old log-probs, s",
    "time/update_s": "update, s",
    "time/weight_sync_s": "weight sync, s",
    "time/step_s": "step, s",
    "perf/total_num_tokens": "tokens trained on",
    "perf/throughput": "tokens of the step a second",
    "engine/probs_diff_mean": "probability of a sampled token, sampler against trainer: mean difference",
    "engine/probs_diff_max": "... largest difference",
    "engine/kl_k3": "... k3",
    "actor/perf/max_memory_allocated_gb": "memory of the trainer's tensors at most, GiB",
    "actor/perf/max_memory_reserved_gb": "... held by torch, GiB",
}
"""Metrics of a train step that the page shows, and what they are."""


def write_page(
    title: str,
    machine: Mapping[str, str],
    results: Sequence[Result],
    steps: Mapping[str, Mapping[str, float]],
    estimate: str,
    stages: int,
) -> str:
    """
    Args:
        results: of the stages so far.
        steps: the metrics of each train step, by what the page calls it.
        estimate: of the memory that a GPU needs, in words.
        stages: how many there are.
    """
    passed = sum(result.state == "ok" for result in results)
    parts = [
        f"# {title}",
        f"{passed} of {stages} stages passed.",
        "## Machine",
        _table(("what", "found"), machine.items()),
        "## Stages",
        _table(("stage", "result", "seconds", "found"), map(_row, results)),
    ]
    if steps:
        names = [name for name in METRICS if any(name in metrics for metrics in steps.values())]
        rows = [(METRICS[name], *(_number(metrics.get(name)) for metrics in steps.values())) for name in names]
        parts += ["## Train steps", _table(("what", *steps), rows)]
    parts += ["## Memory, estimated before the run", estimate]
    for result in results:
        if result.state != "ok":
            fence = "`" * 4  # a log may hold three of them
            parts += [f"## {result.name}: {result.state}", result.why, f"{fence}text\n{result.tail}\n{fence}"]
    return "\n\n".join(parts) + "\n"


def _row(result: Result) -> tuple[str, ...]:
    found = [f"{name} {value}" for name, value in result.found.items()] or [result.why]
    if result.peak is not None:
        found.append(f"of a GPU {result.peak / 2**30:.1f} GiB were taken at most")
    return result.name, result.state, f"{result.seconds:.0f}", "; ".join(found)


def _table(header: Sequence[str], rows: Any) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
