"""Measures the training command from outside: the time to the first train step by phase, a later step by phase, and the
memory of all processes.

The run itself reports the times, in its console lines and metrics.jsonl. Memory is PSS, which counts a page that
processes share once, so that the sum is the memory that the machine uses.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from bench.parts.children import started
from bench.parts.report import Row

TIMEOUT_S = 1800.0
SAMPLE_S = 2.0
# A step has 32 rollouts, the batch for which `time/batch_ready_s` has its target.
ROLLOUTS = ("data.train_batch_size=8", "rollout.group_size=4", "rollout.max_resamples=0")
# Steps of the run with the LLM proxy. The first step is warm by then, and only the last one writes a checkpoint.
STEPS = 4
PHASES = {
    "time/gen_s": ("rollouts", "the longest one; agents, store and proxy beside the sampler on the same cores"),
    "time/update_s": ("update", "its pass over the rows gives the old log-probs too"),
    "time/weight_sync_s": ("weights to the sampler", ""),
}
MEMORY_SETTINGS = ("trainer.steps=2", "trainer.save_every=2", "trainer.val_before_train=false", "trainer.val_every=0",
                   "data.train_batch_size=2", "rollout.max_resamples=0")  # fmt: skip
# Words of a process's title or command line, by the name of its part; the rest is driver, command, store and Ray.
ROLES = {
    "training worker": ("WorkerDict", "ActorRollout"),
    "model server": ("vLLM", "EngineCore", "VLLM"),
    "runners": ("multiprocessing",),
}
_LINE = re.compile(r"\[ *([\d.]+) s\] (.*)")


def measure(model: Path, folder: Path) -> list[Row]:
    rows = []
    for name, steps, flags in (("with the LLM proxy", STEPS, ["--llm-proxy"]), ("runner tracing", 1, [])):
        run_dir = folder / f"startup-{steps}"
        settings = (*ROLLOUTS, f"trainer.steps={steps}", f"trainer.save_every={steps}")
        lines = train(model, run_dir, settings, ["--ci-fast", *flags])
        first, *later = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
        rows += startup_rows(name, timeline(lines), first) + (step_rows(later[:-1]) if later else [])
    return rows


def measure_memory(model: Path, folder: Path) -> list[Row]:
    """The highest PSS of two steps of `configs/pretrained.yaml` on generated tasks; the second one saves."""
    highest: Counter[str] = Counter()

    def watch(pid: int) -> None:
        nonlocal highest
        found = sample(pid)
        highest |= found | Counter({"all": found.total()})

    flags = ["--llm-proxy", "--config", "sql_agent/configs/pretrained.yaml"]
    train(model, folder / "memory", MEMORY_SETTINGS, flags, watch)
    gib = {role: size / 2**30 for role, size in sorted(highest.items())}
    return [
        Row("all processes, PSS", gib.pop("all"), "GiB", 8.0),
        Row("training worker, PSS", gib.pop("training worker"), "GiB", 6.0),
        *(Row(f"... {role}", size, "GiB") for role, size in gib.items()),
    ]


def train(
    model: Path,
    run_dir: Path,
    settings: Sequence[str],
    flags: Sequence[str],
    watch: Callable[[int], None] = lambda pid: None,
) -> list[str]:
    """The lines that the training command prints; `watch` gets its pid every two seconds.

    Raises:
        RuntimeError: the command failed, or did not end in time.
    """
    command = [sys.executable, "sql_agent/train_sql_agent.py", "--device", "cpu", *flags]
    command += ["--model", str(model), "--run-dir", str(run_dir)]
    command += [text for setting in settings for text in ("--set", setting)]
    log = run_dir.with_suffix(".log")
    deadline = time.monotonic() + TIMEOUT_S
    with started(command, log) as process:
        while process.poll() is None and time.monotonic() < deadline:
            watch(process.pid)
            time.sleep(SAMPLE_S)
        if process.poll() != 0:
            late = f"was not done after {TIMEOUT_S:.0f} s"
            ended = late if process.returncode is None else f"ended with {process.returncode}"
            raise RuntimeError(f"`{' '.join(command)}` {ended}: {log.read_text()[-2000:]}")
    return log.read_text().splitlines()


def timeline(lines: Sequence[str]) -> list[tuple[float, str]]:
    """(seconds since the command, what began) of each progress line; a step line marks its end."""
    found = [_LINE.fullmatch(line.strip()) for line in lines]
    return [(float(match[1]), match[2]) for match in found if match]


def startup_rows(name: str, events: Sequence[tuple[float, str]], metrics: dict[str, Any]) -> list[Row]:
    """One row up to the first step's end, one per phase before it, one for the idle time after the last rollout.

    Args:
        name: the name of the run, which begins each row with a target.
        events: the result of `timeline`.
        metrics: the step's line of metrics.jsonl.
    """
    end = next(at for at, what in events if what.startswith("step 1/"))
    limit = "imports: torch, verl and vLLM in several processes"
    phases = itertools.pairwise([(0.0, "reading tasks and settings"), *events])
    ready = f"{name}: last rollout's end to batch ready, {int(metrics['rollout/count'])} rollouts"
    return [
        Row(f"{name}: command to the end of the first train step", end, "s", 120.0, limit=limit),
        *(Row(f"... {what}", until - at, "s") for (at, what), (until, _) in phases if at < end),
        Row(ready, metrics["time/batch_ready_s"], "s", 0.3, limit="polling, reading spans, stitching"),
    ]


def step_rows(steps: Sequence[Mapping[str, float]]) -> list[Row]:
    """The seconds of a train step by phase, the median of these steps.

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


def sample(pid: int) -> Counter[str]:
    """The bytes of PSS by role, of a process and everything below it."""
    found: Counter[str] = Counter()
    try:
        tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return found
    for process in tree:
        try:
            found[role(" ".join(process.cmdline()))] += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue  # the process has just ended
    return found


def role(title: str) -> str:
    return next((name for name, words in ROLES.items() if any(word in title for word in words)), "the rest")
