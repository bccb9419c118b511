"""The example agents through the whole chain: store, LLM proxy, runners, vLLM, verl, a small policy; nothing scripted.

About a minute. The small policy solves hardly any of the questions; what counts is whose rewards and whose turns
are trained.
"""

import pytest

from sql_agent.tests.conftest import train_small_policy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

EXAMPLE = "examples/own_agent"
SETTINGS = ["agent.max_tokens=96", "rollout.trajectories_per_step=16", "rollout.max_resamples=0"]


def train(folder, *flags):
    tasks = ["--train-file", f"{EXAMPLE}/tasks.jsonl"]
    run = train_small_policy(folder, *flags, *tasks, settings=SETTINGS)
    assert len(run.rollouts) == 16  # four tasks, four rollouts each
    return run


def check_trained(run):
    assert {rollout["lost"] for rollout in run.rollouts} == {None}
    assert run.metrics["policy/grad_norm"] > 0
    assert run.metrics["engine/probs_diff_max"] < 1e-3  # ids and log-probs of the engine are those that were trained
    assert run.metrics["prefix/broken_frac"] == 0.0


@pytest.mark.full("the agent below and those of examples/multi_agent are trained so in every run")
def test_agents_of_openai_agents_are_trained_on_the_reward_of_the_file(tmp_path):
    reward = f"{EXAMPLE}/orders_agent.py:reward"
    run = train(tmp_path, "--agent", f"{EXAMPLE}/orders_agent.py:agent", "--reward", reward)
    check_trained(run)
    for rollout in run.rollouts:
        assert rollout["messages"][0]["content"].startswith("You stand at the desk of a shop.")
        assert (rollout["score"]["reason"], rollout["reward_parts"]) == ("no_judge", {"reward": rollout["reward"]})
        assert rollout["stop_reason"] in ("answered", "malformed", "max_turns")
        assert (rollout["output"] is None) == (rollout["stop_reason"] != "answered")


def test_an_agent_of_agent_lightning_gives_its_own_reward(tmp_path):
    run = train(tmp_path, "--agent", f"{EXAMPLE}/orders_lightning.py:clerk")
    check_trained(run)
    assert {(r["score"]["reason"], r["reward"]) for r in run.rollouts} <= {("own_reward", 0.0), ("own_reward", 1.0)}
    # which tools the small policy calls depends on the CPU that made it; a call is answered and its result read
    called = [r for r in run.rollouts if any(message.get("tool_calls") for message in r["messages"])]
    assert (run.metrics["rollout/turns"] > 1) == bool(called)


def test_the_tools_of_an_mcp_server_are_offered_in_the_whole_chain(tmp_path):
    """Whether the small policy calls them depends on the CPU that made it; a call has an answer."""
    tasks, reward = "examples/mcp/tasks.jsonl", "examples/mcp/reward.py:reward"
    flags = ["--agent", "examples/mcp/servers.json", "--reward", reward, "--train-file", tasks]
    run = train_small_policy(tmp_path, *flags, settings=SETTINGS)
    check_trained(run)
    assert {rollout["stop_reason"] for rollout in run.rollouts} <= {"answered", "malformed", "max_turns"}
    for rollout in run.rollouts:
        said = [message for message in rollout["messages"] if message["role"] == "assistant"]
        calls = sum(len(message.get("tool_calls") or ()) for message in said[:-1])
        assert calls == sum(message["role"] == "tool" for message in rollout["messages"])
