"""`sql_agent.startup.console`: the line of a step, and what is printed between two of them."""

import re
import sys

import pytest

from agentgrpo.machine import ROOT
from sql_agent.report.reading import had_zero_variance
from sql_agent.settings.main_job import TrainerConfig
from sql_agent.startup import console
from sql_agent.startup.console import Console, step_line
from sql_agent.startup.pace import Work


def test_a_step_without_scores_and_rewards_says_so():
    metrics = {"reward/mean": 0.5, "reward/unjudged_frac": 0.25, "reward_model/unscored_frac": 0.125}
    assert step_line(3, 10, metrics) == "step 3/10  reward 0.500  unjudged 25%  without score 12%"


def test_lost_rollouts_are_counted_by_reason_the_most_frequent_first():
    lost = {"rollout/lost/model_deadline": 1.0, "rollout/lost/db_unavailable": 20.0, "rollout/lost/a": 1.0}
    assert step_line(3, 10, {"reward/unjudged_frac": 0.33} | lost) == (
        "step 3/10  unjudged 33% (db_unavailable 20, a 1, model_deadline 1)"
    )


def test_what_was_not_measured_is_left_out():
    metrics = {"rollout/success": 0.75, "reward_model/unscored_frac": 0.0, "time/step_s": 9.0, "time/gen_s": 4.0}
    assert step_line(1, 2, metrics) == "step 1/2  success 75.0%  9.0 s (rollouts 4.0)"


def test_where_there_is_no_judge_a_validation_shows_the_held_out_reward():
    rewards = {"val/reward/mean": 0.125, "val/reward/unjudged_frac": 0.0}
    assert step_line(0, 3, rewards) == "step 0/3  held-out reward 0.12"
    assert step_line(0, 3, rewards | {"val/rollout/success": 0.5}) == "step 0/3  held-out success 50.0%"


def groups(zero_std, lone=0.0):
    return {"group/zero_std_frac": zero_std, "group/lone_frac": lone}


@pytest.mark.parametrize(
    ("metrics", "nothing"),
    [
        (groups(1.0), True),
        (groups(2 / 3, lone=1 / 3), True),  # a lone rollout has no peer to be compared with
        (groups(0.75), False),
        (groups(0.0, lone=1.0), False),  # rewards are missing, not equal; the line names the reasons
        ({"val/reward/mean": 0.0}, False),
        ({"group/trained": 0}, True),  # as the local trainers count
        ({"group/trained": 2}, False),
        # an estimator without a baseline credits equal rewards
        (groups(1.0) | {"critic/advantages/max": 1.0, "critic/advantages/min": 0.0}, False),
        (groups(1.0) | {"critic/advantages/max": 0.0, "critic/advantages/min": -1.0}, False),
        (groups(1.0) | {"critic/advantages/max": 0.0, "critic/advantages/min": 0.0}, True),
    ],
)
def test_a_zero_variance_step_has_no_group_with_two_rewards_that_differ(metrics, nothing):
    assert had_zero_variance(metrics) == nothing


def work(rollouts):
    return Work(rollouts // 8, rollouts, held_out=4, prompt_tokens=100, response_limit=64)


def test_a_run_that_learns_nothing_says_so_at_the_first_such_step_and_at_its_end(tmp_path, capsys):
    shown = Console(tmp_path, TrainerConfig(steps=3), "no-run", 0, updates=1, work=work(64))
    for step, zero_std in enumerate([0.5, 1.0, 1.0], start=1):
        shown.show({"event": "step", "step": step, "steps": 3, "metrics": {"time/step_s": 9.0} | groups(zero_std)})
    shown.show({"event": "finished"})
    said = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [line.partition("] ")[2][:10] or line for line in said[:-2]] == [
        "step 1/3  ",
        "step 2/3  ",
        "nothing was learnt from the rewards of this step: every group had zero variance, which means that all its "
        "rewards are equal and no rollout is better than another; doc/operate/troubleshooting.md says what to "
        "change, under `Success does not rise`",
        "step 3/3  ",
        "done",
        "in 2 of 3 train steps every group had zero variance, so nothing was learnt from them; "
        "doc/operate/troubleshooting.md says what to change, under `Success does not rise`",
    ]
    assert "## Success does not rise" in (ROOT / "doc/operate/troubleshooting.md").read_text()


def test_a_run_of_given_minutes_says_how_many_steps_fit(tmp_path, capsys):
    trainer = TrainerConfig(steps=20, val_every=0, save_every=0, minutes=5)
    shown = Console(tmp_path, trainer, "no-run", 0, updates=1, work=work(16))
    for step, steps in ((1, 4), (2, 5)):
        shown.show({"event": "step", "step": step, "steps": steps, "metrics": {"time/step_s": 60.0}})
    said = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [line.partition("] ")[2] or line for line in said] == [
        "the run ends with step 4 of 20, the last that fits into 5 minutes",
        "step 1/4  60.0 s ()  3 min left",
        "step 2/5  60.0 s ()  3 min left",
    ]


def test_a_run_leaves_its_pace_and_the_next_one_begins_with_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    trainer = TrainerConfig(steps=3, val_every=0, save_every=0, val_before_train=False)
    first, second = (
        Console(tmp_path, trainer, "no-run", 0, updates=1, work=work(16), kind=kind) for kind in ("a kind", None)
    )
    for shown in (second, first):  # nothing is remembered of the second
        shown.show({"event": "phase", "name": "first rollouts"})
        metrics = {"time/step_s": 60.0, "time/gen_s": 60.0, "rollout/response_tokens": 30.0}
        shown.show({"event": "step", "step": 1, "steps": 3, "metrics": metrics})
    assert capsys.readouterr().out.count("their time is not measured yet") == 2
    Console(tmp_path, trainer, "no-run", 0, updates=1, work=work(16), kind="a kind").show(EVENTS[0])
    assert "3 train steps of 16 rollouts, about 3 min at the speed of the last run" in capsys.readouterr().out


EVENTS = [
    {"event": "phase", "name": "first rollouts"},
    {"event": "rollouts", "step": 1, "validate": False, "done": 0, "of": 16, "lost": 0, "resampled": 0},
    {"event": "tick"},
    {"event": "step", "step": 1, "steps": 3, "metrics": {"reward/mean": 0.5, "time/step_s": 60.0, "time/gen_s": 9.0}},
    {"event": "finished"},
    {"event": "stopped"},
]


def printed(tmp_path, monkeypatch, capsys, *, terminal: bool, quiet_s: float) -> str:
    monkeypatch.setattr(console, "QUIET_S", quiet_s)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "executable", "/opt/bin/python")
    trainer = TrainerConfig(steps=3, val_every=0, save_every=0)
    shown = Console(tmp_path, trainer, "no-run", 0, updates=1, work=work(16))
    for event in EVENTS:
        shown.show(event)
    return re.sub(r"\[ *[\d.]+ s\]", "[T]", capsys.readouterr().out).replace(str(tmp_path), "RUN")


AHEAD = f"{'':11}ahead: 3 train steps of 16 rollouts and 1 validation; their time is not measured yet\n"
STEP = "[T] step 1/3  reward 0.500  60.0 s (rollouts 9.0)  2 min left\n"


@pytest.mark.parametrize(
    ("quiet_s", "between"),
    [(30.0, ""), (0.0, f"{'':11}step 1/3: 0 of 16 rollouts; left: not measured yet\n" * 2)],
    ids=["soon", "after_half_a_minute"],
)
def test_a_log_has_a_line_of_progress_only_where_nothing_else_was_printed(
    tmp_path, monkeypatch, capsys, quiet_s, between
):
    out = printed(tmp_path, monkeypatch, capsys, terminal=False, quiet_s=quiet_s)
    first, _, rest = out.partition(AHEAD)
    assert first == "[T] first rollouts\n"
    assert rest.startswith(between + STEP + "[T] done\nrollouts: RUN/trajectories\nnext: ")


def test_a_terminal_has_one_line_that_is_erased_before_the_next(tmp_path, monkeypatch, capsys):
    out = printed(tmp_path, monkeypatch, capsys, terminal=True, quiet_s=0.0)
    erase, live = "\r\x1b[K", "step 1/3: 0 of 16 rollouts; left: not m"  # 39 of 40 columns
    assert f"{AHEAD}{erase}{live}{erase}{live}{erase}{STEP}" in out
    assert out.endswith(erase)
