"""`sql_agent.reward_functions`: a user's function is found or refused with its line, and asked within a deadline."""

import asyncio
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from agentgrpo.checks import UsageError
from agentgrpo.printed_commands import install_command
from dbbench_adapter.datatypes import Score
from sql_agent.datatypes import FunctionReward
from sql_agent.environments.base import make_taskset
from sql_agent.lightning.agent import SqlLitAgent
from sql_agent.oracle import call, calls
from sql_agent.reward_functions import RewardRecord, RewardUnavailable
from sql_agent.reward_functions.ask import RewardFunctions
from sql_agent.reward_functions.datatypes import LoadedReward
from sql_agent.reward_functions.load import load_function
from sql_agent.rewards import NO_JUDGE
from sql_agent.settings.groups import EnvironmentSettings
from sql_agent.settings.load import dump_config, load_config
from sql_agent.startup.flags import parse_train_args, resolve
from sql_agent.startup.preflight import check_reward_source
from sql_agent.tests.records import make_record, reported
from sql_agent.train_sql_agent import main


def written(tmp_path, text):
    (tmp_path / "my.py").write_text(text)
    return f"{tmp_path}/my.py"


# found, or refused before anything expensive --------------------------------------------------------------------------


def test_a_function_of_a_file_is_found_with_its_hash_and_what_lies_beside_it(tmp_path):
    (tmp_path / "beside_my_reward.py").write_text("WORTH = 0.5\n")
    file = written(tmp_path, "from beside_my_reward import WORTH\ndef f(record, scale=2):\n    return WORTH * scale\n")
    found = load_function(f"{file}:f", timeout_s=3.0)
    assert (found.label, found.call(None), str(found.file), found.timeout_s) == ("f", 1.0, file, 3.0)
    assert len(found.sha256) == 64
    assert list(tmp_path.glob("__pycache__/my*")) == []  # nothing is left beside the user's file


def test_a_file_is_compiled_under_its_own_rules(tmp_path):
    """`from __future__ import annotations` here would leave the user's dataclasses and schemas with texts as types."""
    function = load_function(f"{written(tmp_path, 'def f(record: int) -> float: ...')}:f", timeout_s=3.0).call
    assert function.__annotations__ == {"record": int, "return": float}


def test_a_function_of_a_module_is_found_in_the_folder_the_command_is_typed_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "module_of_rewards.py").write_text("async def f(record):\n    return 1\n")
    found = load_function("module_of_rewards:f", timeout_s=3.0)
    assert (found.label, found.file) == ("f", tmp_path / "module_of_rewards.py")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(
            "def f(record):\n    return (\n",
            "my.py:2: SyntaxError: '(' was never closed: return (",
            id="syntax",
        ),
        pytest.param(
            "x = 1\nimport no_such_package\n",
            "my.py:2: importing it raised ModuleNotFoundError: No module named 'no_such_package'; if no_such_package "
            f"is a package, install it: {install_command('no_such_package')}",
            id="import_fails",
        ),
        pytest.param("import sys\n\nsys.exit(3)\n", "my.py:3: importing it raised SystemExit: 3", id="it_exits"),
        pytest.param(
            "from math import exp\ndef brief(r): ...\ndef short(r): ...\ndef _own(r): ...\n",
            "my.py has no 'f'; it defines brief, short",
            id="another_name",
        ),
        pytest.param(
            "import logging\nlog = logging.getLogger('my')\n", "my.py has no 'f'; it defines log", id="an_object"
        ),
        pytest.param("x = 1\n", "my.py has no 'f'; it defines nothing", id="no_function"),
        pytest.param("f = 0.5\n", "f in {file} is a value (float), expected a function of the", id="a_value"),
        pytest.param("class f:\n    pass\n", "f in {file} is a class, expected a function of the", id="a_class"),
        pytest.param(
            "\n\ndef f(prompts, completions):\n    return 1\n",
            "my.py:3: f(prompts, completions) cannot be called with the rollout's record alone; write `def f(record):`",
            id="two_parameters",
        ),
        pytest.param(
            "def f(completions, **kwargs):\n    return [1.0 for c in completions]\n",
            "my.py:1: f(completions, **kwargs) cannot be called with the rollout's record alone; write `def f(record)",
            id="as_in_trl",
        ),
        pytest.param(
            "def f(record): ...\ntrainer = f\ntrainer.train()\n",
            "my.py:3: trainer.train() starts a training as soon as the file is imported; put it",
            id="a_script_that_trains",
        ),
        pytest.param("def f():\n    return 1\n", "my.py:1: f() cannot be called with", id="no_parameter"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_its_line_before_anything_starts(capsys, tmp_path, text, words):
    file = written(tmp_path, text)
    assert main(["--run-dir", str(tmp_path / "run"), "--model", "nowhere", "--reward", f"{file}:f"]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith(f"error: --reward {file}:f: ")
    assert words.format(file=file) in error
    assert "\n" not in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        ("nowhere.py:f", "nowhere.py cannot be read (No such file or directory); give FILE.py:NAME, a path from /"),
        (
            "no_such_module.deep:f",
            "there is no module 'no_such_module'; install its package, give FILE",
        ),
        (
            "best",
            "config: rollout.reward: unknown reward preset 'best'; known: agent_peft, agentbench, execution, partial, ",
        ),
        (
            "my.py",
            "execution, partial, rllm, skyrl_sql, judge, ranking, or a function of yours, ",
        ),
        ("agentbench=much", "--reward agentbench=much: the weight 'much' is no number; write it as --reward my.py:con"),
        ("agentbench=nan", "--reward agentbench=nan: the weight 'nan' is no number"),
        ("agentbench=0", "no reward has a weight, so nothing would be learnt"),
        ("my.py:mean", "my.py:mean would be logged as reward/mean, the name of another number; rename it"),
        ("my.py:judge", "my.py:judge would be logged as reward/judge, the name of another number; rename it"),
        ("judge", "rollout.reward names judge, and no LLM is given; add --judge-url, --judge-model and --judge-rubric"),
    ],
)
def test_a_reward_that_is_not_there_is_refused_in_a_line(capsys, tmp_path, reward, words):
    assert main(["--run-dir", str(tmp_path), "--model", "nowhere", "--reward", reward]) == 2
    error = capsys.readouterr().err.strip()
    assert words in error
    assert "\n" not in error


def test_two_rewards_of_one_name_are_refused(capsys, tmp_path):
    assert main(["--run-dir", str(tmp_path), "--reward", "a.py:f", "--reward", "b.py:f"]) == 2
    assert "a.py:f would be logged as reward/f, the name of another number" in capsys.readouterr().err
    assert main(["--run-dir", str(tmp_path), "--reward", "a.py:f", "--reward", "a.py:f=2"]) == 2
    assert "--reward a.py:f is given twice; give it once, with its weight" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "reward"),
    [
        ([], "agentbench"),
        (["rllm"], "rllm"),
        (["rllm=1"], "rllm"),
        (["rllm=0.5"], {"rllm": 0.5}),
        (["my.py:f"], "my.py:f"),
        (["agentbench", "a=b/my.py:f=-0.2"], {"agentbench": 1.0, "a=b/my.py:f": -0.2}),
    ],
)
def test_flags_become_a_name_or_names_with_weights_which_the_config_keeps(tmp_path, flags, reward):
    cfg = resolve(parse_train_args([word for flag in flags for word in ("--reward", flag)]))
    assert cfg.rollout.reward == reward
    (tmp_path / "config.yaml").write_text(dump_config(cfg))
    assert load_config(tmp_path / "config.yaml") == cfg


def test_a_function_is_waited_for_within_the_step():
    with pytest.raises(ValueError, match=r"the wait for the reward \(400 s: .* has to be played and rewarded before"):
        load_config(None, ["rollout.reward=my.py:f", "rollout.reward_timeout_s=400"])
    assert load_config(None, ["rollout.reward_timeout_s=400"]).reward_wait_s == 0.0
    both = load_config(None, ["rollout.reward=my.py:f", "reward_model.url=http://h:1"])
    assert both.reward_wait_s == 30.0 + 30.0


def test_where_nobody_judges_a_function_is_reward_enough(tmp_path):
    (tmp_path / "my.py").write_text("def f(record): return 1.0\n")
    medical = make_taskset(EnvironmentSettings("medical"))
    with pytest.raises(UsageError, match=r"or give a function of your own, --reward FILE\.py:NAME"):
        check_reward_source(load_config(None, ["env.type=medical"]), medical)
    check_reward_source(load_config(None, ["env.type=medical", f"rollout.reward={tmp_path}/my.py:f"]), medical)


# what it gets ---------------------------------------------------------------------------------------------------------

LOOK = calls(call("execute_sql", {"query": "SELECT 4"}, "x"))
MESSAGES = [
    {"role": "system", "content": "Rules."},
    {"role": "user", "content": "Example?"},
    {"role": "assistant", "content": "An example of the prompt."},
    {"role": "user", "content": "How many?"},
    LOOK,
    {"role": "tool", "tool_call_id": "x", "content": "[(4,)]"},
    {"role": "assistant", "content": "There are 4."},
]
TASK = {"id": "t-0", "kind": "counting", "answer": "4"}


def ended(value=1.0, reason="match", **fields):
    return make_record(Score(value, reason), num_turns=2, messages=MESSAGES, **fields)


def test_the_record_has_what_the_rollout_is_and_no_wall_clock():
    record = RewardRecord.of(ended(), TASK)
    assert record == RewardRecord(
        task=TASK, messages=MESSAGES, verdict=1.0, verdict_reason="match", stop_reason="answered", num_turns=2,
        malformed_calls=0, prompt_tokens=10, completion_tokens=5,
    )  # fmt: skip
    assert record.replies == [LOOK, MESSAGES[-1]]  # and not the example of the prompt
    assert (record.answer, record.calls) == ("There are 4.", [("execute_sql", '{"query": "SELECT 4"}')])


def test_a_rollout_without_a_reply_has_no_answer():
    record = RewardRecord.of(make_record(Score(0.0, "no_reply"), num_turns=0, messages=MESSAGES[:2]), TASK)
    assert (record.replies, record.answer, record.calls) == ([], "", [])


# what it gives --------------------------------------------------------------------------------------------------------


async def said(function, timeout_s=5.0, record=None):
    asked = RewardFunctions([LoadedReward("f", function, None, "", timeout_s)], threads=4)
    return (await asked.ask(record or RewardRecord.of(ended(), TASK)))["f"]


HANGING = """
import asyncio, threading
from sql_agent.reward_functions.ask import RewardFunctions
from sql_agent.reward_functions.datatypes import LoadedReward, RewardRecord

async def ask():
    hangs = LoadedReward("f", lambda record: threading.Event().wait(), None, "", 0.2)
    record = RewardRecord({}, [], 1.0, "match", "answered", 1, 0, 10, 5)
    print((await RewardFunctions([hangs], threads=1).ask(record))["f"].reason)

asyncio.run(ask())
"""


def test_a_function_that_hangs_for_ever_does_not_keep_the_process():
    done = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "reward_deadline\n"), done.stderr


@pytest.mark.parametrize(
    ("returned", "value"),
    [(1, 1.0), (-2.5, -2.5), (True, 1.0), (np.float32(0.5), 0.5), (np.int64(3), 3.0), (np.bool_(False), 0.0)],
)
async def test_any_finite_number_is_a_reward(returned, value):
    assert await said(lambda record: returned) == FunctionReward(value)


async def test_an_error_is_logged_whole_once_and_then_counted(caplog):
    fails = RewardFunctions([LoadedReward("f", lambda record: 1 / record.num_turns, None, "")], threads=1)
    raises = RewardFunctions([LoadedReward("g", lambda record: record.gone, None, "")], threads=1)
    without_turns = RewardRecord.of(make_record(Score(0.0, "no_reply"), num_turns=0), TASK)
    for _ in range(11):
        await fails.ask(without_turns)
    await raises.ask(without_turns)
    first, tenth, other = (record.getMessage() for record in caplog.records)
    assert first.startswith("reward f failed: ZeroDivisionError at ") and "Traceback (most recent call last)" in first
    assert tenth == f"{first.splitlines()[0]}, 10 times so far"
    assert other.startswith("reward g failed: AttributeError at ") and "Traceback (most recent call last)" in other


@pytest.mark.parametrize(("answer", "value"), [("x", -1.0), ("", -1.0), ("nan", -1.0), ("1e400", -1.0), ("40", -2.0)])
async def test_answers_on_which_a_function_fails_may_be_given_a_number(tmp_path, answer, value, caplog):
    """`float(record.answer)` lost what a policy answered without a number, and so taught it to answer so."""
    file = written(tmp_path, "def f(record):\n    return -abs(float(record.answer) - 42)\n")
    record = make_record(Score(0.0, "wrong"), messages=[{"role": "assistant", "content": answer}])
    outcome = await outcome_of(record, f"{file}:f", settings=("rollout.reward_on_error=-1",))
    assert (outcome.earned.value, outcome.lost) == (value, None)
    masked = await outcome_of(record, f"{file}:f")
    assert masked.earned.value == (None if value == -1.0 else value)
    assert ("masked, not punished" in caplog.text) == (masked.lost is not None)


@pytest.mark.parametrize("error", [ConnectionError("no route"), RuntimeError("the service said no")], ids=str)
async def test_what_is_no_error_of_values_is_nobodys_reward_whatever_the_setting(error):
    def f(record):
        raise error

    functions = RewardFunctions([LoadedReward("f", f, None, "", on_error=-1.0)], threads=1)
    assert (await functions.ask(RewardRecord.of(ended(), TASK)))["f"].value is None


async def test_none_is_no_number_and_not_zero():
    assert await said(lambda record: None) == FunctionReward(None, "reward_none", "f returned None")


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        ("good", "'good' (str)"),
        (float("nan"), "'nan' (float)"),
        (float("inf"), "'inf' (float)"),
        ({"score": 1}, "\"{'score': 1}\" (dict)"),
    ],
)
async def test_anything_else_is_an_error_that_names_it(returned, shown):
    words = f"f returned {shown}, expected a finite number, one for each turn, or None"
    assert await said(lambda record: returned) == FunctionReward(None, "reward_error", words)


@pytest.mark.parametrize("returned", [[0.5, 1], (0.5, 1.0), np.array([0.5, 1.0])], ids=["list", "tuple", "array"])
async def test_a_number_for_each_turn_is_a_reward_and_its_sum_the_rollouts(returned):
    assert await said(lambda record: returned) == FunctionReward(1.5, turns=[0.5, 1.0])


@pytest.mark.parametrize(
    ("returned", "reason", "words"),
    [
        ([0.5], "reward_error", "f returned 1 numbers for a rollout of 2 turns, expected one for each"),
        ([], "reward_error", "f returned 0 numbers for a rollout of 2 turns, expected one for each"),
        ([0.5, None], "reward_none", "f returned None for turn 2"),
        ([0.5, "x"], "reward_error", "f returned 'x' (str) for turn 2, expected a finite number"),
        ([float("nan"), 1], "reward_error", "f returned 'nan' (float) for turn 1, expected a finite number"),
        ([1e308, 1e308], "reward_error", "f returned numbers for 2 turns whose sum is not finite"),
    ],
)
async def test_numbers_that_are_not_one_for_each_turn_lose_the_rollout(returned, reason, words):
    assert await said(lambda record: returned) == FunctionReward(None, reason, words)


async def test_an_exception_is_kept_with_the_users_lines_only():
    def f(record):
        return record.task["no such field"]

    given = await said(f)
    assert (given.value, given.reason) == (None, "reward_error")
    head, *frames, last = given.error.strip().splitlines()
    assert (head, last) == ("Traceback (most recent call last):", "KeyError: 'no such field'")
    assert sum("File " in line for line in frames) == 1


@pytest.mark.parametrize("error", [SystemExit(1), StopIteration(), TimeoutError("its own"), asyncio.CancelledError()])
@pytest.mark.parametrize("later", [False, True], ids=["def", "async_def"])
async def test_nothing_that_a_function_raises_ends_the_runner(error, later):
    def f(record):
        raise error

    async def async_f(record):
        raise error

    given = await said(async_f if later else f)
    assert (given.value, given.reason) == (None, "reward_error")
    assert "Error" in given.error or "Exit" in given.error or "StopIteration" in given.error


async def test_a_function_that_is_late_is_a_deadlines_loss_and_the_loop_goes_on():
    release = threading.Event()

    async def sleeps(record):
        await asyncio.sleep(60)

    started = time.monotonic()
    blocked, asleep = await asyncio.gather(said(lambda record: release.wait(60), 0.1), said(sleeps, 0.1))
    release.set()
    assert time.monotonic() - started < 5
    words = "f gave no number within 0.1 s (rollout.reward_timeout_s)"
    assert blocked == asleep == FunctionReward(None, "reward_deadline", words)


async def test_a_rollout_that_is_cancelled_takes_the_call_with_it():
    async def sleeps(record):
        await asyncio.sleep(60)

    task = asyncio.create_task(said(sleeps, 50))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_function_may_say_that_its_service_is_away():
    def f(record):
        raise RewardUnavailable("linter_away", "no linter at port 7")

    assert await said(f) == FunctionReward(None, "linter_away", "no linter at port 7")


@pytest.mark.parametrize("reason", ["no linter", "reward_none", ""])
async def test_a_reason_that_would_be_taken_for_another_is_the_functions_mistake(reason):
    def f(record):
        raise RewardUnavailable(reason)

    given = await said(f)
    assert given.reason == "reward_error"
    assert f"ValueError: {reason!r} is no reason of RewardUnavailable; write one word of your own" in given.error


async def test_async_functions_wait_beside_each_other():
    async def f(record):
        await asyncio.sleep(0.3)
        return 1

    started = time.monotonic()
    assert await asyncio.gather(*(said(f) for _ in range(20))) == [FunctionReward(1.0)] * 20
    assert time.monotonic() - started < 3


async def test_what_a_function_changes_is_its_own_copy():
    def f(record):
        record.messages.clear()
        record.task["answer"] = "?"
        return 1

    record = RewardRecord.of(ended(), dict(TASK))
    await said(f, record=record)
    assert (record.messages, record.task) == (MESSAGES, TASK)


# in the runner --------------------------------------------------------------------------------------------------------


async def outcome_of(record, *rewards, settings=()):
    flags = [*(("--reward", reward) for reward in rewards), *(("--set", setting) for setting in settings)]
    agent = SqlLitAgent(resolve(parse_train_args([word for flag in flags for word in flag])))
    attempt = SimpleNamespace(attempt_id="at-1", sequence_id=2)
    span = await agent._ended(record, SimpleNamespace(input=TASK, rollout_id="ro-1", attempt=attempt))
    outcome = reported([span])
    assert outcome is not None
    return outcome


async def test_a_preset_and_functions_are_summed_with_their_weights(tmp_path):
    file = written(
        tmp_path,
        "def turns(record):\n    return record.num_turns\n"
        "async def right(record):\n    return record.answer == f\"There are {record.task['answer']}.\"\n",
    )
    outcome = await outcome_of(ended(), "agentbench", f"{file}:turns=-0.1", f"{file}:right=0.5")
    # 1 x 1 - 0.1 x 2 + 0.5 x 1
    assert outcome.earned.value == pytest.approx(1.3)
    assert outcome.earned.parts == {"correctness": 1.0, "agentbench": 1.0, "turns": 2.0, "right": 1.0}
    assert outcome.earned.terms == {"agentbench": 1.0, "turns": -0.2, "right": 0.5}


async def test_a_function_alone_is_the_reward_whatever_the_verdict(tmp_path):
    file = written(tmp_path, "def f(record):\n    return 7\n")
    for verdict, reason in ((0.0, "wrong_rows"), (None, NO_JUDGE)):
        outcome = await outcome_of(ended(verdict, reason), f"{file}:f")
        assert (outcome.earned.value, outcome.earned.reason) == (7.0, reason)


async def test_a_rollout_that_the_infrastructure_lost_is_not_asked_about(tmp_path):
    file = written(tmp_path, "def f(record):\n    raise AssertionError('asked')\n")
    outcome = await outcome_of(ended(None, "db_unavailable"), f"{file}:f")
    assert (outcome.earned.value, outcome.earned.reason, outcome.earned.error) == (None, "db_unavailable", None)


async def test_a_failure_loses_the_rollout_and_its_traceback_comes_along(tmp_path):
    file = written(tmp_path, "def f(record):\n    return 1 / 0\n")
    outcome = await outcome_of(ended(), "agentbench", f"{file}:f")
    assert (outcome.earned.value, outcome.earned.reason) == (None, "reward_error")
    assert f'File "{file}", line 2, in f\n    return 1 / 0\n' in outcome.earned.error
    assert outcome.earned.lacking == {"f": "reward_error"}
