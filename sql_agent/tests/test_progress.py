"""What a run says of itself between its steps: whole lines, the seconds worked out by hand."""

from sql_agent.settings.load import load_config
from sql_agent.startup.progress import Progress
from sql_agent.verl_side.micro_batch_file import MicroBatches

SETTINGS = ["trainer.steps=10", "trainer.val_every=5", "trainer.save_every=0"]
STEP = {"time/step_s": 100.0, "time/gen_s": 50.0, "time/log_prob_s": 10.0, "time/update_s": 30.0}
VALIDATION = {"val/time/rollout_s": 20.0}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def progress(rows=(), done=0, clock=None, *settings):
    trainer = load_config(None, [*SETTINGS, *settings]).trainer
    return Progress(trainer, rows, done, clock or Clock(), rollouts=32, updates=2)


def rollouts(step, done, of=32, lost=0, validate=False, resampled=0):
    batch = {"event": "rollouts", "step": step, "validate": validate}
    return batch | {"done": done, "of": of, "lost": lost, "resampled": resampled}


def test_before_the_first_step_it_is_said_what_comes_and_what_is_not_known():
    run = progress()
    assert run.ahead() == ("ahead: 10 train steps of 32 rollouts and 3 validations; their time is not measured yet")
    run.record_step(0, VALIDATION)
    assert run.ahead() == (
        "ahead: 10 train steps of 32 rollouts and 2 validations; the validations take about 40 s, the steps are not "
        "measured yet"
    )


def test_a_run_of_given_minutes_says_how_long_it_takes_once_its_steps_are_planned():
    run = progress([VALIDATION], 0, None, "trainer.minutes=20")
    assert run.ahead() == "ahead: at most 10 train steps of 32 rollouts and 2 validations, for 20 minutes with start-up"
    run.record_step(1, STEP)
    run.plan(4)
    assert run.ahead() == "ahead: 3 train steps of 32 rollouts and 1 validation, about 5 min"  # 3 x 100 + 20
    run.take_rollouts(rollouts(2, 16))
    assert run.now() == "step 2/4: 16 of 32 rollouts; left: step 75 s, run 5 min"


def test_a_resumed_run_knows_how_long_the_rest_takes():
    assert progress([VALIDATION, STEP], 4).ahead() == (
        "ahead: 6 train steps of 32 rollouts and 2 validations, about 11 min"  # 6 x 100 + 2 x 20
    )


def test_rollouts_say_how_many_are_done_and_lost_and_when_they_end_at_their_own_speed():
    clock = Clock()
    run = progress(clock=clock)
    assert run.now() is None
    run.take_rollouts(rollouts(0, 0, of=12, validate=True))
    assert run.now() == "validation before training: 0 of 12 rollouts; left: not measured yet"
    clock.now = 10.0
    run.take_rollouts(rollouts(0, 4, of=12, lost=1, validate=True))
    assert run.now() == (  # a third took 10 s
        "validation before training: 4 of 12 rollouts (1 lost); about 20 s more for these, then unknown"
    )


def test_rollouts_in_place_of_zero_variance_groups_are_told_from_those_that_a_step_begins_with():
    run = progress()
    run.take_rollouts(rollouts(1, 4, of=44, lost=1, resampled=12))
    assert run.now() == (
        "step 1/10: 4 of 44 rollouts (12 of them in place of zero-variance groups, 1 lost); left: not measured yet"
    )


def test_nothing_is_promised_of_the_last_tenth_of_the_rollouts_which_are_the_longest():
    clock = Clock()
    first, later = progress(clock=clock), progress([VALIDATION, STEP], 1, clock)
    for run in (first, later):
        run.take_rollouts(rollouts(2, 0))
    clock.now = 28.0
    for run in (first, later):
        run.take_rollouts(rollouts(2, 28))  # seven eighths took 28 s
    assert first.now() == "step 2/10: 28 of 32 rollouts; about 4 s more for these, then unknown"
    for run in (first, later):
        run.take_rollouts(rollouts(2, 29))
    assert [run.now() for run in (first, later)] == ["step 2/10: 29 of 32 rollouts"] * 2
    later.take_rollouts(rollouts(5, 11, of=12, validate=True))
    assert later.now() == "validation after step 5: 11 of 12 rollouts"


def test_a_step_goes_through_its_phases():
    run = progress([VALIDATION, STEP], 1)
    run.take_rollouts(rollouts(2, 16))
    # half the rollouts: 25 + 10 + 30 + 10 s; then eight steps and two validations
    assert run.now() == "step 2/10: 16 of 32 rollouts; left: step 75 s, run 15 min"
    run.take_micro_batches(MicroBatches(True, 2, 3, 4))
    assert run.now() == "step 2/10: log-probs, 3 of 4 micro-batches; left: step 42 s, run 15 min"
    run.take_micro_batches(MicroBatches(False, 2, 1, 2))
    assert run.now() == (  # the worker's second update is the second of the two that this step makes
        "step 2/10: update 2 of 2, 1 of 2 micro-batches; left: step 18 s, run 14 min"
    )


def test_updates_are_counted_from_the_beginning_of_the_step():
    run = progress([VALIDATION, STEP], 1)
    run.take_micro_batches(MicroBatches(False, 2, 5, 5))
    run.take_rollouts(rollouts(2, 32))
    assert run.now() == "step 2/10: 32 of 32 rollouts; left: step 50 s, run 15 min"
    run.take_micro_batches(MicroBatches(False, 3, 0, 5))
    assert run.now() == "step 2/10: update 1 of 2, 0 of 5 micro-batches; left: step 40 s, run 15 min"


def test_nothing_is_estimated_in_the_first_step_beyond_its_rollouts():
    run = progress([VALIDATION], 0)
    run.take_rollouts(rollouts(1, 32))
    run.take_micro_batches(MicroBatches(False, 1, 0, 1))
    assert run.now() == "step 1/10: update 1 of 2, 0 of 1 micro-batch; left: not measured yet"


def test_a_validation_between_steps_counts_what_comes_after_it():
    run = progress([VALIDATION, STEP], 4)
    run.take_rollouts(rollouts(5, 3, of=12, validate=True))
    assert run.now() == (  # 15 s here, then 5 x 100 + 20
        "validation after step 5: 3 of 12 rollouts; left: 15 s, run 9 min"
    )
    run.record_step(5, STEP | VALIDATION)
    assert run.now() is None
    assert run.run_left_s == 520.0
