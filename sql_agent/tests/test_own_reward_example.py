"""examples/own_reward: its command passes the checks of a start, and its functions know a recorded rollout."""

import re
import shlex
from pathlib import Path

import pytest

from dbbench_adapter.datatypes import Score
from dbbench_adapter.generator import generate_tasks
from sql_agent import oracle
from sql_agent.datatypes import FunctionReward
from sql_agent.environments.dbbench import DbBench
from sql_agent.play.served import run_rollout
from sql_agent.reward_functions import RewardRecord
from sql_agent.reward_functions.ask import RewardFunctions
from sql_agent.reward_functions.load import load_functions
from sql_agent.settings.groups import AgentConfig
from sql_agent.startup.flags import parse_train_args, resolve
from sql_agent.tests.records import make_record
from sql_agent.train_sql_agent import main

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "examples" / "own_reward" / "README.md"


@pytest.fixture(autouse=True)
def typed_in_the_clone(monkeypatch):
    monkeypatch.chdir(ROOT)


def command():
    [words] = re.findall(r"agentgrpo train ((?:.*\\\n)+.*)\n", PAGE.read_text())
    return shlex.split(words.replace("\\\n", " "))


def functions():
    cfg = resolve(parse_train_args(command()))
    return RewardFunctions(load_functions(cfg.rollout, cfg.judge, cfg.run_dir), threads=2)


def test_its_command_is_checked_and_prints_the_settings_that_the_page_shows(capsys, tmp_path):
    assert main([*command(), "--run-dir", str(tmp_path), "--dry-run"]) == 0
    shown = capsys.readouterr().out.split("# verl's keys")[0]
    [expected] = re.findall(r"\nrollout:\n((?:  .*\n)+)", PAGE.read_text())
    assert expected in shown


async def test_its_functions_say_what_they_promise_of_a_rollout_of_the_oracle():
    task = next(task for task in generate_tasks(6, seed=7, split="train") if not task.changes_state)
    with DbBench("strict") as environment, oracle.serve(oracle.app(oracle.replay([task]))) as base_url:
        record = await run_rollout(
            task, environment=environment, base_url=base_url, model=oracle.MODEL, config=AgentConfig()
        )
    said = await functions().ask(RewardRecord.of(record, task.to_dict()))
    assert record.score == Score(1.0, "match")
    # the oracle looks with one SELECT, then commits
    assert said == {
        "concise": FunctionReward(max(0.0, 1.0 - record.completion_tokens / 200)),
        "looks_first": FunctionReward(1.0),
    }


@pytest.mark.parametrize("said", [[], [oracle.calls(oracle.call("execute_sql", "{"))]], ids=["silent", "malformed"])
async def test_what_the_policy_got_wrong_is_worth_nothing_and_not_left_out(said):
    record = make_record(Score(0.0, "wrong_rows"), messages=said, num_turns=len(said))
    given = await functions().ask(RewardRecord.of(record, {"id": "t-0"}))
    assert given == {"concise": FunctionReward(0.0), "looks_first": FunctionReward(0.0)}
