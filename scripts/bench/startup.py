"""From the command to the first train step, by phase, with and without the LLM proxy; and the batch after the last
rollout. Reads what the run itself reports: its console lines and metrics.jsonl."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.bench.children import ROOT
from scripts.bench.report import Row

TIMEOUT_S = 900.0
ROLLOUTS = ("--set", "data.train_batch_size=8", "--set", "rollout.group_size=4")
"""32 rollouts a step, the batch that the target for `time/batch_ready_s` speaks of."""
_LINE = re.compile(r"\[ *([\d.]+) s\] (.*)")


def measure(model: Path, folder: Path) -> list[Row]:
    return [row for proxy in (True, False) for row in _run(model, folder, proxy=proxy)]


def _run(model: Path, folder: Path, *, proxy: bool) -> list[Row]:
    name = "with the LLM proxy" if proxy else "runner tracing"
    run_dir = folder / ("startup-proxy" if proxy else "startup-runner")
    command = [sys.executable, "sql_agent/train_sql_agent.py", "--ci-fast", "--device", "cpu", "--model", str(model)]
    command += ["--run-dir", str(run_dir), *ROLLOUTS, *(["--llm-proxy"] if proxy else [])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr[-2000:]}")
    metrics = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    return startup_rows(name, timeline(done.stdout.splitlines()), metrics)


def timeline(lines: Sequence[str]) -> list[tuple[float, str]]:
    """(seconds since the command, what began) of each progress line; a step line marks its end."""
    found = [_LINE.fullmatch(line.strip()) for line in lines]
    return [(float(match[1]), match[2]) for match in found if match]


def startup_rows(name: str, events: Sequence[tuple[float, str]], metrics: dict[str, Any]) -> list[Row]:
    """One row to the end of the first step, one per phase before it, one for the idle time after the last rollout.

    Args:
        name: of the run, first in each row with a target.
        events: from `timeline`.
        metrics: the step's line of metrics.jsonl.
    """
    end = next(at for at, what in events if what.startswith("step 1/"))
    limit = "imports: torch, verl and vLLM in several processes"
    rows = [Row(f"{name}: command to the end of the first train step", end, "s", 120.0, limit=limit)]
    starts = [(0.0, "reading tasks and settings"), *events]
    for (at, what), (until, _) in itertools.pairwise(starts):
        if at >= end:
            break
        rows.append(Row(f"... {what}", until - at, "s"))
    count = int(metrics["rollout/count"])
    ready = Row(
        f"{name}: last rollout's end to batch ready, {count} rollouts",
        metrics["time/batch_ready_s"],
        "s",
        0.3,
        limit="polling, reading spans, stitching",
    )
    return [*rows, ready]
