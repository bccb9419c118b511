"""A training run's progress: one line per phase, one per step, and alarms.

Between these lines a terminal has one live line; a log gets a line of progress where nothing else was printed for
`QUIET_S`.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from agentgrpo.durations import format_time
from agentgrpo.printed_commands import agentgrpo_command
from agentgrpo.run_folder import earlier_steps
from sql_agent.report.reading import ZERO_VARIANCE_PAGE, had_zero_variance, nothing_learnt_in
from sql_agent.rewards import MASKED
from sql_agent.settings.main_job import TrainerConfig
from sql_agent.source.metrics import WINDOW
from sql_agent.startup.pace import Work, expected, pace_of, remember, remembered
from sql_agent.startup.progress import Progress
from sql_agent.verl_side.micro_batch_file import read_progress

QUIET_S = 30.0
_ERASE = "\r\x1b[K"


class Console:
    """Prints the events of `sql_agent.lightning.algorithm`.

    Args:
        run_id: the run whose training worker reports micro-batches.
        done: steps that a resumed run has behind it.
        updates: of a train step.
        work: of a train step.
        kind: the model and the machine, as `kind_of` names them; None: the pace is neither known nor remembered.
    """

    def __init__(
        self,
        run_dir: Path,
        trainer: TrainerConfig,
        run_id: str,
        done: int,
        *,
        updates: int,
        work: Work,
        kind: str | None = None,
    ) -> None:
        self.run_dir, self.steps, self.started = run_dir, trainer.steps, psutil.Process().create_time()
        self._run_id, self._printed_at = run_id, time.monotonic()
        self._most, self._minutes = trainer.steps, trainer.minutes
        rows = earlier_steps(run_dir / "metrics.jsonl") if done else []
        self._zero_variance = sum(map(had_zero_variance, rows))
        self._work, self._kind = work, kind
        pace = remembered(kind, work) if kind else None
        self._progress = Progress(
            trainer,
            rows,
            done,
            time.monotonic,
            rollouts=work.rollouts,
            updates=updates,
            expected=expected(pace, work) if pace else None,
        )
        self._live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self._alarmed: set[str] = set()

    def show(self, event: dict[str, Any]) -> None:
        progress = self._progress
        progress.take_micro_batches(read_progress(self._run_id))
        match event["event"]:
            case "phase":
                self._say(event["name"])
                if event["name"] == "first rollouts":
                    self._print(f"{'':11}{progress.ahead()}")
            case "rollouts":
                progress.take_rollouts(event)
                self._draw()
            case "tick":
                self._draw()
            case "step":
                self._plan(event["steps"])
                self._step(event["step"], event["metrics"])
            case "finished":
                self._say("done")
                if self._zero_variance:
                    self._print(f"{'':11}{nothing_learnt_in(self._zero_variance, self.steps)}")
                report = agentgrpo_command("report", self.run_dir)
                self._print(f"rollouts: {self.run_dir}/trajectories\nnext: {report}")
            case "failed":
                progress.end()
                self._say(f"failed: {event['error']}")
            case "stopped":
                self._erase()

    def _plan(self, steps: int) -> None:
        if steps != self.steps:
            if self.steps == self._most:  # the first plan; the steps' own lines show how it changes
                self._print(
                    f"{'':11}the run ends with step {steps} of {self._most}, the last that fits into "
                    f"{self._minutes:g} minutes"
                )
            self.steps = steps
            self._progress.plan(steps)

    def _step(self, step: int, metrics: dict[str, float]) -> None:
        self._progress.record_step(step, metrics)
        if self._kind and (pace := pace_of(metrics, self._work, self.run_dir)) is not None:
            remember(self._kind, pace)
        line = step_line(step, self.steps, metrics)
        if (left_s := self._progress.run_left_s) and "time/step_s" in metrics:
            line += f"  {format_time(left_s)} left"
        self._say(line)
        if "time/step_s" not in metrics and step < self.steps:  # the validation before training
            self._print(f"{'':11}{self._progress.ahead()}")
        if had_zero_variance(metrics):
            self._zero_variance += 1
            if self._zero_variance == 1:
                self._print(f"{'':11}{NOTHING_LEARNT}")
        alarmed = {name for name in ALARMS if metrics.get(name, name in self._alarmed)}
        for name in alarmed - self._alarmed:
            self._say(f"ALARM: {ALARMS[name]}")
        self._alarmed = alarmed

    def _say(self, line: str) -> None:
        seconds = time.time() - self.started  # since the command started, imports included
        self._print(f"[{seconds:6.1f} s] {line}")

    def _print(self, line: str) -> None:
        self._erase()
        print(line, flush=True)
        self._printed_at = time.monotonic()

    def _draw(self) -> None:
        if (now := self._progress.now()) is None:
            return
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            print(f"{_ERASE}{now[:width]}", end="", flush=True)
        elif time.monotonic() - self._printed_at >= QUIET_S:
            self._print(f"{'':11}{now}")

    def _erase(self) -> None:
        if self._live:
            print(_ERASE, end="", flush=True)


# Messages by metric, printed each time that the metric changes to 1.
ALARMS = {
    "reward_model/alarm": f"over the last {WINDOW} steps the reward model's score rose while correctness fell; the "
    "policy learns to please the scorer. Read the trajectories; lower reward_model.weight or train the scorer on them",
    "rollout/lost/reward_error": f"{MASKED}. trajectories/ has the tracebacks (`reward_error`)",
    "engine/alarm": "sampler and trainer give the sampled tokens different probabilities, so the policy is trained on "
    "samples that are not its own. Compare engine/kl_k3 over the steps: it grows if weights do not reach the sampler, "
    "and stays constant if the sampler's dtype or template differs",
}
LINE = [
    ("reward/mean", "reward {:.3f}"),
    ("rollout/success", "success {:.1%}"),
    ("reward_model/score_mean", "score {:.2f}"),
    ("group/zero_std_frac", "zero variance {:.0%}"),
    ("policy/kl_k1", "KL {:.1e}"),
    ("policy/entropy", "entropy {:.3f}"),
    ("policy/clip_frac", "clip {:.3f}"),
    ("policy/grad_norm", "grad {:.2f}"),
    ("val/rollout/success", "held-out success {:.1%}"),
]
NOTHING_LEARNT = (
    "nothing was learnt from the rewards of this step: every group had zero variance, which means that all its "
    f"rewards are equal and no rollout is better than another; {ZERO_VARIANCE_PAGE}"
)


def step_line(step: int, steps: int, metrics: dict[str, float]) -> str:
    # Numbers that were not measured are left out.
    parts = [form.format(metrics[name]) for name, form in LINE if name in metrics]
    if "val/reward/mean" in metrics and "val/rollout/success" not in metrics:  # there is no judge
        parts.append(f"held-out reward {metrics['val/reward/mean']:.2f}")
    if lost := metrics.get("reward/unjudged_frac", 0.0):
        parts.append(f"unjudged {lost:.0%}{_reasons(metrics)}")
    if unscored := metrics.get("reward_model/unscored_frac", 0.0):
        parts.append(f"without score {unscored:.0%}")
    if "time/step_s" in metrics:
        phases = [("rollouts", "time/gen_s"), ("log-probs", "time/log_prob_s"), ("update", "time/update_s")]
        inner = ", ".join(f"{label} {metrics[name]:.1f}" for label, name in phases if name in metrics)
        parts.append(f"{metrics['time/step_s']:.1f} s ({inner})")
    return f"step {step}/{steps}  " + "  ".join(parts)


def _reasons(metrics: dict[str, float]) -> str:
    prefix = "rollout/lost/"
    counts = {name.removeprefix(prefix): count for name, count in metrics.items() if name.startswith(prefix)}
    ordered = sorted(counts.items(), key=lambda reason: (-reason[1], reason[0]))
    return f" ({', '.join(f'{name} {count:.0f}' for name, count in ordered)})" if ordered else ""
