"""The loop of greedy-then-GRPO around a policy that is scripted: what it counts, skips and stops at."""

import json

import pytest

from dbbench_adapter.datatypes import Score
from sql_agent import rewards
from sql_agent.datatypes import RolloutRecord
from sql_agent.environments.rows import RowTask
from sql_agent.local.datatypes import TrainerState, UnjudgedError
from sql_agent.local.presets import GreedyGrpo
from sql_agent.local.rollouts import Played
from sql_agent.local.run_folder import RunFolder
from sql_agent.local.trainer import Trainer
from sql_agent.settings.local import GreedyGrpoConfig, ModelConfig
from sql_agent.source.dynamic_sampling import zero_variance
from sql_agent.tests.records import make_outcome, make_result, make_row


def rollout(value, stop="answered", reason="match") -> Played:
    record = RolloutRecord("t", "k", stop, Score(value, reason), 1, 0, [], 1, 1, 0.0)
    return record, make_row((1,), (2,), (1,), (-0.5,), 1)


@pytest.mark.parametrize(
    ("value", "stop", "reward"),
    [
        (1.0, "answered", 1.0),
        (0.0, "answered", -1.0),
        (0.0, "max_turns", -0.8),
        (0.0, "max_tokens", -1.0),
        (0.0, "malformed", -0.2),
        (1.0, "max_tokens", 1.0),
        (None, "db_unavailable", None),
        # wrong + verdict x (correct - wrong): -1 + .5 x 2; -.8 + .5 x 1.8
        (0.5, "answered", 0.0),
        (0.5, "max_tokens", 0.0),
        (0.5, "max_turns", pytest.approx(0.1)),
    ],
)
def test_rewards(value, stop, reward):
    record, _ = rollout(value, stop)
    assert rewards.reward(record, GreedyGrpo.values).value == reward


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1.0, 1.0], "all_right"),
        ([0.0, 0.0], "all_wrong"),
        ([0.5, 0.5], "all_wrong"),
        ([1.0, None], None),
        ([None, None], None),
    ],
)
def test_a_zero_variance_group_says_why(values, reason):
    assert zero_variance([make_result("g", make_outcome(value, verdict=value)) for value in values]) == reason


class Scripted:
    """Plays what it is given, a list of rollouts per call."""

    def __init__(self, *played) -> None:
        self._played = iter(played)

    def play(self, tasks, sampling):
        return next(self._played)


def test_with_nobody_to_judge_it_stops_at_the_third_task(tmp_path):
    cfg = GreedyGrpoConfig(model=ModelConfig(model_path="x"), run_dir=tmp_path / "run", group_size=2)
    folder = RunFolder(cfg.run_dir, cfg, resumed=False)
    folder.begin()
    right, lost = [rollout(1.0)] * 3, [rollout(None, "db_unavailable", "db_unavailable")] * 3
    task = RowTask("t", "k", {"prompt": "?"})
    learner, progress = type("Learner", (), {"steps": 0, "bad_steps": 0})(), TrainerState()
    player = Scripted(lost, lost, right, lost, lost, lost)
    with pytest.raises(UnjudgedError, match=r"last 3 tasks could be judged \(db_unavailable: .*go on with --resume"):
        preset = GreedyGrpo(cfg, [task] * 8, [])
        Trainer(None, learner, player, preset, folder, progress, lambda line: None, lambda _: task).train()  # pyright: ignore
    assert (progress.batches, progress.judged, progress.correct) == (6, 1, 1)
    assert progress.skipped == {"unjudged": 5, "all_right": 1}
    assert len(folder.metrics.read_text().splitlines()) == 6


def test_a_reward_of_ones_own_replaces_the_four_values_and_a_zero_variance_group(tmp_path, monkeypatch):
    (tmp_path / "my.py").write_text(
        "from itertools import count\nplace = count()\n\n\ndef f(record):\n    return float(next(place) > 5)\n"
    )
    reward = f"{tmp_path}/my.py:f"
    cfg = GreedyGrpoConfig(run_dir=tmp_path / "run", group_size=2, reward=reward, max_resamples=1, eval_tasks=1)
    folder = RunFolder(cfg.run_dir, cfg, resumed=False, kind="greedy-grpo")
    folder.begin()
    monkeypatch.setattr(folder, "save", lambda *_: None)
    task, other = (RowTask(name, "k", {"prompt": "?"}) for name in ("t", "u"))
    learner = type("Learner", (), {"steps": 1, "bad_steps": 0, "flush": lambda _: None, "learn": lambda *_, **__: {}})
    # before: 0 and 0, greedy and at temperature 1; the task: 0, and 0 and 0 of its group; the one in its place: 0 and 1
    right, progress = rollout(1.0), TrainerState()
    player = Scripted([right], [rollout(0.0)], [right] * 3, [right] * 2, [right], [rollout(0.0)])
    preset = GreedyGrpo(cfg, [task, other], [task])
    preset.num_batches = 1
    Trainer(None, learner(), player, preset, folder, progress, lambda line: None, lambda _: task).train()  # pyright: ignore
    before, line, _ = (json.loads(row) for row in folder.metrics.read_text().splitlines())
    assert (before["val/rollout/success"], before["held_out/sampled"]["correct"]) == (1.0, 0)
    assert (line["task_id"], line["reward/f"], line["group/skipped"]) == ("t", 0.0, {})  # of the task drawn first
    kept = [json.loads(row) for row in folder.trajectories.read_text().splitlines()]
    assert [row["mode"] for row in kept if row["validate"]] == ["greedy", "greedy"]
    kept = [row for row in kept if not row["validate"]]
    assert [(row["mode"], row["reward"], row["set_aside"]) for row in kept] == [
        ("greedy", 0.0, None), ("sampled", 0.0, "all_right"), ("sampled", 0.0, "all_right"),
        ("sampled", 0.0, None), ("sampled", 1.0, None),
    ]  # fmt: skip


def test_progress_is_read_from_checkpoints_of_earlier_versions():
    greedy = {"place": 7, "correct": 2, "judged": 6, "skipped": None, "unjudged_in_a_row": 1}
    assert TrainerState.from_state(greedy) == TrainerState(batches=7, correct=2, judged=6, unjudged_in_a_row=1)
    single = {"updates": 3, "episodes": 24, "means": {"insert": 0.5}, "unjudged": {}, "unjudged_in_a_row": 0}
    assert TrainerState.from_state(single) == TrainerState(batches=3, means={"insert": 0.5})
