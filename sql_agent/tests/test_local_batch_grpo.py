"""GRPO in batches of tasks: which episodes count, in which order tasks come, and what a run leaves behind."""

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from agentgrpo.machine import free_port
from agentgrpo.run_folder import read_start
from dbbench_adapter.datatypes import Score
from sql_agent.datatypes import OWN_REWARD, FunctionReward, RolloutRecord
from sql_agent.environments.rows import RowTask
from sql_agent.local.datatypes import TrainerState, UnjudgedError
from sql_agent.local.presets import Preset, describe_outcome, shuffled
from sql_agent.local.rollouts import Played
from sql_agent.local.run_folder import RunFolder
from sql_agent.local.trainer import Trainer
from sql_agent.rewards import NO_JUDGE
from sql_agent.settings.flags import message_formatter
from sql_agent.settings.groups import JudgeConfig, RewardModelConfig
from sql_agent.settings.local import BatchGrpoConfig, LossConfig, ModelConfig
from sql_agent.settings.main_job import RolloutConfig
from sql_agent.source.datatypes import Rollout, StopError
from sql_agent.source.scoring import Rewarder
from sql_agent.success_rate import Rate
from sql_agent.tests.records import advantage_of, make_outcome, make_result, make_row
from sql_agent.tests.test_ranking import Longest
from sql_agent.trained_on import TrainedOn, read_trained_on

TASKS = [RowTask(f"p{n}", "sum", {"prompt": f"What is {n} and 1?"}) for n in range(5)]


def rollout(value: float | None, reason: str = "x", task_id: str = "p") -> Played:
    record = RolloutRecord(task_id, "sum", "answered", Score(value, reason), 1, 0, [], 3, 2, 0.1)
    return record, make_row((1,), (2, 3), (1, 1), (-0.5, -0.5), 1)


def credited(groups: list[list[float | None]], *, scale: bool) -> list[list[float | None]]:
    """The advantages of groups with these verdicts."""
    played = [[make_result("g", make_outcome(value, verdict=value)) for value in values] for values in groups]
    cfg = BatchGrpoConfig(model=ModelConfig(model_path="x"), run_dir=Path("x"), loss=LossConfig(scale=scale))
    Preset(cfg, TASKS, []).credit(played, {})
    return [[episode.advantage for episode in group] for group in played]


def test_only_groups_with_spread_are_learnt_from():
    groups = [[1.0, 0.0, None, 0.0], [1.0] * 4, [0.0] * 4, [None] * 3 + [1.0]]
    # mean of 1, 0, 0 is 1/3; the one nobody could judge has no place in it
    found = credited(groups, scale=False)
    assert found[0] == [pytest.approx(2 / 3), pytest.approx(-1 / 3), None, pytest.approx(-1 / 3)]
    assert found[1:] == [[None] * 4] * 3


def test_scaled_advantages_are_in_stds_of_their_own_group():
    # mean 0.5, unbiased std 0.7071: (1 - 0.5) / 0.7071
    assert credited([[1.0, 0.0]], scale=True) == [pytest.approx([0.7071, -0.7071], abs=1e-4)]


def test_each_epoch_has_every_task_once_in_an_order_of_its_own():
    first, second = (shuffled(TASKS, 0, epoch) for epoch in (0, 1))
    assert sorted(p.id for p in first) == sorted(p.id for p in second) == ["p0", "p1", "p2", "p3", "p4"]
    assert first != second
    assert shuffled(TASKS, 0, 0) == first != shuffled(TASKS, 1, 0)


class World:
    """A policy, a learner and a player in one that note what they are asked for; every second rollout is right."""

    def __init__(self) -> None:
        self.steps = self.bad_steps = 0
        self.events: list[str] = []
        self.learnt: list[list[float]] = []

    def play(self, tasks, sampling):
        greedy = sampling[0].temperature == 0
        torch.rand(1)  # sampling takes random numbers, greedy or not
        self.events.append(f"{'greedy' if greedy else 'play'} {len(tasks)}")
        return [rollout(float(k % 2 == 0), "match", task.id) for k, task in enumerate(tasks)]

    def learn(self, rows, *, temperature):
        self.events.append(f"learn {len(rows)} at {temperature}")
        self.learnt.append([*map(advantage_of, rows)])
        self.steps += 1
        return {"policy/loss": 0.25}

    def task(self, fields):
        return RowTask.from_dict(fields)

    def flush(self):
        self.events.append("flush")

    def save(self, folder):
        folder.mkdir(parents=True)
        (folder / "adapter_model.safetensors").write_text("x")


def run(tmp_path, monkeypatch, world, held_out=(), **changes):
    cfg = BatchGrpoConfig(
        model=ModelConfig(model_path="x"),
        run_dir=tmp_path,
        batch_size=2,
        group_size=2,
        **changes,
    )
    folder = RunFolder(tmp_path / "run", cfg, resumed=False)
    folder.trained_on = TrainedOn(env="dbbench", learnt=("a",))
    folder.begin()
    monkeypatch.setattr(folder, "save", lambda step, *_: world.events.append(f"checkpoint {step}"))
    progress, said = TrainerState(), []
    preset = Preset(cfg, TASKS, held_out)
    try:
        Trainer(world, world, world, preset, folder, progress, said.append, world.task).train()  # pyright: ignore
    except StopError as error:
        raise type(error)(message_formatter(BatchGrpoConfig)(str(error))) from error  # as the command says it
    return folder, progress, said


def test_a_run_plays_learns_and_writes_an_adapter_after_each_epoch(tmp_path, monkeypatch):
    world = World()
    folder, progress, said = run(tmp_path, monkeypatch, world, TASKS[:3], num_epochs=2, save_every=2)
    epoch = ["play 4", "learn 4 at 0.8", "play 4", "learn 4 at 0.8", "play 2", "learn 2 at 0.8", "flush", "greedy 3"]
    first, second = epoch.copy(), epoch.copy()
    first.insert(4, "checkpoint 2")
    second.insert(2, "checkpoint 4")
    assert world.events == ["greedy 3", *first, "checkpoint 3", *second, "checkpoint 6"]
    assert sorted(path.name for path in folder.path.glob("epoch_*")) == ["epoch_1", "epoch_2"]
    assert read_trained_on(folder.path / "epoch_2") == folder.trained_on == TrainedOn(env="dbbench", learnt=("a",))
    assert progress == TrainerState(batches=6)
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert [(line["epoch"], line.get("batch")) for line in lines] == [
        (0, None), (1, 1), (1, 2), (1, 3), (1, None), (2, 1), (2, 2), (2, 3), (2, None),
    ]  # fmt: skip
    assert lines[0]["held_out"] == {"n": 3, "judged": 3, "correct": 2}
    assert lines[1]["rollout/success"] == {"n": 4, "judged": 4, "correct": 2}
    assert (lines[1]["reward/mean"], lines[1]["group/trained"], lines[1]["policy/loss"]) == (0.5, 2, 0.25)
    said_of_batch, _, left = said[1].rpartition("  ")
    assert said_of_batch == (
        "epoch 1/2  batch 1/3  correct 2 of 4  loss +0.2500  trained groups 2  skipped so far 0  not judged so far 0"
    )
    assert re.fullmatch(r"\d+ s left", left)
    kept = [json.loads(line) for line in folder.trajectories.read_text().splitlines()]
    assert [row["train_step"] for row in kept if row["validate"]] == [0] * 3 + [3] * 3 + [6] * 3
    kept = [row for row in kept if not row["validate"]]
    assert len(kept) == 2 * 5 * 2
    assert [row["advantage"] for row in kept[:2]] == pytest.approx([0.7071, -0.7071], abs=1e-4)


@pytest.mark.parametrize(("minutes", "batches", "fit"), [
    # a batch takes 60 s, an evaluation 20 s, and the first one is over when batches begin
    pytest.param(5.0, 4, "about 4 of 6 batches", id="in_the_second_epoch"),  # 20 + 4 x 60 + 20 s
    pytest.param(4.6, 3, "about 3 of 6 batches", id="at_the_end_of_the_first"),
    pytest.param(0.1, 1, None, id="one_batch_at_least"),
    pytest.param(60.0, 6, "about 6 of 6 batches", id="all"),
])  # fmt: skip
def test_a_run_of_given_minutes_ends_with_the_last_batch_that_fits(tmp_path, monkeypatch, minutes, batches, fit):
    """Its adapter, evaluation and checkpoint are there, and a report says that it is finished."""
    world, clock = World(), Clock()
    monkeypatch.setattr("sql_agent.local.trainer.time", clock)

    def play(tasks, sampling):
        clock.passed += 20.0 if sampling[0].temperature == 0 else 60.0
        return World.play(world, tasks, sampling)

    monkeypatch.setattr(world, "play", play)
    folder, progress, said = run(tmp_path, monkeypatch, world, TASKS[:3], num_epochs=2, save_every=6, minutes=minutes)
    assert progress.batches == batches
    assert world.events[-2:] == ["greedy 3", f"checkpoint {batches}"]
    assert read_trained_on(folder.path / f"epoch_{-(-batches // 3)}") == folder.trained_on
    assert read_start(folder.path).get("steps", 6) == batches
    assert [words for words in said if "fit into" in words] == ([f"{fit} fit into {minutes:g} minutes"] if fit else [])
    assert any(f"adapter of a part of epoch {-(-batches // 3)}" in words for words in said) is bool(batches % 3)


class Clock:
    """`time` for a trainer whose episodes say themselves how long they take."""

    passed = 0.0

    def perf_counter(self):
        return self.passed

    def time(self):
        return self.passed


def test_what_teaches_nothing_or_cannot_be_judged_is_counted_and_shown(tmp_path, monkeypatch):
    world = World()
    monkeypatch.setattr(
        world, "play", lambda tasks, _: [rollout(None, "no_reply") for _ in tasks[:2]] + [rollout(0.0)] * len(tasks[2:])
    )
    folder, progress, said = run(tmp_path, monkeypatch, world)
    assert progress.skipped == {"unjudged": 3, "all_wrong": 2}
    assert progress.unjudged == {"no_reply": 6}
    assert world.learnt == []
    assert "zero variance, no update  trained groups 0  skipped so far 5 (all_wrong 2, unjudged 3)" in said[2]
    assert said[2].endswith("not judged so far 6 (no_reply 6)")
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert [line["reward/mean"] for line in lines] == [0.0, 0.0, None]


def test_held_out_tasks_change_nothing_about_the_training(tmp_path, monkeypatch):
    torch.manual_seed(3)
    expected = torch.rand(4)[-1]  # three batches take three
    torch.manual_seed(3)
    run(tmp_path, monkeypatch, World(), TASKS[:3])
    assert torch.rand(1) == expected


@pytest.mark.parametrize(
    ("episodes", "words"),
    [
        pytest.param([(1.0, 1.0), (0.0, 0.0), (None, None)], "correct 1 of 2", id="the_reward_is_success"),
        # (1 - 0.3) / 2
        pytest.param([(1.0, 1.0), (-0.3, 0.0)], "correct 1 of 2  reward +0.350", id="another_preset"),
        pytest.param([(2.5, None), (0.5, None)], "success unknown  reward +1.500", id="a_reward_alone"),
        pytest.param([(None, None)], "correct 0 of 0", id="all_lost"),
    ],
)
def test_a_batch_shows_its_rewards_where_they_say_more_than_success(episodes, words):
    known = [success for _, success in episodes if success is not None]
    assert describe_outcome(Rate(len(episodes), len(known), sum(map(int, known))), episodes) == words


def test_the_reward_is_the_presets_and_a_verdict_out_of_range_loses_its_episode(tmp_path):
    cfg = BatchGrpoConfig(model=ModelConfig(model_path="x"), run_dir=tmp_path, reward="rllm")
    given = [rollout(0.0), rollout(1.5), rollout(2.5, OWN_REWARD), rollout(None)]
    rewarder = Rewarder(cfg.rollout, cfg.reward_model, threads=1)
    earned = [Rollout("g", {}, played=record) for record, _ in given]
    for each in earned:
        rewarder.reward(each, {})
    assert [each.reward for each in earned] == [-1.0, None, 2.5, None]


def test_a_reward_counts_as_a_success_from_the_number_that_the_user_gives():
    (record, _), rewards = rollout(None, NO_JUDGE), RolloutConfig(reward="my.py:f", success_reward=1.0)
    rewarder = Rewarder(rewards, RewardModelConfig(), threads=1)
    played = [Rollout("g", {}, played=record) for _ in range(2)]
    for each, number in zip(played, (1.0, 0.5), strict=True):
        rewarder.reward(each, {"f": FunctionReward(number)})
    assert [(each.reward, each.record.success) for each in played] == [(1.0, 1.0), (0.5, 0.0)]


def test_the_rollouts_of_a_group_are_ranked_where_the_reward_is_a_ranking(tmp_path, monkeypatch):
    """All are right, so nothing would be learnt without it; the judge of these tests prefers long answers."""

    def play(tasks, _):
        said = [[{"role": "assistant", "content": "word " * (k % 2)}] for k in range(len(tasks))]
        played = [rollout(1.0, "match", task.id) for task in tasks]
        return [(replace(record, messages=text), row) for (record, row), text in zip(played, said, strict=True)]

    (tmp_path / "rubric.txt").write_text("Prefer long answers.")
    world = World()
    monkeypatch.setattr(world, "play", play)
    with Longest().serve() as url:
        judge = JudgeConfig(url=url, model="big", rubric=tmp_path / "rubric.txt")
        run(tmp_path, monkeypatch, world, reward="ranking", llm_judge=judge, num_epochs=1)
    # values 0 and 1 in each group: mean 0.5, unbiased std 0.7071
    assert [sorted(group) for group in world.learnt] == [
        [pytest.approx(-0.7071, abs=1e-4)] * 2 + [pytest.approx(0.7071, abs=1e-4)] * 2,
        [pytest.approx(-0.7071, abs=1e-4)] * 2 + [pytest.approx(0.7071, abs=1e-4)] * 2,
        [pytest.approx(-0.7071, abs=1e-4), pytest.approx(0.7071, abs=1e-4)],
    ]


def test_three_batches_without_a_reward_stop_the_run_and_say_why(tmp_path, monkeypatch):
    world = World()
    monkeypatch.setattr(world, "play", lambda tasks, _: [rollout(None, "reset_error") for _ in tasks])
    with pytest.raises(UnjudgedError, match=r"no episode of the last 3 batches could be judged \(reset_error"):
        run(tmp_path, monkeypatch, world)


def test_a_batch_that_loses_too_much_stops_the_run_with_the_reason_and_its_trajectories(tmp_path, monkeypatch):
    world = World()
    monkeypatch.setattr(world, "play", lambda tasks, _: [rollout(None, "db_unavailable") for _ in tasks])
    with pytest.raises(
        StopError,
        match=r"4 of 4 rollouts were lost .*more than --max-lost-fraction 0.5 .*'db_unavailable' \(4 times\).*Is the d",
    ):
        run(tmp_path, monkeypatch, world, max_lost_fraction=0.5)
    kept = [json.loads(line) for line in (tmp_path / "run" / "trajectories.jsonl").read_text().splitlines()]
    assert [row["lost"] for row in kept] == ["db_unavailable"] * 4


def test_without_a_number_of_batches_checkpoints_come_by_time(tmp_path, monkeypatch):
    """Batches of 9 minutes were lost ten at a time."""
    clock = iter(range(0, 2000, 200))  # a batch takes 200 s
    monkeypatch.setattr("agentgrpo.checkpoints.time", SimpleNamespace(monotonic=lambda: next(clock)))
    world = World()
    run(tmp_path, monkeypatch, world, num_epochs=2)
    saved = [int(event.split()[1]) for event in world.events if event.startswith("checkpoint")]
    # batches end 200, 400, ... s after the start: 400 s since the last one at 2 and 4; epochs end with 3 and 6
    assert saved == [2, 3, 4, 6]


@pytest.mark.parametrize(("save_every", "saved"), [(10, ["checkpoint 1"]), (1, ["checkpoint 1"])])
def test_a_run_that_stops_has_saved_what_it_trained_before_and_only_once(tmp_path, monkeypatch, save_every, saved):
    world = World()
    values = iter([1.0, 0.0, 1.0, 0.0] + [None] * 4)
    monkeypatch.setattr(world, "play", lambda tasks, _: [rollout(next(values), "db_unavailable") for _ in tasks])
    with pytest.raises(StopError, match="4 of 4 rollouts were lost"):
        run(tmp_path, monkeypatch, world, max_lost_fraction=0.5, save_every=save_every)
    assert [event for event in world.events if event.startswith("checkpoint")] == saved


def test_a_seed_that_a_reward_function_sets_does_not_decide_what_is_sampled_next(tmp_path, monkeypatch):
    (tmp_path / "my.py").write_text("import torch\n\n\ndef f(record):\n    torch.manual_seed(0)\n    return 1.0\n")
    world, drawn = World(), []
    play = world.play
    monkeypatch.setattr(world, "play", lambda *asked: [drawn.append(torch.rand(1).item()), play(*asked)][1])
    run(tmp_path, monkeypatch, world, reward=f"{tmp_path}/my.py:f", num_epochs=1)
    assert len(set(drawn)) == len(drawn) > 1


def test_what_a_batch_earned_leaves_out_tasks_that_replaced_others(tmp_path, monkeypatch):
    world = World()
    values = iter([0.0, 0.0, 1.0, 0.0] + [1.0, 0.0] * 50)  # the first group has zero variance, and is replaced
    monkeypatch.setattr(world, "play", lambda tasks, _: [rollout(next(values), "match", task.id) for task in tasks])
    folder, _, _ = run(tmp_path, monkeypatch, world, max_resamples=1, num_epochs=1)
    line = json.loads(folder.metrics.read_text().splitlines()[0])
    assert line["rollout/success"] == {"n": 4, "judged": 4, "correct": 1}
    assert line["reward/mean"] == line["reward/correctness"]


def test_a_reward_model_that_is_gone_for_longer_than_pauses_stops_the_run_and_says_how_to_go_on(tmp_path, monkeypatch):
    world, said = World(), [{"role": "user", "content": "?"}, {"role": "assistant", "content": "1"}]

    def play(tasks, _):
        time.sleep(0.5)  # longer than a score may take
        return [(replace(record, messages=said), row) for record, row in (rollout(1.0) for _ in tasks)]

    monkeypatch.setattr(world, "play", play)
    gone = RewardModelConfig(url=f"http://127.0.0.1:{free_port()}", timeout_s=0.2, give_up_s=0.9)
    with pytest.raises(StopError, match=r"\(--reward-model-give-up-s 0.9\); start one .*, then go on with --resume$"):
        run(tmp_path, monkeypatch, world, reward_model=gone, num_epochs=2)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("model_deadline", "The policy was too slow for --rollout-timeout-s; raise it, or play fewer at once."),
        ("reset_error", "each rollout in trajectories.jsonl has the traceback"),
        ("odd", "run/trajectories.jsonl has every rollout."),
    ],
)
def test_a_stop_names_flags_and_files_of_this_command(reason, words, tmp_path, monkeypatch):
    world = World()
    monkeypatch.setattr(world, "play", lambda tasks, _: [rollout(None, reason) for _ in tasks])
    with pytest.raises(StopError, match=re.escape(words)):
        run(tmp_path, monkeypatch, world, max_lost_fraction=0.5)


def test_a_function_rewards_what_nobody_judges_turn_by_turn(tmp_path, monkeypatch):
    (tmp_path / "my.py").write_text(
        "from itertools import count\nplace = count()\n\n\ndef graded(record):\n    return [next(place) % 2, 1]\n"
    )
    world = World()
    row = make_row((1,), (2, 3, 4), (1, 0, 1), (-0.5, 0.0, -0.5), 2, turn_ends=(2, 4))
    record = RolloutRecord("p", "sum", "answered", Score(None, NO_JUDGE), 2, 0, [], 3, 2, 0.1)
    monkeypatch.setattr(world, "play", lambda tasks, _: [(record, row)] * len(tasks))
    monkeypatch.setattr(world, "learn", lambda rows, **_: world.learnt.extend(each.credit for each in rows) or {})
    run(tmp_path, monkeypatch, world, reward=f"{tmp_path}/my.py:graded", loss=LossConfig(scale=False), num_epochs=1)
    # turns 0, 1, 1, 1 of a group of two: mean 3/4; the first turn has what follows too: -3/4 + 1/4 and 1/4 + 1/4
    assert sorted(world.learnt[:2]) == [(0.0, -0.5, 0.0, 0.25), (0.0, 0.5, 0.0, 0.25)]
