"""The command of each example's page through the whole chain: store, runners, vLLM, verl, a small policy, one step.

About a minute each. The small policy solves hardly any of the tasks; what counts is whose tasks, rewards and turns are
trained. The pages of own_agent, own_environment and medical have tests of their own. Without `--full` the commands of
gsm8k, own_reward and own_database only plan their runs: an environment of one's own, a reward and a database are
trained by those tests and by test_own_database_recipe.py too; LangGraph's graph is played by a test of its own.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sql_agent.gsm8k.environment import RULES
from sql_agent.gsm8k.problems import final_number, generate_problems, gold_answer
from sql_agent.tests.conftest import train_small_policy
from sql_agent.train_sql_agent import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
SETTINGS = ["agent.max_turns=4", "agent.max_tokens=128", "rollout.trajectories_per_step=16", "rollout.max_resamples=0"]
OURS = {"--ci-fast": 0, "--device": 1, "--run-dir": 1}
"""Flags that the test gives itself, with the number of their values."""


def flags_of(example):
    """The flags of the page's training command that say what is trained."""
    page = (ROOT / "examples" / example / "README.md").read_text()
    words = iter(shlex.split(re.findall(r"agentgrpo train ((?:.*\\\n)*.*)\n", page)[0].replace("\\\n", " ")))
    kept = []
    for word in words:
        if word in OURS:
            [next(words) for _ in range(OURS[word])]
        else:
            kept.append(word)
    return kept


def check_trained(run):
    assert "step 1/1  reward" in run.out
    assert len(run.rollouts) == 16  # four tasks, four rollouts each
    assert run.metrics["policy/grad_norm"] > 0
    assert run.metrics["prefix/broken_frac"] == 0.0
    assert run.metrics["engine/probs_diff_max"] < 1e-3


full = pytest.mark.full("other tests train in every run what this one trains")


def flags_of_shop(folder):
    """The flags of own_database's page, whose database is made in this folder."""
    subprocess.run([sys.executable, "examples/own_database/make_shop.py", folder], cwd=ROOT, check=True)
    return [word.replace("data/shop", str(folder)) for word in flags_of("own_database")]


@pytest.mark.parametrize(
    ("example", "settings"),
    [("gsm8k", "type: gsm8k"), ("own_reward", "looks_first"), ("own_database", "type: text2sql")],
)
def test_a_page_s_command_plans_its_run(example, settings, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    flags = flags_of_shop(tmp_path / "shop") if example == "own_database" else flags_of(example)
    assert main(["--dry-run", *flags, "--run-dir", str(tmp_path / "run")]) == 0
    planned = capsys.readouterr().out
    assert settings in planned
    assert "train steps: 20" in planned


@full
def test_gsm8k_is_rewarded_for_the_right_number(tmp_path):
    run = train_small_policy(tmp_path, *flags_of("gsm8k"), settings=SETTINGS)
    check_trained(run)
    problems = {problem["id"]: problem for problem in generate_problems(32)}
    for rollout in run.rollouts:
        assert rollout["messages"][0]["content"] == RULES
        answer = rollout["messages"][-1]["content"] if rollout["stop_reason"] == "answered" else ""
        right = final_number(answer or "") == gold_answer(problems[rollout["task_id"]])
        assert (rollout["reward"], rollout["score"]["value"]) == (float(right), float(right))


@full
def test_a_database_is_asked_and_stays_as_it_is(tmp_path):
    flags = flags_of_shop(tmp_path / "shop")
    before = (tmp_path / "shop" / "shop.sqlite").read_bytes()
    run = train_small_policy(tmp_path / "run", *flags, settings=SETTINGS)
    check_trained(run)
    known = {"match": 1.0, "wrong_result": 0.0, "sql_error": 0.0, "too_many_rows": 0.0, "no_answer": 0.0}
    for rollout in run.rollouts:
        assert rollout["reward"] == rollout["score"]["value"] == known[rollout["score"]["reason"]]
    assert (tmp_path / "shop" / "shop.sqlite").read_bytes() == before


@full
def test_two_rewards_are_added_to_correctness(tmp_path):
    run = train_small_policy(tmp_path, *flags_of("own_reward"), settings=SETTINGS)
    check_trained(run)
    for rollout in run.rollouts:
        parts = rollout["reward_parts"]
        assert rollout["reward"] == pytest.approx(
            parts["agentbench"] + 0.2 * parts["concise"] + 0.1 * parts["looks_first"]
        )
    assert {rollout["reward_parts"]["looks_first"] for rollout in run.rollouts} <= {0.0, 1.0}


@pytest.mark.full("test_langgraph_agent.py plays it, and test_user_agents.py its turns through the proxy")
def test_the_graph_of_langgraphs_tutorial_is_trained_as_it_is(tmp_path):
    pytest.importorskip("langgraph", reason="needs the extra langgraph of pyproject.toml")
    run = train_small_policy(tmp_path, *flags_of("langgraph_agent"), settings=SETTINGS)
    check_trained(run)
    for rollout in run.rollouts:
        assert rollout["lost"] is None
        question, listed, tables = [message["content"] for message in rollout["messages"][:3]]
        assert (question.endswith("?"), listed, tables) == (True, None, "plants, sales")
        # what asks for the schema and what writes the query see different prompts
        assert rollout["chains"] >= 2
        assert rollout["messages"][5]["content"].startswith("Answer a question about a sqlite database")


DESK = """
from pydantic import BaseModel

class Query(BaseModel):
    query: str

@function_tool
def execute_sql(query: str) -> str:
    '''Run one SQL statement.'''
    return "[]"

clerk = Agent(name="clerk", instructions="You are the clerk.", tools=[execute_sql])
# the small policy calls nothing but execute_sql, so this is how it hands over
over = handoff(clerk, tool_name_override="execute_sql", input_type=Query, on_handoff=lambda context, query: None)
desk = Agent(name="desk", instructions="You are the desk.", handoffs=[over])
"""
IN_TURN = """
async def agent(task):
    answer = None
    for asked in (triage, analyst, desk):
        try:
            answer = (await Runner.run(asked, task["prompt"], max_turns=2)).final_output
        except AgentsException:
            pass
    return answer
"""


def test_the_turns_of_the_named_agents_are_trained_on_both_sides_of_a_handoff(tmp_path):
    """Which tools the small policy calls depends on the CPU that made it, so a function asks the agents in turn."""
    example = ROOT / "examples" / "multi_agent"
    file = tmp_path / "in_turn.py"
    imports = (
        f"import sys\nsys.path.append({str(example)!r})\n"
        "from agents import Agent, AgentsException, Runner, function_tool, handoff\n"
        "from library_agents import analyst, reward, triage\n"
    )
    file.write_text(imports + DESK + IN_TURN)
    flags = [f"{file}:{word.rpartition(':')[2]}" if ".py:" in word else word for word in flags_of("multi_agent")]
    flags[flags.index(f"{file}:triage")] = f"{file}:agent"
    more = ["--train-agents", "analyst,desk,clerk"]
    room = ["agent.max_tokens=96", "data.max_response_tokens=3000"]  # of all conversations together
    run = train_small_policy(tmp_path / "run", *flags, *more, settings=[*SETTINGS, *room])
    check_trained(run)
    assert {rollout["lost"] for rollout in run.rollouts} <= {None, "no_trained_agent"}
    kept = [rollout for rollout in run.rollouts if rollout["lost"] is None]
    assert kept
    named = "Answer with the value alone.", "You are the desk.", "You are the clerk."
    handed_over = 0
    for rollout in kept:
        first, *others = [message["content"] for message in rollout["messages"] if message["role"] == "system"]
        assert first.startswith("You answer questions about a library.")
        assert others and all(text.startswith(named) for text in others)
        if named[2] in others:
            handed_over += 1
            assert named[1] in others
            assert rollout["chains"] >= 3  # the analyst's, and one on each side of the handoff; triage is not named
    assert handed_over > 0
    assert run.metrics["rollout/unused_turns/other_agent"] > 0
