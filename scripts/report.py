"""What a training run achieved: `python -m scripts.report RUN_DIR`.

Reads metrics.jsonl, config.yaml and run.json; writes report.md and curve.png beside them and prints where things are.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reward_model.stats import wilson_interval

SERVE = "vllm serve {model} --enable-auto-tool-choice --tool-call-parser hermes --host 127.0.0.1"
SERVE_CPU = "VLLM_CPU_KVCACHE_SPACE=1 {serve} --dtype float32 --enforce-eager"


@dataclass(frozen=True)
class HeldOut:
    """One validation: how many of the held-out tasks were solved, greedily."""

    step: int
    solved: int
    judged: int

    @property
    def success(self) -> float:
        return self.solved / self.judged

    def __str__(self) -> str:
        low, high = wilson_interval(self.solved, self.judged)
        return f"{self.success:.0%} ({low:.0%} to {high:.0%}, {self.solved} of {self.judged})"


def read_metrics(file: Path) -> list[dict[str, Any]]:
    """One row per train step; where a step was logged again after a resume, its later numbers.

    Raises:
        ValueError: no such file, or nothing in it yet.
    """
    if not file.is_file():
        raise ValueError(f"{file} does not exist; is that a run directory, and has its first step ended?")
    rows: dict[int, dict[str, Any]] = {}
    for row in map(json.loads, file.read_text().splitlines()):
        rows[row["train_step"]] = rows.get(row["train_step"], {}) | row
    if not rows:
        raise ValueError(f"{file} is empty; the run has not ended a step yet")
    return [rows[step] for step in sorted(rows)]


def held_out(rows: Sequence[dict[str, Any]]) -> list[HeldOut]:
    found = []
    for row in rows:
        if "val/rollout/success" in row:
            judged = round(row["val/rollout/count"] * (1 - row["val/reward/unjudged_frac"]))
            found.append(HeldOut(row["train_step"], round(row["val/rollout/success"] * judged), judged))
    return found


def checkpoints(run_dir: Path) -> list[Path]:
    """Hugging Face folders of the run, oldest first."""
    folders = run_dir.glob("checkpoints/global_step_*/actor/huggingface")
    return sorted(folders, key=lambda folder: int(folder.parts[-3].rsplit("_", 1)[1]))


def summary(run_dir: Path, rows: Sequence[dict[str, Any]], *, cpu: bool) -> dict[str, str]:
    """Label to text, in the order in which people ask."""
    lines = {}
    points = held_out(rows)
    if points:
        lines["held-out success before"] = str(points[0])
    if len(points) > 1:
        lines[f"held-out success after {points[-1].step} steps"] = str(points[-1])
    saved = checkpoints(run_dir)
    if saved:
        lines["checkpoint"] = str(saved[-1])
    lines["metrics"] = str(run_dir / "metrics.jsonl")
    lines["trajectories"] = str(run_dir / "trajectories")
    lines["curve"] = str(run_dir / "curve.png")
    if saved:
        serve = SERVE.format(model=saved[-1])
        lines["serve it"] = SERVE_CPU.format(serve=serve) if cpu else serve
    return lines


def draw(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Training reward per step and held-out success with its 95 % interval."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    steps = [row["train_step"] for row in rows if "reward/mean" in row]
    axes.plot(steps, [row["reward/mean"] for row in rows if "reward/mean" in row], label="reward, training tasks")
    points = held_out(rows)
    if points:
        low, high = zip(*(wilson_interval(point.solved, point.judged) for point in points), strict=True)
        success = [point.success for point in points]
        spread = [
            [s - a for s, a in zip(success, low, strict=True)],
            [b - s for s, b in zip(success, high, strict=True)],
        ]
        axes.errorbar(
            [point.step for point in points], success, yerr=spread, fmt="o-", capsize=4, label="success, held-out tasks"
        )
    axes.set_xlabel("train step")
    axes.set_ylim(min(0.0, axes.get_ylim()[0]), 1.0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(file, dpi=150)


def write_report(run_dir: Path, lines: dict[str, str], run: dict[str, Any]) -> None:
    body = "\n".join(f"| {label} | {text} |" for label, text in lines.items())
    command = " ".join(run.get("argv", []))
    (run_dir / "report.md").write_text(
        f"# Run {run.get('run_id', '')} at commit {run.get('commit', 'unknown')}\n\n`{command}`\n\n"
        f"![reward and held-out success](curve.png)\n\n| | |\n| --- | --- |\n{body}\n\n"
        "Intervals are Wilson's at 95 %. Settings: config.yaml.\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.report", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run_dir", type=Path, help="what --run-dir was given to the training command")
    run_dir: Path = parser.parse_args(argv).run_dir
    try:
        rows = read_metrics(run_dir / "metrics.jsonl")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    run = json.loads((run_dir / "run.json").read_text())
    lines = summary(run_dir, rows, cpu=run["device"] == "cpu")
    draw(rows, run_dir / "curve.png")
    write_report(run_dir, lines, run)
    width = max(map(len, lines))
    for label, text in lines.items():
        print(f"{label:<{width}}  {text}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
