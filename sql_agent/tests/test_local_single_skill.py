import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgrpo.checks import UsageError
from dbbench_adapter.datatypes import Score
from dbbench_adapter.generator import generate_tasks
from dbbench_adapter.tasks.load import write_tasks
from dbbench_adapter.tasks.single_skill import num_others, skills_of
from sql_agent.commands.single_skill import draw_skills, held_out_curves, read_metric_lines, training_curves
from sql_agent.credit.reinforce import take_baseline
from sql_agent.datatypes import RolloutRecord
from sql_agent.environments.dbbench import DbBench
from sql_agent.local.datatypes import GREEDY, TrainerState, UnjudgedError
from sql_agent.local.rollouts import Played
from sql_agent.local.run_folder import RunFolder
from sql_agent.local.single_skill import SingleSkill, draws, each_once, file_split, held_out_tasks, trained_skills
from sql_agent.local.trainer import Trainer
from sql_agent.settings.single_skill import ExperimentConfig, TaskConfig, said_here
from sql_agent.source.datatypes import StopError
from sql_agent.success_rate import Rate
from sql_agent.tests.records import advantage_of, make_row

ROOT = Path(__file__).parents[2]
PLAIN = ["select", "insert", "update", "delete", "where_single_condition", "order_by_single_column", "limit_only"]


# The baseline


def test_the_baseline_of_an_episode_is_its_skills_mean_before_it():
    advantages, means = take_baseline(["insert", "insert", "delete", "insert"], [1.0, -0.1, -0.3, 1.0], {}, decay=0.5)
    # insert: nothing before the first; its mean is then 1.0; (1.0 - 0.1) / 2 = 0.45 before the last; 0.725 after it
    assert advantages == pytest.approx([1.0, -0.1 - 1.0, -0.3, 1.0 - 0.45])
    assert means == pytest.approx({"insert": 0.725, "delete": -0.3})


def test_what_could_not_be_judged_changes_no_mean():
    before = {"insert": 0.2}
    assert take_baseline(["insert"], [None], before, decay=0.9) == ([None], {"insert": 0.2})
    assert before == {"insert": 0.2}


# Tasks


def test_generated_tasks_of_a_skill_show_it_with_the_fewest_others():
    tasks = draws(TaskConfig(), seed=3)
    drawn = [tasks.draw() for _ in range(30)]
    assert {skill for skill, _ in drawn} == set(PLAIN)
    others = {"update": 1, "delete": 1, "order_by_single_column": 1, "limit_only": 1}  # WHERE; LIMIT; ORDER BY
    assert all(skill in skills_of(task) for skill, task in drawn)
    assert all(num_others(skill, skills_of(task)) == others.get(skill, 0) for skill, task in drawn)
    again = draws(TaskConfig(), seed=3)
    assert [again.draw() for _ in range(30)] == drawn
    assert len({task.id for _, task in drawn}) == 30


def test_skills_come_by_their_weights():
    tasks = draws(TaskConfig(skills={"insert": 3, "delete": 1}), seed=0)
    seen = Counter(tasks.draw()[0] for _ in range(40))
    assert seen.keys() == {"insert", "delete"} and 2 < seen["insert"] / seen["delete"] < 4.5  # 3 is expected


def test_a_task_file_is_drawn_from_by_skill(tmp_path):
    write_tasks(tmp_path / "tasks.jsonl", generate_tasks(16, seed=0))
    write_tasks(tmp_path / "held_out.jsonl", generate_tasks(16, seed=0, split="held_out"))
    cfg = TaskConfig(data=tmp_path / "tasks.jsonl", held_out_data=tmp_path / "held_out.jsonl")
    assert trained_skills(cfg) == PLAIN
    tasks = draws(cfg, seed=0)
    assert all(skill in skills_of(task) for skill, task in (tasks.draw() for _ in range(20)))
    assert {skill: len(listed) for skill, listed in held_out_tasks(cfg, 1).items()} == dict.fromkeys(PLAIN, 1)


def test_what_is_held_out_is_never_trained_on_and_a_file_that_is_held_out_whole_is_refused(tmp_path):
    tasks, other = generate_tasks(16, seed=0), generate_tasks(8, seed=0, split="held_out")
    write_tasks(tmp_path / "tasks.jsonl", tasks)
    write_tasks(tmp_path / "held_out.jsonl", [*other, *tasks[:8]])
    cfg = TaskConfig(data=tmp_path / "tasks.jsonl", held_out_data=tmp_path / "held_out.jsonl")
    assert {task.id for task in each_once(file_split(cfg)[0])} == {task.id for task in tasks[8:]}
    with pytest.raises(ValueError, match=r"all tasks of .*tasks.jsonl are held out too, in .*tasks.jsonl"):
        draws(cfg.model_copy(update={"held_out_data": cfg.data}), seed=0)


def test_a_skill_without_held_out_tasks_is_named(tmp_path):
    write_tasks(tmp_path / "tasks.jsonl", generate_tasks(8, seed=0))
    cfg = TaskConfig(held_out_data=tmp_path / "tasks.jsonl", generator="synthesis", skills={"subquery_nested": 1})
    with pytest.raises(ValueError, match=r"tasks.jsonl has no tasks of subquery_nested; give a larger file"):
        held_out_tasks(cfg, 1)


@pytest.mark.parametrize("generator", ["plain", "synthesis"])
def test_held_out_tasks_share_no_table_with_those_that_are_trained_on(generator):
    cfg = TaskConfig(generator=generator, skills={"delete": 1, "select": 1})
    held_out = held_out_tasks(cfg, 3)
    assert {skill: len(tasks) for skill, tasks in held_out.items()} == {"delete": 3, "select": 3}
    trained = draws(cfg, seed=1)
    names = {table.name for _, task in (trained.draw() for _ in range(20)) for table in task.tables}
    assert not names & {table.name for tasks in held_out.values() for task in tasks for table in task.tables}


# The loop, with a policy that is scripted


class ScriptedPlayer:
    """Ends each episode as `outcomes` says, over and over; greedy ones are all correct."""

    def __init__(self, *outcomes: Score) -> None:
        self._outcomes = itertools.cycle(outcomes)
        self.sampled: list[str] = []
        self.greedy: list[str] = []

    def play(self, tasks, sampling) -> list[Played]:
        rollouts = []
        for task, how in zip(tasks, sampling, strict=True):
            (self.greedy if how == GREEDY else self.sampled).append(task.id)
            score = Score(1.0, "match") if how == GREEDY else next(self._outcomes)
            stop = "db_unavailable" if score.value is None else score.reason if score.value == 0 else "answered"
            record = RolloutRecord(task.id, task.kind, stop, score, 1, 0, [], 1, 1, 0.1, error="gone")  # pyright: ignore
            rollouts.append((record, make_row((1,), (2,), (1,), (-0.5,), 1)))
        return rollouts


class ListeningLearner:
    steps = bad_steps = 0

    def __init__(self) -> None:
        self.heard: list[list[float]] = []

    def learn(self, rows, *, temperature) -> Any:
        assert temperature == 0.7
        self.heard.append([*map(advantage_of, rows)])
        return {"policy/loss": 0.25}

    def flush(self) -> None:
        """There is nothing under way: each batch is an update."""


class ScriptedFolder(RunFolder):
    saved: list[int]

    def save(self, step, policy, learner, state) -> None:
        self.saved.append(step)


def settings(**more: Any) -> ExperimentConfig:
    tree: dict[str, Any] = {
        "language_model": {"model_path": "m"},
        "agent": {"temperature": 0.7},
        "task": {"skills": {"insert": 1}},
        "training": {"grad_accum": 4},
        "training_callback": {"stop_after_episodes": 8, "save_every": 1},
    }
    for group, values in more.items():
        tree[group] = tree.get(group, {}) | values
    return ExperimentConfig.model_validate(tree)


def trainer(player, folder, cfg: ExperimentConfig, learner=None, progress=None) -> Trainer:
    task_of = DbBench("strict").task
    return Trainer(None, learner, player, SingleSkill(cfg), folder, progress or TrainerState(), lambda _: None, task_of)  # pyright: ignore


def a_folder(path: Path, cfg: ExperimentConfig) -> ScriptedFolder:
    folder = ScriptedFolder(path, cfg, resumed=False, kind="single-skill")
    folder.saved = []
    return folder


def played(path: Path, cfg: ExperimentConfig, *outcomes: Score, progress: TrainerState | None = None):
    """Run the loop; gives player, learner, folder and progress."""
    folder = a_folder(path, cfg)
    folder.begin()
    player, learner, progress = ScriptedPlayer(*outcomes), ListeningLearner(), progress or TrainerState()
    trainer(player, folder, cfg, learner=learner, progress=progress).train()
    return player, learner, folder, progress


RIGHT, WRONG, LOST = Score(1.0, "match"), Score(0.0, "answered"), Score(None, "db_unavailable")


def test_without_a_baseline_the_advantages_are_the_rewards_and_what_was_not_judged_is_counted(tmp_path):
    out_of_rounds = Score(0.0, "max_turns")
    _, learner, folder, progress = played(tmp_path, settings(), RIGHT, WRONG, out_of_rounds, LOST)
    assert learner.heard == [[1.0, -0.1, -0.3], [1.0, -0.1, -0.3]]
    assert progress == TrainerState(batches=2, unjudged={"db_unavailable": 2})
    line = read_metric_lines(folder.metrics)[1]
    timing = {name: line.pop(name) for name in ("time/play_s", "time/update_s", "at")}
    assert all(seconds >= 0 for seconds in timing.values())
    assert line == {
        "train_step": 2,
        "update": 2,
        "episodes": 8,
        "reward/mean": pytest.approx(0.2),  # (1.0 - 0.1 - 0.3) / 3
        "reward/unjudged": {"db_unavailable": 2},
        "success": {"n": 4, "judged": 3, "correct": 1},
        "success/skill": {"insert": {"n": 4, "judged": 3, "correct": 1}},
        "baseline/skill": {},
        "rollout/stop": {"answered": 2, "max_turns": 1, "db_unavailable": 1},
        "train/steps": 0,
        "train/bad_steps": 0,
        "policy/loss": 0.25,
    }
    episode = json.loads(folder.trajectories.read_text().splitlines()[3])
    assert (episode["update"], episode["skill"], episode["reward"]) == (1, "insert", None)
    assert episode["score"]["reason"] == "db_unavailable"


def test_each_reward_is_a_setting(tmp_path):
    rewards = {"correct": 2.0, "incorrect": -1.0, "out_of_rounds": -0.5, "malformed": -0.25}
    cfg = settings(task={"rewards": rewards})
    outcomes = RIGHT, WRONG, Score(0.0, "max_turns"), Score(0.0, "malformed")
    assert played(tmp_path, cfg, *outcomes)[1].heard[0] == [2.0, -1.0, -0.5, -0.25]


def test_a_reward_of_ones_own_replaces_them_and_a_stop_names_the_settings(tmp_path):
    (tmp_path / "my.py").write_text("def f(record):\n    return 2.5 if record.verdict else 0.5\n")
    task = {"reward": f"{tmp_path}/my.py:f", "max_lost_fraction": 0.5}
    assert played(tmp_path / "a", settings(task=task), RIGHT, WRONG)[1].heard[0] == [2.5, 0.5, 2.5, 0.5]
    with pytest.raises(StopError) as stopped:
        played(tmp_path / "b", settings(task=task), LOST)
    assert "more than task.max_lost_fraction=0.5 allows" in said_here(str(stopped.value))  # as the command says it


def test_the_running_mean_is_taken_off_in_the_order_of_the_draws(tmp_path):
    cfg = settings(training={"grad_accum": 4, "baseline": "running_mean", "baseline_decay": 0.5})
    _, learner, folder, progress = played(tmp_path, cfg, RIGHT, WRONG)
    # means before each: none, 1.0, 0.45, 0.725; after the fourth 0.3125
    assert learner.heard[0] == pytest.approx([1.0, -1.1, 0.55, -0.825])
    assert learner.heard[1][0] == pytest.approx(1.0 - 0.3125)
    assert read_metric_lines(folder.metrics)[-1]["baseline/skill"] == progress.means


def test_three_updates_without_a_verdict_stop_the_run_with_the_reason(tmp_path):
    cfg = settings(training_callback={"stop_after_episodes": 40})
    with pytest.raises(UnjudgedError, match=r"last 3 updates could be judged \(db_unavailable: gone\).*--resume"):
        played(tmp_path, cfg, LOST)
    assert len(read_metric_lines(tmp_path / "logs" / "metrics.jsonl")) == 3


def test_it_is_evaluated_before_the_first_update_every_so_often_and_after_the_last(tmp_path):
    callback = {
        "evaluate_every": 2, "evaluate_tasks_per_skill": 3, "stop_after_episodes": 20, "save_every": 3
    }  # fmt: skip
    player, _, folder, _ = played(tmp_path, settings(training_callback=callback), RIGHT)
    assert [line["update"] for line in read_metric_lines(folder.metrics) if "held_out" in line] == [0, 2, 4, 5]
    assert len(player.greedy) == 4 * 3
    assert folder.saved == [3, 5]


def test_a_resumed_run_meets_the_tasks_that_were_still_to_come(tmp_path):
    whole = played(tmp_path / "whole", settings(), RIGHT)[0].sampled
    assert played(tmp_path / "rest", settings(), RIGHT, progress=TrainerState(batches=1))[0].sampled == whole[4:]


def test_a_resumed_run_may_change_its_callback_and_nothing_else(tmp_path):
    RunFolder(tmp_path, settings(), resumed=False).begin()
    RunFolder(tmp_path, settings(training_callback={"stop_after_episodes": 80}), resumed=True)
    with pytest.raises(UsageError, match="was started with seed = 0, now it is 1"):
        RunFolder(tmp_path, settings().model_copy(update={"seed": 1}), resumed=True)


def test_a_task_under_two_skills_is_played_once_and_counts_for_both(monkeypatch, tmp_path):
    one, two = generate_tasks(2, seed=0)
    monkeypatch.setattr(
        "sql_agent.local.single_skill.held_out_tasks", lambda *_: {"select": [one, two], "insert": [two]}
    )
    player = ScriptedPlayer()
    cfg = settings(training_callback={"evaluate_every": 1})
    line, said = SingleSkill(cfg).evaluate(trainer(player, a_folder(tmp_path, cfg), cfg).measure, 3)
    assert player.greedy == [one.id, two.id]
    assert (line["update"], line["episodes"], line["held_out"]) == (3, 12, rate(2, 2, 2))
    assert line["held_out/skill"] == {"select": rate(2, 2, 2), "insert": rate(1, 1, 1)}
    assert said.startswith("held-out after 3 updates: 100.0% of 2")


def test_evaluation_leaves_the_random_generator_as_it_was(tmp_path):
    class Dicing(ScriptedPlayer):
        def play(self, tasks, sampling):
            torch.rand(3)
            return super().play(tasks, sampling)

    before = torch.get_rng_state()
    trainer(Dicing(), a_folder(tmp_path, settings()), settings()).measure(generate_tasks(1, seed=0))
    assert torch.equal(torch.get_rng_state(), before)


# The curves


def rate(n: int, judged: int, correct: int) -> dict[str, int]:
    return {"n": n, "judged": judged, "correct": correct}


LINES = [
    {"episodes": 0, "held_out": rate(4, 4, 1), "held_out/skill": {"a": rate(4, 4, 1)}},
    {"episodes": 2, "success": rate(2, 2, 1), "success/skill": {"a": rate(2, 2, 1)}},
    {"episodes": 4, "success": rate(2, 1, 1), "success/skill": {"b": rate(2, 1, 1)}},
    {"episodes": 6, "success": rate(2, 2, 2), "success/skill": {"a": rate(2, 2, 2)}},
]


def test_training_episodes_are_added_up_over_parts_of_the_run():
    assert training_curves(LINES, bins=2) == {  # two updates and one
        "all skills": [(3.0, Rate(4, 3, 2)), (6.0, Rate(2, 2, 2))],
        "a": [(3.0, Rate(2, 2, 1)), (6.0, Rate(2, 2, 2))],
        "b": [(3.0, Rate(2, 1, 1))],
    }
    assert held_out_curves(LINES) == {"all skills": [(0, Rate(4, 4, 1))], "a": [(0, Rate(4, 4, 1))]}


@pytest.mark.slow
@pytest.mark.parametrize("lines", [LINES, LINES[:1], LINES[1:]], ids=["both", "held_out_alone", "training_alone"])
def test_the_picture_is_drawn_from_whatever_there_is(lines, tmp_path):
    draw_skills(lines, tmp_path / "success.png")
    assert (tmp_path / "success.png").read_bytes().startswith(b"\x89PNG")


# With a real policy


@pytest.mark.slow
def test_the_gradient_is_that_of_reward_times_summed_log_prob_averaged_over_episodes(tmp_path):
    from sql_agent.local.learner import Learner
    from sql_agent.local.policy import Rows, load_policy
    from sql_agent.settings.local import OptimConfig
    from sql_agent.settings.single_skill import SUM_OVER_TOKENS, LanguageModelConfig
    from sql_agent.tiny_policy.make import make_tiny_policy

    make_tiny_policy(ROOT / "models" / "tiny-sql")
    model = LanguageModelConfig(model_path=str(ROOT / "models" / "tiny-sql"))
    torch.manual_seed(0)
    policy = load_policy(model.model_path, adapter=model.adapter.model_copy(update={"dropout": 0.0}), device="cpu")
    episodes = [
        make_row((5, 6), (7, 8, 9), (1, 0, 1), (-1.0, 0.0, -1.0), 1),
        make_row((5,), (7,), (1,), (-1.0,), 1),
    ]
    rewards = [1.0, -0.3]
    log_probs = policy.log_probs(Rows.of(episodes, pad_id=policy.pad_id))
    expected = torch.autograd.grad(-(1.0 * log_probs[0].sum() - 0.3 * log_probs[1].sum()) / 2, policy.parameters())

    learner = Learner(policy, OptimConfig(max_grad_norm=1e9), SUM_OVER_TOKENS)
    learner._backward([row.credited([reward]) for row, reward in zip(episodes, rewards, strict=True)], 1.0)
    for parameter, gradient in zip(policy.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
