"""How long the steps of a run of the main job take, from its metrics, and how long the rest takes.

A number that was not measured yet is None, and so is every sum that needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Literal

from sql_agent.settings.main_job import TrainerConfig

Phase = Literal["rollouts", "log-probs", "update"]
# The phases of a step in order, and the metrics of their seconds; `timing_s/ref` is verl's name.
PHASES: dict[Phase, tuple[str, ...]] = {
    "rollouts": ("time/gen_s",),
    "log-probs": ("time/log_prob_s", "timing_s/ref"),
    "update": ("time/update_s",),
}
# Steps that a mean is taken over: rollouts become shorter or longer as the policy learns.
RECENT = 5


@dataclass(frozen=True)
class StepTimes:
    step_s: float | None = None
    """A step without validation and checkpoint."""
    validation_s: float | None = None
    checkpoint_s: float | None = None
    phases: dict[Phase, float] = field(default_factory=dict)

    def or_else(self, expected: StepTimes) -> StepTimes:
        """Fill in what is expected where nothing was measured."""
        step = expected if self.step_s is None else self
        validation_s = expected.validation_s if self.validation_s is None else self.validation_s
        return StepTimes(step.step_s, validation_s, self.checkpoint_s, step.phases)


def measured(rows: Sequence[dict[str, float]]) -> StepTimes:
    steps = [row for row in rows if "time/step_s" in row][-RECENT:]
    validations = [row["val/time/rollout_s"] for row in rows if "val/time/rollout_s" in row][-RECENT:]
    saved = [row["time/checkpoint_s"] for row in rows if "time/checkpoint_s" in row][-RECENT:]
    return StepTimes(
        mean(row["time/step_s"] - row.get("time/checkpoint_s", 0.0) for row in steps) if steps else None,
        mean(validations) if validations else None,
        mean(saved) if saved else None,
        {phase: mean(sum(row.get(name, 0.0) for name in names) for row in steps) for phase, names in PHASES.items()}
        if steps
        else {},
    )


def times_due(every: int, after: int, steps: int) -> int:
    """Count the validations or checkpoints after step `after`: every so many steps and at the end; 0: never."""
    if not every or after >= steps:
        return 0
    return steps // every - after // every + (steps % every > 0)


def validations_left(trainer: TrainerConfig, done: int, *, first: bool) -> int:
    """Count the validations that are ahead once `done` steps are logged.

    Args:
        first: whether the one before training is ahead.
    """
    return first + times_due(trainer.val_every, done, trainer.steps)


def run_left(trainer: TrainerConfig, done: int, seen: StepTimes) -> float | None:
    """Seconds from the end of step `done` to the end of the run; None if a part was not measured.

    A checkpoint that was not measured counts as nothing: it takes seconds, and the first one comes late.
    """
    validations = validations_left(trainer, done, first=False)
    if seen.step_s is None or (validations and seen.validation_s is None):
        return None
    saves = times_due(trainer.save_every, done, trainer.steps)
    return (
        (trainer.steps - done) * seen.step_s
        + validations * (seen.validation_s or 0.0)
        + saves * (seen.checkpoint_s or 0.0)
    )


def whole_run(trainer: TrainerConfig, seen: StepTimes) -> float | None:
    """Seconds from the first rollouts to the end; None if a part is not known."""
    left_s = run_left(trainer, 0, seen)
    first_s = seen.validation_s if trainer.val_before_train else 0.0
    return None if left_s is None or first_s is None else left_s + first_s


def steps_that_fit(trainer: TrainerConfig, done: int, seen: StepTimes, seconds: float) -> int:
    """The last step of a run that ends within so many seconds after step `done`; at least one step is ahead.

    A validation that was not measured counts as nothing.
    """
    known, last = seen.or_else(StepTimes(validation_s=0.0)), min(done + 1, trainer.steps)
    while last < trainer.steps:
        left_s = run_left(trainer.model_copy(update={"steps": last + 1}), done, known)
        if left_s is None or left_s > seconds:
            break
        last += 1
    return last


def step_left(seen: StepTimes, phase: Phase, fraction: float) -> float | None:
    """The seconds to the end of a step of which a fraction of one phase is done; None before the first step."""
    if seen.step_s is None:
        return None
    order = list(PHASES)
    before = sum(seen.phases[earlier] for earlier in order[: order.index(phase)])
    return max(0.0, seen.step_s - before - fraction * seen.phases[phase])
