"""From the command to the first train step, by phase, with and without the LLM proxy; a later step by phase; and the
batch after the last rollout. Reads what the run itself reports: its console lines and metrics.jsonl."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from scripts.bench.children import ROOT
from scripts.bench.report import Row

TIMEOUT_S = 900.0
ROLLOUTS = ("data.train_batch_size=8", "rollout.group_size=4", "rollout.redraws=0")
"""32 rollouts a step, the batch that the target for `time/batch_ready_s` speaks of."""
STEPS = 4
"""Of the run with the LLM proxy. The first step is warm by then, and only the last one writes a checkpoint."""
PHASES = {
    "time/gen_s": ("rollouts", "the longest one; agents, store and proxy beside the sampler on the same cores"),
    "time/log_prob_s": ("old log-probs", ""),
    "time/update_s": ("update", ""),
    "time/weight_sync_s": ("weights to the sampler", ""),
}
_LINE = re.compile(r"\[ *([\d.]+) s\] (.*)")


def measure(model: Path, folder: Path) -> list[Row]:
    return [*_run(model, folder, proxy=True, steps=STEPS), *_run(model, folder, proxy=False, steps=1)]


def _run(model: Path, folder: Path, *, proxy: bool, steps: int) -> list[Row]:
    name = "with the LLM proxy" if proxy else "runner tracing"
    run_dir = folder / ("startup-proxy" if proxy else "startup-runner")
    command = [sys.executable, "sql_agent/train_sql_agent.py", "--ci-fast", "--device", "cpu", "--model", str(model)]
    settings = [*ROLLOUTS, f"trainer.steps={steps}", f"trainer.save_every={steps}"]
    command += ["--run-dir", str(run_dir), *(["--llm-proxy"] if proxy else [])]
    command += [text for setting in settings for text in ("--set", setting)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr[-2000:]}")
    first, *later = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    rows = startup_rows(name, timeline(done.stdout.splitlines()), first)
    return rows + step_rows(later[:-1]) if later else rows


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


def step_rows(steps: Sequence[Mapping[str, float]]) -> list[Row]:
    """Seconds of a train step by phase, the median of these steps.

    Args:
        steps: lines of metrics.jsonl, none of which wrote a checkpoint.
    """
    phases = {name: median(step[name] for step in steps) for name in PHASES}
    whole = median(step["time/step_s"] for step in steps)
    rest = median(step["time/step_s"] - sum(step[name] for name in PHASES) for step in steps)
    tokens = median(step["perf/total_num_tokens"] for step in steps)
    which = " and ".join(f"{step['train_step']:.0f}" for step in steps)
    return [
        Row(f"a later train step (median of {which})", whole, "s", limit=f"{tokens:,.0f} tokens trained"),
        *(Row(f"... {PHASES[name][0]}", seconds, "s", limit=PHASES[name][1]) for name, seconds in phases.items()),
        Row("... the rest", rest, "s", limit="advantages, metrics, the next tasks"),
    ]
