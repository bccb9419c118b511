"""How long a run still takes: small sums, made by hand."""

import json
from types import SimpleNamespace

from agentgrpo.run_folder import read_start
from sql_agent.settings.main_job import TrainerConfig
from sql_agent.step_times import StepTimes, measured, run_left, step_left, steps_that_fit, times_due, validations_left
from sql_agent.verl_side.planned_steps import PlannedSteps

STEP = {"time/step_s": 100.0, "time/gen_s": 50.0, "time/log_prob_s": 10.0, "time/update_s": 30.0}
TEN = TrainerConfig(steps=10, val_every=4, save_every=5)


def test_validations_come_every_so_many_steps_and_at_the_end():
    assert times_due(4, after=0, steps=10) == 3  # 4, 8, 10
    assert times_due(4, after=4, steps=10) == 2
    assert times_due(5, after=5, steps=10) == 1
    assert [times_due(0, after=0, steps=10), times_due(4, after=10, steps=10)] == [0, 0]
    assert [validations_left(TEN, 0, first=True), validations_left(TEN, 8, first=False)] == [4, 1]


def test_means_are_those_of_the_last_five_steps_without_their_checkpoints():
    first = {"val/time/rollout_s": 20.0}
    slow = {**STEP, "time/step_s": 900.0}
    saved = {**STEP, "time/step_s": 110.0, "time/checkpoint_s": 10.0, "val/time/rollout_s": 40.0, "timing_s/ref": 5.0}
    assert measured([first, slow, STEP, STEP, STEP, STEP, saved]) == StepTimes(
        100.0, 30.0, 10.0, {"rollouts": 50.0, "log-probs": 11.0, "update": 30.0}
    )


def test_what_was_not_measured_is_not_estimated():
    assert measured([]) == StepTimes()
    assert run_left(TEN, 0, measured([{"val/time/rollout_s": 20.0}])) is None
    assert run_left(TEN, 1, measured([STEP])) is None  # three validations are ahead, and none was measured
    assert step_left(StepTimes(), "rollouts", 0.5) is None


def test_the_run_takes_its_steps_validations_and_checkpoints():
    seen = measured([{"val/time/rollout_s": 20.0}, STEP])
    assert run_left(TEN, 1, seen) == 9 * 100 + 3 * 20
    assert run_left(TEN, 1, measured([{**STEP, "time/checkpoint_s": 7.0, "val/time/rollout_s": 20.0}])) == (
        9 * 93 + 3 * 20 + 2 * 7
    )
    assert run_left(TEN, 10, measured([STEP])) == 0.0


def test_a_step_has_left_the_rest_of_its_phase_and_what_follows():
    seen = measured([STEP])
    assert step_left(seen, "rollouts", 0.0) == 100.0
    assert step_left(seen, "rollouts", 0.5) == 75.0
    assert step_left(seen, "update", 0.5) == 25.0  # half of 30, then 10 for weights
    assert step_left(StepTimes(10.0, phases={"rollouts": 12.0, "log-probs": 0.0, "update": 0.0}), "update", 0.5) == 0.0


def test_as_many_steps_fit_as_end_in_time_with_the_last_validation():
    seen, trainer = StepTimes(100.0, 20.0), TrainerConfig(steps=10, val_every=10, save_every=0)
    assert steps_that_fit(trainer, 1, seen, 320.0) == 4  # 3 x 100 + 20
    assert steps_that_fit(trainer, 1, seen, 319.0) == 3
    assert steps_that_fit(trainer, 1, seen, 5.0) == 2  # the last one is always a step that was not begun
    assert steps_that_fit(trainer, 1, seen, 9000.0) == 10
    assert steps_that_fit(trainer, 1, StepTimes(100.0), 300.0) == 4  # no validation was measured


def test_a_run_of_given_minutes_ends_with_the_last_step_that_fits_as_its_steps_turn_out(tmp_path, monkeypatch):
    class Trainer:
        total_training_steps = 10

        def fit(self):
            return "fitted"

    now = SimpleNamespace(time=lambda: 1100.0)  # 100 s after the start
    monkeypatch.setattr("sql_agent.verl_side.planned_steps.time", now)
    (tmp_path / "run.json").write_text('{"kind": "train"}')
    planned = PlannedSteps(tmp_path, TrainerConfig(steps=10, val_every=10, save_every=0, minutes=10), began_s=1000.0)
    planned.install(Trainer)
    trainer = Trainer()
    assert trainer.fit() == "fitted"
    planned.take(0, {"val/time/rollout_s": 20.0})
    assert planned.steps == trainer.total_training_steps == 10
    planned.take(1, STEP)  # 480 s of the 500 are for steps
    assert planned.steps == trainer.total_training_steps == read_start(tmp_path)["steps"] == 5
    now.time = lambda: 1350.0
    planned.take(2, STEP | {"time/step_s": 200.0})  # 150 s each by now, and 230 are left
    assert planned.steps == trainer.total_training_steps == read_start(tmp_path)["steps"] == 3


def test_a_resumed_run_of_given_minutes_counts_the_validation_that_an_earlier_start_measured(tmp_path, monkeypatch):
    now = SimpleNamespace(time=lambda: 1000.0)
    monkeypatch.setattr("sql_agent.verl_side.planned_steps.time", now)
    (tmp_path / "run.json").write_text('{"kind": "train"}')
    rows = [{"train_step": 0, "val/time/rollout_s": 200.0}, {"train_step": 1, **STEP}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    planned = PlannedSteps(tmp_path, TrainerConfig(steps=10, val_every=10, save_every=0, minutes=10), began_s=1000.0)
    planned.install(trainer := type("Trainer", (), {"fit": lambda self: None}))
    trainer().fit()
    planned.take(2, STEP)  # 600 s: four steps of 100 s and 200 s of validation
    assert planned.steps == 6
