"""Reads the files in a run's folder, any of which may be incomplete.

The run may still be running, or may have been killed. Leaves out how they are shown (`figures`, `page`).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from agentgrpo.json_text import parse_json
from agentgrpo.stats import wilson_interval
from dbbench_adapter.datatypes import Score
from sql_agent.datatypes import success_of
from sql_agent.settings.load import load_config
from sql_agent.settings.train import TrainConfig

Row = dict[str, Any]
State = Literal["running", "finished", "stopped"]


@dataclass(frozen=True)
class HeldOut:
    """Holds one validation: how many of the held-out tasks the greedy policy solved."""

    step: int
    solved: int
    judged: int

    @property
    def success(self) -> float:
        return self.solved / self.judged

    @property
    def when(self) -> str:
        return when(self.step)

    @property
    def interval(self) -> tuple[float, float]:
        """Return Wilson's 95 % interval."""
        return wilson_interval(self.solved, self.judged)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.success:.0%} ({low:.0%} to {high:.0%}, {self.solved} of {self.judged})"


@dataclass(frozen=True)
class HeldOutReward:
    """Holds one validation where there is no judge: the mean reward of the greedy policy."""

    step: int
    mean: float
    rollouts: int
    """Those that have a reward."""

    @property
    def when(self) -> str:
        return when(self.step)

    def __str__(self) -> str:
        return f"{self.mean:.2f} (mean of {self.rollouts})"


def when(step: int) -> str:
    return f"after {step} step{'s' * (step != 1)}" if step else "before"


@dataclass(frozen=True)
class Change:
    """Compares the results of the same held-out tasks at two validations, of one run or of two."""

    tasks: int
    gained: int
    """Tasks solved only at the second one."""
    lost: int
    """Tasks solved only at the first one."""

    @property
    def p_value(self) -> float:
        """Return McNemar's exact test, two-sided: the chance of a split this uneven if both are equally likely."""
        n = self.gained + self.lost
        tail = sum(comb(n, k) for k in range(min(self.gained, self.lost) + 1))
        return min(1.0, 2 * tail / 2**n)

    @property
    def clarity(self) -> str:
        clear = "clear" if self.p_value < 0.05 else "not clear"
        return f"{clear} (McNemar's exact test, p = {self.p_value:.2g})"

    def __str__(self) -> str:
        return f"{self.gained} of {self.tasks} tasks solved anew, {self.lost} no longer: {self.clarity}"


@dataclass(frozen=True)
class Run:
    folder: Path
    config: TrainConfig
    facts: Row
    """run.json: run id, commit, start, device, command."""
    metrics: list[Row]
    """metrics.jsonl, one row per train step."""
    trajectories: list[Row]
    unreadable: int
    """Lines of trajectories that are not JSON; a killed run leaves one."""
    state: State

    @property
    def step(self) -> int:
        return self.metrics[-1]["train_step"]

    @property
    def held_out(self) -> list[HeldOut]:
        """The validations, the one before training first."""
        return held_out(self.metrics)

    @property
    def measured(self) -> tuple[str, Sequence[HeldOut | HeldOutReward]]:
        """Return what the validations measured, success or where there is no judge the reward, and their results."""
        if points := self.held_out:
            return "held-out success", points
        return "held-out reward", held_out_rewards(self.metrics)

    @property
    def change(self) -> Change | None:
        """From the first validation to the last; None if there are not two."""
        return change(self.trajectories)

    @property
    def checkpoints(self) -> list[Path]:
        """Hugging Face folders, oldest first."""
        folders = self.folder.glob("checkpoints/global_step_*/actor/huggingface")
        return sorted(folders, key=lambda folder: int(folder.parts[-3].rsplit("_", 1)[1]))

    @property
    def report(self) -> Path:
        """The page that `agentgrpo report` writes."""
        return self.folder / "report.html"


def read_run(folder: Path | str) -> Run:
    """Read the folder of a run.

    Raises:
        ValueError: this is not the folder of a run, or its first step has not ended.
    """
    folder = Path(folder)
    rows = read_metrics(folder / "metrics.jsonl")
    for name in ("config.yaml", "run.json"):
        if not (folder / name).is_file():
            raise ValueError(f"{folder / name} does not exist; expected the folder of a training run (--run-dir)")
    try:
        config = load_config(folder / "config.yaml")
    except ValidationError as error:
        what = error.errors()[0]["msg"]
        raise ValueError(
            f"{folder / 'config.yaml'} holds settings that this version refuses ({what}); report the run with the "
            "version that wrote it (run.json names the commit), or correct the file"
        ) from None
    trajectories, unreadable = read_trajectories(folder / "trajectories")
    try:
        facts = parse_json((folder / "run.json").read_text())
    except ValueError as error:
        raise ValueError(
            f"{folder / 'run.json'} is no JSON ({error}); if the run is just starting, try again in a moment"
        ) from None
    if not isinstance(facts, dict):
        raise ValueError(f"{folder / 'run.json'} holds a {type(facts).__name__}, expected an object with a run's facts")
    state: State = "finished" if rows[-1]["train_step"] >= config.trainer.steps else "stopped"
    return Run(folder, config, facts, rows, trajectories, unreadable, "running" if is_running(folder) else state)


def is_running(folder: Path) -> bool:
    """Return whether a training command holds the folder's lock (`sql_agent.startup.run_dir.claim`)."""
    try:
        lock = os.open(folder / ".lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(lock)


def read_lines(file: Path) -> tuple[list[Row], int]:
    """Return the lines of a file that name their train step, and the number of other lines.

    Numbers that are not finite become None, because a browser's JSON does not know them.
    """
    rows, unreadable = [], 0
    for line in filter(str.strip, file.read_text(encoding="utf-8", errors="replace").split("\n")):
        try:
            row = parse_json(line, parse_constant=lambda _: None)
        except ValueError:
            row = None
        if isinstance(row, dict) and isinstance(row.get("train_step"), int):
            rows.append(row)
        else:
            unreadable += 1
    return rows, unreadable


def read_metrics(file: Path) -> list[Row]:
    """Read one row per train step; if a step has two lines, they are merged, and the later number counts.

    Raises:
        ValueError: the file does not exist, or is still empty.
    """
    if not file.is_file():
        raise ValueError(f"{file} does not exist; is that a run directory, and has its first step ended?")
    rows: dict[int, Row] = {}
    for row in read_lines(file)[0]:
        numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
        rows[row["train_step"]] = rows.get(row["train_step"], {}) | numbers
    if not rows:
        raise ValueError(f"{file} holds no row of metrics; the run has not ended a step yet, or this is another file")
    return [rows[step] for step in sorted(rows)]


def read_trajectories(folder: Path) -> tuple[list[Row], int]:
    """Read every saved rollout in the order of steps, and count the unreadable lines.

    A validation that was repeated after a resume has each task twice; the later one counts.
    """
    found: list[Row] = []
    unreadable = 0
    for file in sorted(folder.glob("*_*.jsonl"), key=lambda file: (file.stem.split("_")[1], file.stem)):
        lines, bad = read_lines(file)
        rows = [row for row in lines if isinstance(row.get("task_id"), str)]
        unreadable += bad + len(lines) - len(rows)
        found += {row["task_id"]: row for row in rows}.values() if file.stem.startswith("val_") else rows
    return found, unreadable


def held_out(rows: Sequence[Row]) -> list[HeldOut]:
    found = []
    for row in rows:
        if judged := round(row.get("val/rollout/judged") or 0):
            found.append(HeldOut(row["train_step"], round(row["val/rollout/success"] * judged), judged))
    return found


def held_out_rewards(rows: Sequence[Row]) -> list[HeldOutReward]:
    return [
        HeldOutReward(row["train_step"], row["val/reward/mean"], round(row["val/rollout/count"] * judged))
        for row in rows
        if "val/reward/mean" in row
        and not row.get("val/rollout/judged")
        and (judged := 1 - row.get("val/reward/unjudged_frac", 0.0))
    ]


def solved(row: Row) -> bool | None:
    """Return whether a trajectory's task is solved; None if nobody can tell, as of a lost rollout."""
    score = row.get("score") or {}
    success = success_of(Score(score.get("value"), score.get("reason") or "", score.get("parts") or {}))
    return None if success is None else success == 1


def change(trajectories: Sequence[Row]) -> Change | None:
    """Return the change of the held-out tasks from the first validation to the last; None if there are not two."""
    results: dict[int, dict[str, bool]] = {}
    for row in trajectories:
        if row.get("validate") and (right := solved(row)) is not None:
            results.setdefault(row["train_step"], {})[row["task_id"]] = right
    if len(results) < 2:
        return None
    before, after = results[min(results)], results[max(results)]
    pairs = [(before[task], after[task]) for task in before if task in after]
    return Change(len(pairs), sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)) if pairs else None
