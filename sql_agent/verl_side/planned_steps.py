"""Ends verl's training with the last step that fits into `trainer.minutes`; the plan is made anew after each step."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentgrpo.run_folder import METRICS, earlier_steps, note_steps
from sql_agent.settings.main_job import TrainerConfig
from sql_agent.step_times import measured, steps_that_fit


class PlannedSteps:
    """
    Args:
        run_dir: its run.json says at which step the run is finished.
        began_s: when the run began, in seconds of `time.time()`.
    """

    def __init__(self, run_dir: Path, trainer: TrainerConfig, began_s: float) -> None:
        self.steps = trainer.steps
        self._run_dir, self._trainer, self._began_s = run_dir, trainer, began_s
        self._rows = earlier_steps(run_dir / METRICS)  # of the starts before, until this one has measured its own
        self._verl: Any = None

    def install(self, trainer: type[Any]) -> None:
        fit = trainer.fit

        def fit_as_planned(self_: Any) -> Any:
            self._verl = self_
            return fit(self_)

        trainer.fit = fit_as_planned

    def take(self, step: int, metrics: Mapping[str, float]) -> None:
        """Plan after a step, with the times of the last ones."""
        if self._trainer.minutes is None:
            return
        self._rows.append(dict(metrics))
        if "time/step_s" not in metrics or step >= self.steps:  # the validation before training, or the end
            return
        left_s = 60 * self._trainer.minutes - (time.time() - self._began_s)
        self.steps = steps_that_fit(self._trainer, step, measured(self._rows), left_s)
        self._verl.total_training_steps = self.steps
        note_steps(self._run_dir, self.steps)
