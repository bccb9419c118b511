"""What a run of the main job does now, how far it is and how long it still takes.

Events and the micro-batches of the training worker go in, lines come out. A number that was not measured yet is None,
so is every sum that needs it, and it is said to be unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentgrpo.durations import format_time
from sql_agent.settings.main_job import TrainerConfig
from sql_agent.step_times import Phase, StepTimes, measured, run_left, step_left, validations_left, whole_run
from sql_agent.verl_side.micro_batch_file import MicroBatches

# Share of a batch that has to be played before its speed says when the rest ends; the shortest rollouts end first.
ENOUGH = 0.25
# Share after which nothing is said of the rest: the rollouts that are left are the longest ones.
LONGEST = 0.9


@dataclass(frozen=True)
class Batch:
    step: int
    validate: bool
    began_s: float
    done: int = 0
    of: int = 0
    lost: int = 0
    resampled: int = 0
    """Rollouts in place of zero-variance groups, which are among `of`."""


class Progress:
    """
    Args:
        rollouts: of a step.
        updates: of a step.
        rows: the metrics of the steps that a resumed run has behind it.
        expected: how long a step and a validation take, until they are measured; None: not known.
        done: the newest of these steps.
        clock: seconds.
    """

    def __init__(
        self,
        trainer: TrainerConfig,
        rows: Sequence[dict[str, float]],
        done: int,
        clock: Callable[[], float],
        *,
        rollouts: int,
        updates: int,
        expected: StepTimes | None = None,
    ) -> None:
        self._trainer, self._clock, self._rollouts, self._updates = trainer, clock, rollouts, updates
        self._expected = expected or StepTimes()
        self._rows, self._done = list(rows), done
        self._open = trainer.minutes is not None
        """Whether how many steps fit into `trainer.minutes` is planned after the step that comes first."""
        self._batch: Batch | None = None
        self._micro: MicroBatches | None = None
        # What the worker had reported when the batch of rollouts began.
        self._earlier: MicroBatches | None = None

    def take_rollouts(self, event: dict[str, Any]) -> None:
        step, validate = event["step"], event["validate"]
        now = self._batch
        if now is None or (now.step, now.validate) != (step, validate):
            now, self._earlier = Batch(step, validate, self._clock()), self._micro
        counts = (event[name] for name in ("done", "of", "lost", "resampled"))
        self._batch = Batch(step, validate, now.began_s, *counts)

    def take_micro_batches(self, micro: MicroBatches | None) -> None:
        self._micro = micro

    def record_step(self, step: int, metrics: dict[str, float]) -> None:
        self._rows.append({name: float(value) for name, value in metrics.items()})
        self._done, self._batch = step, None

    def plan(self, steps: int) -> None:
        """Let the run end with this step."""
        self._trainer, self._open = self._trainer.model_copy(update={"steps": steps}), False

    def end(self) -> None:
        # The run has ended in the middle of the batch.
        self._batch = None

    @property
    def run_left_s(self) -> float | None:
        """Seconds after the newest step; None: not known."""
        return run_left(self._trainer, self._done, self._seen())

    def _seen(self) -> StepTimes:
        return measured(self._rows).or_else(self._expected)

    def ahead(self) -> str:
        """What is ahead, and how long it takes as far as that was measured."""
        trainer, seen = self._trainer, self._seen()
        steps = trainer.steps - self._done
        fresh = self._done == 0 and not self._rows
        validations = validations_left(trainer, self._done, first=fresh and trainer.val_before_train)
        what = f"ahead: {'at most ' * self._open}{_many(steps, 'train step')} of {self._rollouts} rollouts"
        what += f" and {_many(validations, 'validation')}" if validations else ""
        if self._open:
            return f"{what}, for {trainer.minutes:g} minutes with start-up"
        if fresh and (whole_s := whole_run(trainer, self._expected)) is not None:
            return f"{what}, about {format_time(whole_s)} at the speed of the last run of such a model here"
        if (left_s := self.run_left_s) is not None:
            return f"{what}, about {format_time(left_s)}"
        if validations and seen.validation_s is not None:
            return (
                f"{what}; the validations take about {format_time(validations * seen.validation_s)}, the steps are not "
                "measured yet"
            )
        return f"{what}; their time is not measured yet"

    def now(self) -> str | None:
        if (batch := self._batch) is None:
            return None
        if batch.validate:
            where = f"validation after step {batch.step}" if batch.step else "validation before training"
            return f"{where}: {_played(batch)}{self._validation_left(batch)}"
        phase, words, fraction = self._phase(batch)
        return f"step {batch.step}/{self._trainer.steps}: {words}{self._step_left(batch, phase, fraction)}"

    def _phase(self, batch: Batch) -> tuple[Phase, str, float]:
        """The phase of the step, how far it is in words, and its share that is done."""
        micro, earlier = self._micro, self._earlier
        if micro is None or micro == earlier:
            return "rollouts", _played(batch), _share(batch)
        done = f"{micro.done} of {_many(micro.of, 'micro-batch')}"
        share = micro.done / micro.of if micro.of else 1.0
        if micro.forward_only:
            return "log-probs", f"log-probs, {done}", share
        number = min(micro.updates - (earlier.updates if earlier else 0), self._updates)
        which = f"update {number} of {self._updates}" if self._updates > 1 else "update"
        return "update", f"{which}, {done}", (number - 1 + share) / self._updates

    def _step_left(self, batch: Batch, phase: Phase, fraction: float) -> str:
        if phase == "rollouts" and LONGEST <= fraction < 1:
            return ""
        seen = self._seen()
        in_step, in_run = step_left(seen, phase, fraction), run_left(self._trainer, batch.step - 1, seen)
        if in_step is None or seen.step_s is None:
            return _more(batch, self._clock()) if phase == "rollouts" else "; left: not measured yet"
        run = "unknown" if in_run is None or self._open else format_time(in_run - seen.step_s + in_step)
        return f"; left: step {format_time(in_step)}, run {run}"

    def _validation_left(self, batch: Batch) -> str:
        if LONGEST <= _share(batch) < 1:
            return ""
        seen = self._seen()
        after = run_left(self._trainer, batch.step, seen)
        if seen.validation_s is None:
            return _more(batch, self._clock())
        here = (1 - _share(batch)) * seen.validation_s
        run = "unknown" if after is None or self._open else format_time(after + here)
        return f"; left: {format_time(here)}, run {run}"


def _played(batch: Batch) -> str:
    resampled = [f"{batch.resampled} of them in place of zero-variance groups"] if batch.resampled else []
    said = ", ".join([*resampled, *([f"{batch.lost} lost"] if batch.lost else [])])
    return f"{batch.done} of {_many(batch.of, 'rollout')}{f' ({said})' if said else ''}"


def _share(batch: Batch) -> float:
    return batch.done / batch.of if batch.of else 0.0


def _more(batch: Batch, now_s: float) -> str:
    # Nothing else was measured yet.
    if (share := _share(batch)) < ENOUGH:
        return "; left: not measured yet"
    return f"; about {format_time((now_s - batch.began_s) * (1 - share) / share)} more for these, then unknown"


def _many(count: int, name: str) -> str:
    plural = f"{name}es" if name.endswith("ch") else f"{name}s"
    return f"{count} {name if count == 1 else plural}"
