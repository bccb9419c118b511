"""The example environment through the whole chain: store, runners, vLLM, verl, a small policy; nothing scripted.

About two minutes. The small policy solves hardly any of the example's questions; what counts is that its rewards are
the file's own.
"""

import pytest

from sql_agent.tests.conftest import train_small_policy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

EXAMPLE = "examples/own_environment"
SETTINGS = ["agent.max_turns=4", "agent.max_tokens=96", "rollout.trajectories_per_step=16", "rollout.redraws=0"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    tasks = ["--env", f"{EXAMPLE}/orders.py:Orders", "--train-file", f"{EXAMPLE}/rows.jsonl"]
    return train_small_policy(tmp_path_factory.mktemp("run"), *tasks, settings=SETTINGS)


def test_every_reward_is_what_the_file_gives_and_success_what_it_says(run):
    assert len(run.rollouts) == 16  # four tasks, four rollouts each
    for rollout in run.rollouts:
        score = rollout["score"]
        assert (score["reason"], rollout["reward"]) == ("own_reward", score["value"])
        assert rollout["reward"] in ((1.0,) if score["parts"]["correctness"] else (0.0, 0.1))
    solved = [rollout["score"]["parts"]["correctness"] for rollout in run.rollouts]
    assert run.metrics["rollout/success"] == pytest.approx(sum(solved) / 16)
    assert run.metrics["reward/unjudged_frac"] == 0.0


def test_the_policy_called_the_tools_of_the_file_and_a_step_was_taken(run):
    calls = [c["function"]["name"] for r in run.rollouts for m in r["messages"] for c in m.get("tool_calls") or ()]
    assert {"execute_sql", "commit_final_answer"} & set(calls)
    assert run.metrics["policy/grad_norm"] > 0
    assert run.metrics["prefix/broken_frac"] == 0.0
    assert "step 1/1  reward" in run.out
