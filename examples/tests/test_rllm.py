"""rLLM's agent and environment of DB-Bench, driven as rLLM's engine drives them, and its data sets and trainer."""

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentgrpo.printed_commands import agentgrpo_command
from dbbench_adapter.datatypes import Gold, Task
from dbbench_adapter.engines import BackendUnavailable
from dbbench_adapter.tasks.load import write_tasks
from examples.tests.rllm_loop import play
from examples.tests.rllm_tasks import ILLEGAL, LOOK, RIGHT, SELECT, TABLE, UPDATE, WRONG, answer, operate

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = Path(__file__).parent / "rllm_stand_in"  # rLLM as far as its interfaces go; an installed one comes first
sys.path += [str(STAND_IN), str(ROOT / "examples" / "rllm")]
import dbbench_bridge  # noqa: E402
from dbbench_bridge import DBBenchAgent, DBBenchEnv, UnjudgedError, reward_of, rllm_rows, task_of  # noqa: E402
from train_dbbench_rllm import unjudged_reason  # noqa: E402


def run(task, replies, **settings):
    env = DBBenchEnv(task, **settings)
    return asyncio.run(play(DBBenchAgent(), env, replies))


def live_databases():
    return dbbench_bridge._shared("sqlite").live_databases()


# rewards ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "replies", "rewards", "status"),
    [
        pytest.param(SELECT, [RIGHT], [1.0], "completed", id="right_at_once"),
        pytest.param(SELECT, [LOOK, LOOK, RIGHT], [0.0, 0.0, 1.0], "completed", id="right_in_the_last_round"),
        pytest.param(SELECT, [LOOK, WRONG], [0.0, -1.0], "completed", id="wrong"),
        pytest.param(SELECT, [LOOK] * 3, [0.0, 0.0, -0.8], "task_limit_reached", id="out_of_rounds"),
        pytest.param(SELECT, [ILLEGAL], [-0.2], "agent_validation_failed", id="illegal_at_once"),
        pytest.param(SELECT, [LOOK, ILLEGAL], [0.0, -0.2], "agent_validation_failed", id="illegal_later"),
        pytest.param(UPDATE, [operate("UPDATE fruit SET price = 7"), answer("[]")], [0.0, 1.0], "completed", id="done"),
        pytest.param(UPDATE, [answer("[]")], [-1.0], "completed", id="change_not_made"),
        pytest.param(
            UPDATE, [operate("UPDATE fruit SET price = 7")] * 3, [0.0, 0.0, -0.8], "task_limit_reached", id="no_answer"
        ),
    ],
)
def test_an_episode_pays_once_at_its_end(task, replies, rewards, status):
    trajectory, reason = run(task, replies)
    assert reason == "ENV_DONE"
    assert [step.reward for step in trajectory.steps] == rewards
    assert [step.done for step in trajectory.steps] == [False] * (len(rewards) - 1) + [True]
    assert trajectory.reward == sum(rewards)
    assert trajectory.steps[-1].info["status"] == status


@pytest.mark.parametrize(("status", "reward"), [
    # wrong + verdict x (correct - wrong): -1 + .75 x 2; -.8 + .75 x 1.8; -.2 + .75 x 1.2
    ("completed", 0.5),
    ("task_limit_reached", 0.55),
    ("agent validation failed", 0.7),
])  # fmt: skip
def test_a_verdict_between_wrong_and_right_lies_as_far_between_their_rewards(status, reward):
    assert reward_of(0.75, status) == pytest.approx(reward)
    assert reward_of(1.0, status) == 1.0


def test_under_labs_own_judge_a_right_state_counts_without_an_answer():
    trajectory, _ = run(UPDATE, [operate("UPDATE fruit SET price = 7")] * 3, judge="lab")
    assert [step.reward for step in trajectory.steps] == [0.0, 0.0, 1.0]


def test_the_text_protocol_has_the_same_ends_under_its_own_words():
    settings = {"protocol": "text", "max_rounds": 2}
    right = run(SELECT, [operate("SELECT 1"), RIGHT], **settings)[0]
    illegal = run(SELECT, [ILLEGAL], **settings)[0]
    late = run(SELECT, [LOOK, LOOK, LOOK], **settings)[0]
    assert (right.reward, illegal.reward, late.reward) == (1.0, -0.2, -0.8)
    assert illegal.steps[-1].info["status"] == "agent validation failed"


def test_an_episode_that_the_engine_ends_has_run_out_of_rounds():
    env = DBBenchEnv(SELECT)
    trajectory, reason = asyncio.run(play(DBBenchAgent(), env, [LOOK, LOOK], max_steps=2))
    assert (reason, trajectory.reward, live_databases()) == ("MAX_STEPS", -0.8, 0)


def test_a_step_that_fails_after_the_engine_gave_it_up_has_no_reward(monkeypatch):
    env = DBBenchEnv(SELECT)
    env.reset()

    def gone(reply):
        raise BackendUnavailable("the server is gone")

    monkeypatch.setattr(env._episode, "answer", gone)
    with pytest.raises(BackendUnavailable):
        env.step(LOOK)
    with pytest.raises(RuntimeError, match="task 'select': the last step failed, so the episode has no reward"):
        env.compute_final_reward()
    env.reset()
    env.step(RIGHT)
    assert env.compute_final_reward() == 1.0


WITHOUT_GOLD = Task("x", "?", "SELECT", (TABLE,), Gold())


def test_what_nobody_can_judge_is_no_reward_of_zero():
    find = agentgrpo_command("tasks validate", "FILE", "--replay", "sqlite")
    words = f"task 'x' could not be judged by 'strict': no_gold; `{find}` finds such tasks"
    with pytest.raises(UnjudgedError, match=re.escape(words)):
        run(WITHOUT_GOLD, [RIGHT])
    assert live_databases() == 0


ELSEWHERE = Task("y", "?", "UPDATE", (TABLE,), Gold(sql="UPDATE vegetables SET price = 7", table_hash="0" * 32))


@pytest.mark.parametrize(
    ("task", "settings", "reason"),
    [
        pytest.param(SELECT, {}, None, id="select"),
        pytest.param(UPDATE, {"protocol": "text"}, None, id="change"),
        pytest.param(WITHOUT_GOLD, {}, "no_gold", id="without_gold"),
        pytest.param(ELSEWHERE, {}, "reference_failed", id="a_reference_that_does_not_run"),
        pytest.param(ELSEWHERE, {"judge": "lab"}, None, id="which_lab_does_not_run"),
    ],
)
def test_a_task_that_nobody_can_judge_is_found_before_training(task, settings, reason):
    assert unjudged_reason(task, **settings) == reason
    assert live_databases() == 0


# the conversation ---------------------------------------------------------------------------------------------------


def test_each_step_continues_the_conversation_of_the_one_before():
    agent = DBBenchAgent()
    trajectory, _ = asyncio.run(play(agent, DBBenchEnv(SELECT), [LOOK, operate("SELECT * FROM vegetables"), RIGHT]))
    roles = [message["role"] for message in agent.chat_completions]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user", "assistant", "user", "assistant"]
    assert [len(step.chat_completions) for step in trajectory.steps] == [5, 7, 9]
    for step in trajectory.steps:
        assert step.chat_completions == agent.chat_completions[: len(step.chat_completions)]
    assert "Which fruit costs less than 5?" in agent.chat_completions[3]["content"]
    assert agent.chat_completions[5]["content"] == "[('Plum', 5), ('Pear', 4), ('Fig', 2)]"
    assert "vegetables" in agent.chat_completions[7]["content"]
    assert [step.action for step in trajectory.steps] == [LOOK, operate("SELECT * FROM vegetables"), RIGHT]
    assert [step.info["num_statements"] for step in trajectory.steps] == [1, 2, 2]


def test_an_agent_that_is_reset_has_forgotten_everything():
    agent = DBBenchAgent()
    asyncio.run(play(agent, DBBenchEnv(SELECT), [RIGHT]))
    agent.reset()
    assert (agent.chat_completions, agent.trajectory.steps, agent.get_current_state()) == ([], [], None)


def test_the_gold_is_nowhere_the_model_or_a_log_looks():
    secret = Task("x", "?", "SELECT", (TABLE,), Gold(rows=(("SECRET",),), answers=("SECRET",), sql="SELECT 'SECRET'"))
    agent = DBBenchAgent()
    trajectory, _ = asyncio.run(play(agent, DBBenchEnv(secret), [LOOK, WRONG]))
    assert "SECRET" not in json.dumps([agent.chat_completions, [step.info for step in trajectory.steps]])


# databases and threads ----------------------------------------------------------------------------------------------


def test_the_database_is_gone_when_the_episode_has_ended_is_closed_or_starts_again():
    env = DBBenchEnv(SELECT)
    env.reset()
    env.step(LOOK)
    env.reset()  # the engine tries a trajectory again on the same environment
    assert live_databases() == 1
    assert env.step(RIGHT)[1:3] == (1.0, True)
    assert live_databases() == 0
    env.reset()
    env.close()
    env.close()
    assert live_databases() == 0
    with pytest.raises(RuntimeError, match="no episode under way; call reset first"):
        env.step(RIGHT)


def test_many_episodes_share_a_pool_of_threads():
    async def all_at_once():
        with ThreadPoolExecutor(max_workers=8) as executor:
            episodes = [
                play(DBBenchAgent(), DBBenchEnv(SELECT), [LOOK, RIGHT if k % 2 else WRONG], executor=executor)
                for k in range(32)
            ]
            return await asyncio.gather(*episodes)

    assert DBBenchEnv.is_multithread_safe()
    assert [trajectory.reward for trajectory, _ in asyncio.run(all_at_once())] == [-1.0, 1.0] * 16
    assert live_databases() == 0


def test_a_close_waits_for_the_step_that_the_engine_gave_up(monkeypatch):
    env = DBBenchEnv(SELECT)
    env.reset()
    started, go_on = threading.Event(), threading.Event()
    step = env._episode.answer

    def slow(reply):
        started.set()
        go_on.wait(10)
        return step(reply)

    monkeypatch.setattr(env._episode, "answer", slow)
    with ThreadPoolExecutor(max_workers=2) as executor:
        stepped = executor.submit(env.step, LOOK)
        started.wait(10)
        closed = executor.submit(env.close)
        assert not closed.done()
        go_on.set()
        assert stepped.result(10)[2] is False
        closed.result(10)
    assert live_databases() == 0


# rows ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [SELECT, UPDATE], ids=lambda task: task.id)
def test_a_row_goes_through_parquet_and_back(tmp_path, task):
    rows = rllm_rows([task])
    assert all(isinstance(rows[0][name], str) for name in ("tables", "gold", "skills"))
    pq.write_table(pa.Table.from_pylist([{"extra_info": row} for row in rows]), tmp_path / "rows.parquet")
    (read,) = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    env = DBBenchEnv.from_dict({**read["extra_info"], "max_rounds": 1, "judge": "lab"})
    assert (env.task, env.judge) == (task, "lab")
    env.reset()
    assert env.step(LOOK)[1:3] == (-0.8, True)  # one round only
    assert task_of(task.to_dict()) == task  # plain values do as well


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        pytest.param({"max_round": 3}, "max_round", id="misspelt_setting"),
        pytest.param({"gold": "{"}, "Expecting property name", id="no_json"),
        pytest.param({"protocol": "fc"}, "expected lab or text: rLLM's engine passes texts", id="calls"),
    ],
)
def test_a_row_that_is_none_is_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        DBBenchEnv.from_dict({**rllm_rows([SELECT])[0], **fields})


# training -----------------------------------------------------------------------------------------------------------

TRAIN = ROOT / "examples" / "rllm" / "train_dbbench_rllm.py"


@pytest.fixture
def rllm(tmp_path):
    def command(*arguments, site=STAND_IN):
        environment = os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
        streams = {"capture_output": True, "text": True, "timeout": 120}
        return subprocess.run([sys.executable, TRAIN, *arguments], cwd=tmp_path, env=environment, **streams)

    return command


@pytest.mark.slow
def test_the_trainer_gets_real_subclasses_and_both_sets_of_tasks(tmp_path, rllm):
    write_tasks(tmp_path / "train.jsonl", [WITHOUT_GOLD, SELECT, ELSEWHERE])
    write_tasks(tmp_path / "val.jsonl", [UPDATE])
    files = [f"+dbbench.train_file={tmp_path / 'train.jsonl'}", f"+dbbench.val_file={tmp_path / 'val.jsonl'}"]
    run = rllm(*files, "+dbbench.max_rounds=2", "data.train_batch_size=16")
    assert run.returncode == 0, run.stderr
    lost = "2 of 3 tasks of split 'train' are left out, since nobody can judge them: no_gold 1, reference_failed 1"
    (warning, *trained) = run.stdout.splitlines()
    assert warning.endswith(lost)
    assert trained == ["trains on select strict 16", "trains on update strict 16"]
    early = rllm(*files, "+dbbench.protocol=text", "rllm.agent.max_steps=3")
    assert early.returncode != 0
    assert "max_rounds=3 of protocol text may take 4 replies; set rllm.agent.max_steps=4 or more" in early.stderr
    filtered = rllm(*files, "+rllm.agent.overlong_filter=true")
    assert filtered.returncode != 0
    assert "rllm.agent.overlong_filter=true pays trajectories that were cut 0" in filtered.stderr
    val = f"+dbbench.val_file={tmp_path / 'none.jsonl'}"
    write_tasks(tmp_path / "none.jsonl", [WITHOUT_GOLD])
    nothing = rllm(files[0], val)
    assert nothing.returncode != 0
    assert "none of the 1 tasks of split 'validation' can be judged (no_gold 1)" in nothing.stderr
    bare = rllm()
    assert bare.returncode != 0
    assert "train_file" in bare.stderr
    misspelt = rllm(*files, "+dbbench.juge=lab")
    assert misspelt.returncode != 0
    assert "juge" in misspelt.stderr


@pytest.mark.parametrize(("there", "lacks"), [
    pytest.param([], "No module named 'rllm'", id="none"),
    pytest.param(["agents/agent.py"], "No module named 'rllm.environments'", id="one_without_environments"),
])  # fmt: skip
def test_without_the_rllm_we_stand_on_training_says_what_to_install(rllm, tmp_path, there, lacks):
    for name in there:
        (tmp_path / "site" / "rllm" / name).parent.mkdir(parents=True)
        (tmp_path / "site" / "rllm" / name).write_bytes((STAND_IN / "rllm" / name).read_bytes())
    run = rllm(site=tmp_path / "site")
    assert run.returncode == 1
    assert run.stderr.startswith(f"error: {lacks}; this needs rLLM 0.2.1.post1, in an environment of its own: pip ")
