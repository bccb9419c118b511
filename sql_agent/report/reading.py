"""Reads the files in a run's folder, any of which may be incomplete: the run may be going on, or was killed."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import comb
from pathlib import Path
from typing import Any, Literal

from agentgrpo.checkpoints import checkpoints
from agentgrpo.json_text import parse_json
from agentgrpo.run_folder import METRICS, SETTINGS, START, flat, is_running
from agentgrpo.settings import read_settings
from agentgrpo.stats import wilson_interval
from dbbench_adapter.datatypes import Score
from sql_agent.datatypes import success_of
from sql_agent.report.names import named_as_train

ZERO_VARIANCE_PAGE = "doc/operate/troubleshooting.md says what to change, under `Success does not rise`"

Row = dict[str, Any]
State = Literal["running", "finished", "stopped"]


BEFORE_TUNING = -1
"""The step at which the model stands that `agentgrpo improve` begins with; GRPO begins at 0."""
IMPROVED, ASKED_BEFORE, GRPO = "improve.json", "before.jsonl", "2-grpo"
"""Files and the run's folder in a folder of `agentgrpo improve`."""


def when(step: int) -> str:
    if step == BEFORE_TUNING:
        return "before fine-tuning"
    return f"after {step} step{'s' * (step != 1)}" if step else "before"


@dataclass(frozen=True)
class Measurement:
    """What was measured at a step, or at the validation after it."""

    step: int

    @property
    def when(self) -> str:
        return when(self.step)


@dataclass(frozen=True)
class HeldOut(Measurement):
    solved: int
    judged: int

    @property
    def success(self) -> float:
        return self.solved / self.judged

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's, 95 %."""
        return wilson_interval(self.solved, self.judged)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.success:.0%} ({low:.0%} to {high:.0%}, {self.solved} of {self.judged})"


@dataclass(frozen=True)
class HeldOutReward(Measurement):
    """A validation where there is no judge: the mean reward of the greedy policy."""

    mean: float
    rollouts: int
    """Those that have a reward."""

    def __str__(self) -> str:
        return f"{self.mean:.2f} (mean of {self.rollouts})"


@dataclass(frozen=True)
class Loss(Measurement):
    """The loss of a step, or the held-out loss after it."""

    value: float

    @property
    def when(self) -> str:
        return f"at step {self.step}"

    def __str__(self) -> str:
        return f"{self.value:.4g}"


@dataclass(frozen=True)
class ValidationChange:
    """Compares the results of the same held-out tasks at two validations, of one run or of two."""

    tasks: int
    gained: int
    """Tasks solved only at the second one."""
    lost: int
    """Tasks solved only at the first one."""

    @classmethod
    def between(cls, results: Iterable[tuple[bool | None, bool | None]]) -> ValidationChange | None:
        """Compare the tasks that have two verdicts; None is returned where there are none."""
        judged = [pair for pair in results if None not in pair]
        return cls(len(judged), judged.count((False, True)), judged.count((True, False))) if judged else None

    @property
    def p_value(self) -> float:
        """McNemar's exact test, two-sided: the chance of a split this uneven if both are equally likely."""
        n = self.gained + self.lost
        tail = sum(comb(n, k) for k in range(min(self.gained, self.lost) + 1))
        return min(1.0, 2 * tail / 2**n)

    @property
    def clarity(self) -> str:
        clear = "clear" if self.p_value < 0.05 else "not clear"
        return f"{clear} (McNemar's exact test, p = {self.p_value:.2g})"

    def __str__(self) -> str:
        return f"{self.gained} of {self.tasks} tasks newly solved, {self.lost} no longer solved: {self.clarity}"


@dataclass(frozen=True)
class Run:
    """A run of any command that trains. Metrics have the names of `train` where it measures the same."""

    folder: Path
    kind: str
    """The command, as `agentgrpo --help` names it."""
    settings: Row = field(repr=False)
    """As JSON values."""
    facts: Row = field(repr=False)
    """run.json: commit, start, device, command."""
    metrics: list[Row] = field(repr=False)
    """metrics.jsonl, one row per train step."""
    trajectories: list[Row] = field(repr=False)
    unreadable: int
    """Lines of trajectories that are not JSON; a killed run leaves one."""
    state: State

    def _repr_html_(self) -> str | None:
        """The report, for the output of a notebook's cell."""
        if not self.report.is_file():
            return None
        page = html.escape(self.report.read_text("utf-8", errors="replace"))
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 700px; border: 0"></iframe>'

    @property
    def step(self) -> int:
        return self.metrics[-1]["train_step"]

    @property
    def steps(self) -> int | None:
        """The train step at which the run is finished; None if it was not written down."""
        return self.facts.get("steps", flat(self.settings).get("trainer.steps"))

    @property
    def held_out(self) -> list[HeldOut]:
        """The validations, the one before training first."""
        return held_out(self.metrics)

    @property
    def measured(self) -> tuple[str, Sequence[Measurement]]:
        """What was measured and its results: success, where there is no judge the reward, else a loss."""
        if points := self.held_out:
            return "held-out success", points
        if rewards := held_out_rewards(self.metrics):
            return "held-out reward", rewards
        for name, metric in (("held-out loss", "val/loss"), ("loss", "loss")):
            if losses := [Loss(row["train_step"], row[metric]) for row in self.metrics if metric in row]:
                return name, losses
        return "held-out success", []

    @property
    def change(self) -> ValidationChange | None:
        """From the first validation to the last; None if there are not two."""
        return compare_validations(self.trajectories)

    @property
    def checkpoints(self) -> list[Path]:
        """Folders of saved steps, oldest first; of `train` the Hugging Face folders in them."""
        found = [*checkpoints(self.folder / "checkpoints"), *checkpoints(self.folder)]
        saved = (path / "actor/huggingface" if self.kind == "train" else path for path in reversed(found))
        return [path for path in saved if path.is_dir()]

    @property
    def model(self) -> Path | None:
        """The newest model or adapter, which every `model` takes; None before the first is written."""
        whole = [path for path in self.folder.glob("epoch_*") if path.name.removeprefix("epoch_").isdigit()]
        epochs = sorted(whole, key=lambda path: int(path.name.removeprefix("epoch_")))
        written = (*epochs[-1:], self.folder / "adapter", self.folder / "checkpoints/adapter", self.folder)
        places = (*written, *reversed(self.checkpoints))
        return next((path for path in places if any((path / name).is_file() for name in MODEL_CONFIGS)), None)

    @property
    def report(self) -> Path:
        """The page that `agentgrpo report` writes."""
        return self.folder / "report.html"


ADAPTER_CONFIG = "adapter_config.json"
MODEL_CONFIGS = (ADAPTER_CONFIG, "config.json")


def read_run(folder: Path | str) -> Run:
    """Read the folder of a run of any command that trains.

    Raises:
        ValueError: this is not the folder of a run, or its first step has not ended.
    """
    folder = Path(folder)
    folder = folder / GRPO if (folder / IMPROVED).is_file() else folder
    for name in (SETTINGS, START):
        if not (folder / name).is_file():
            raise ValueError(f"{folder / name} does not exist; expected the folder of a training run (--run-dir)")
    found = [file for name in (METRICS, f"logs/{METRICS}") if (file := folder / name).is_file()]
    rows = read_metrics(found[0] if found else folder / METRICS)
    try:
        facts = parse_json((folder / START).read_text())
    except ValueError as error:
        raise ValueError(
            f"{folder / START} is no JSON ({error}); if the run is just starting, try again in a moment"
        ) from None
    if not isinstance(facts, dict):
        raise ValueError(f"{folder / START} holds a {type(facts).__name__}, expected an object with a run's facts")
    kind = facts.get("kind", "train")  # earlier versions wrote the file for `train` alone
    settings = read_settings(folder / SETTINGS)
    trajectories, unreadable = read_trajectories(folder)
    run = Run(folder, kind, settings, facts, rows, trajectories, unreadable, "stopped")
    if is_running(folder):
        return replace(run, state="running")
    return replace(run, state="finished") if run.steps is not None and run.step >= run.steps else run


def with_start(run: Run) -> Run:
    """The run with what `agentgrpo improve` measured before fine-tuning as its first validation; others as they are."""
    folder = run.folder.resolve()
    file = folder.parent / ASKED_BEFORE
    if folder.name != GRPO or not (file.is_file() and (file.parent / IMPROVED).is_file()):
        return run
    lines = map(parse_json, filter(str.strip, file.read_text("utf-8").splitlines()))
    rows = [{**line, "train_step": BEFORE_TUNING, "validate": True} for line in lines]
    judged = [right for row in rows if (right := solved(row)) is not None]
    if not judged:
        return run
    measured = {"train_step": BEFORE_TUNING, "at": run.metrics[0].get("at", 0)}
    measured |= {"val/rollout/judged": len(judged), "val/rollout/success": sum(judged) / len(judged)}
    return replace(run, metrics=[measured, *run.metrics], trajectories=[*rows, *run.trajectories])


def read_lines(file: Path) -> tuple[list[Row], int]:
    """The lines of a file that name their train step, and the number of other lines.

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
        numbers = {name: value for name, value in named_as_train(row).items() if isinstance(value, int | float)}
        rows[row["train_step"]] = rows.get(row["train_step"], {}) | numbers
    if not rows:
        raise ValueError(f"{file} holds no row of metrics; the run has not ended a step yet, or this is another file")
    return [rows[step] for step in sorted(rows)]


def read_trajectories(folder: Path) -> tuple[list[Row], int]:
    """Read every saved rollout of a run in the order of steps, and count the unreadable lines.

    A validation that was repeated after a resume has each task twice; the later one counts.
    """
    by_step = sorted(folder.glob("trajectories/*_*.jsonl"), key=lambda file: (file.stem.split("_")[1], file.stem))
    single = [file for name in ("trajectories.jsonl", "sessions/episodes.jsonl") if (file := folder / name).is_file()]
    found: list[Row] = []
    unreadable = 0
    for file in (*by_step, *single):
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
    score = row.get("score") or {}
    success = success_of(Score(score.get("value"), score.get("reason") or "", score.get("parts") or {}))
    return None if success is None else success == 1


def compare_validations(trajectories: Sequence[Row]) -> ValidationChange | None:
    results: dict[int, dict[str, bool]] = {}
    for row in trajectories:
        if row.get("validate") and (right := solved(row)) is not None:
            results.setdefault(row["train_step"], {})[row["task_id"]] = right
    if len(results) < 2:
        return None
    before, after = results[min(results)], results[max(results)]
    return ValidationChange.between((before[task], after.get(task)) for task in before)


def nothing_learnt_in(count: int, steps: int) -> str:
    found = f"in {count} of {steps} train steps every group had zero variance, so nothing was learnt from them"
    return f"{found}; {ZERO_VARIANCE_PAGE}"


def had_zero_variance(metrics: dict[str, float]) -> bool:
    # No advantage is other than 0 where no group has two rewards that differ.
    if "group/trained" in metrics:  # of the local trainers
        return not metrics["group/trained"]
    if metrics.get("critic/advantages/max") or metrics.get("critic/advantages/min"):
        return False  # an estimator may credit equal rewards
    equal, lone = (metrics.get(f"group/{name}_frac", 0.0) for name in ("zero_std", "lone"))
    return equal > 0 and equal + lone > 1 - 1e-9
