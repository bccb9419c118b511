"""How long a run takes is said before it begins, at the speed of the last one: by hand, and as files remember it.

A person with a stranger's schema waited 43 minutes for a first step, whose dry run had said "time: not known".
"""

import json

import pytest

from sql_agent.settings.main_job import ClusterConfig, EngineConfig, TrainerConfig
from sql_agent.startup.pace import Pace, Work, expected, kind_of, pace_of, remember, remembered
from sql_agent.startup.plan import describe_time
from sql_agent.startup.progress import Progress
from sql_agent.step_times import StepTimes

WORK = Work(tasks=8, rollouts=64, held_out=20, prompt_tokens=250.0, response_limit=100)
# 64 rollouts of 50 tokens are 3,200; with 8 prompts of 100 tokens 4,000
STEP = {
    "time/step_s": 60.0, "time/gen_s": 32.0, "time/update_s": 20.0, "time/checkpoint_s": 5.0,
    "rollout/response_tokens": 50.0, "prompt_length/mean": 100.0,
}  # fmt: skip
PACE = Pace({"rollouts": 100.0, "update": 200.0}, other_s=3.0, response_tokens=50.0, rollouts=64, run="runs/before")


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    return tmp_path / "settings" / "agentgrpo" / "pace.json"


def test_the_pace_of_a_step_counts_its_own_prompts(tmp_path):
    assert pace_of(STEP, WORK, tmp_path) == PACE._replace(run=str(tmp_path))


@pytest.mark.parametrize(
    "missing", [pytest.param("time/step_s", id="a_validation"), pytest.param("rollout/response_tokens", id="all_lost")]
)
def test_what_was_not_measured_leaves_no_pace(tmp_path, missing):
    assert pace_of({name: value for name, value in STEP.items() if name != missing}, WORK, tmp_path) is None


def test_rollouts_beside_an_update_leave_no_pace(tmp_path):
    assert pace_of(STEP | {"time/overlap_s": 3.0}, WORK, tmp_path) is None


@pytest.mark.parametrize(
    ("work", "times"),
    [
        # 3,200 tokens at 100 a second; 8 x 250 + 3,200 at 200; 3 s between; 20 x 50 tokens held out
        (WORK, StepTimes(61.0, 10.0, None, {"rollouts": 32.0, "log-probs": 0.0, "update": 26.0})),
        # replies end after 25 tokens at the latest: 1,600 of them
        (
            WORK._replace(response_limit=25),
            StepTimes(37.0, 5.0, None, {"rollouts": 16.0, "log-probs": 0.0, "update": 18.0}),
        ),
    ],
    ids=["longer_prompts", "shorter_replies"],
)
def test_other_prompts_and_replies_take_other_times(work, times):
    assert expected(PACE, work) == times


def test_a_plan_and_a_run_say_it_before_the_first_step():
    trainer = TrainerConfig(steps=10, val_every=5, val_before_train=True)
    assert describe_time(trainer, WORK, "a kind") == (
        "time: not known before the run's first step, since no run of this kind was measured on this machine"
    )
    remember("another kind", PACE._replace(other_s=1000.0))
    remember("a kind", PACE)
    # 10 x 61 + 3 x 10 = 640 s
    assert describe_time(trainer, WORK, "a kind") == (
        "time: about a step 61 s; a validation 10 s; the run 11 min, without start-up; at the speed of runs/before"
    )
    given = trainer.model_copy(update={"minutes": 8})
    assert describe_time(given, WORK, "a kind") == (
        "time: about a step 61 s; a validation 10 s; the run at most 8 min; at the speed of runs/before"
    )
    run = Progress(trainer, [], 0, lambda: 0.0, rollouts=64, updates=1, expected=expected(PACE, WORK))
    assert run.ahead() == (
        "ahead: 10 train steps of 64 rollouts and 3 validations, about 11 min at the speed of the last run of such a "
        "model here"
    )
    run.take_rollouts({"step": 1, "validate": False, "done": 16, "of": 64, "lost": 0, "resampled": 0})
    # a quarter of 32 s is over; behind this step nine others and two validations
    assert run.now() == "step 1/10: 16 of 64 rollouts; left: step 53 s, run 10 min"
    run.record_step(1, {"time/step_s": 200.0, "time/gen_s": 100.0, "time/update_s": 100.0})
    assert run.run_left_s == 9 * 200 + 2 * 10


def test_a_file_that_cannot_be_read_or_written_costs_the_forecast_alone(file):
    remember("a kind", PACE)
    assert remembered("a kind", WORK) == PACE
    without_speeds = json.dumps({"a kind": PACE._asdict() | {"tokens_per_s": None}})
    stands_still = json.dumps({"a kind": PACE._asdict() | {"tokens_per_s": {"rollouts": 0.0}}})
    for broken in ("{", '{"a kind": {"speed": 1}}', "[]", without_speeds, stands_still):
        file.write_text(broken)
        assert remembered("a kind", WORK) is None
        remember("a kind", PACE)
        assert remembered("a kind", WORK) == PACE
    file.unlink()
    file.parent.rmdir()
    file.parent.write_text("no folder")
    remember("a kind", PACE)
    assert remembered("a kind", WORK) is None


def test_many_rollouts_are_not_foretold_from_few():
    """Eight are sampled side by side in about the time of one."""
    remember("a kind", PACE)
    for rollouts, known in ((8, False), (32, True), (128, True), (512, False)):
        assert (remembered("a kind", WORK._replace(rollouts=rollouts)) is not None) == known


def test_a_pace_holds_for_runs_that_are_alike(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    engine, cluster = EngineConfig(), ClusterConfig()

    def kind(weights=135_000_000, trained="all trained", engine=engine, cluster=cluster, *, cpu=True):
        return kind_of(tmp_path, weights, trained, engine, cluster, cpu=cpu)

    others = [
        kind(weights=270_000_000), kind(trained="an adapter"), kind(engine=EngineConfig(precision="float32")),
        kind(cluster=ClusterConfig(workers_per_node=2)), kind(cpu=False),
    ]  # fmt: skip
    assert kind().startswith("llama of 135,000,000 weights, all trained, ")
    assert len({kind(), *others}) == 6
    assert kind(cluster=ClusterConfig(ray_address="auto")) is None
