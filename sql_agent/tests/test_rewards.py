"""`sql_agent.rewards`: one number per preset and outcome."""

import pytest

from dbbench_adapter.types import Score
from sql_agent.rewards import REWARDS, reward
from sql_agent.types import RolloutRecord


def record(stop_reason, score):
    return RolloutRecord(
        task_id="t-0", kind="other", stop_reason=stop_reason, score=score, num_turns=2, malformed_calls=0,
        messages=[], prompt_tokens=10, completion_tokens=5, seconds=0.1,
    )  # fmt: skip


RIGHT, WRONG = Score(1.0, "match"), Score(0.0, "wrong_answer")


@pytest.mark.parametrize(("stop_reason", "score", "agentbench", "agent_peft", "rllm"), [
    pytest.param("answered", RIGHT, 1.0, 1.0, 1.0, id="correct"),
    pytest.param("answered", WRONG, 0.0, -0.1, -1.0, id="incorrect"),
    pytest.param("max_turns", WRONG, 0.0, -0.3, -0.8, id="out_of_turns"),
    pytest.param("max_tokens", WRONG, 0.0, -0.3, -0.8, id="out_of_tokens"),
    pytest.param("timeout", WRONG, 0.0, -0.3, -0.8, id="out_of_time"),
    pytest.param("malformed", WRONG, 0.0, -0.1, -0.2, id="illegal_action"),
    pytest.param("max_turns", RIGHT, 1.0, 1.0, 1.0, id="a_correct_end_state_counts_however_the_rollout_ended"),
])  # fmt: skip
def test_presets(stop_reason, score, agentbench, agent_peft, rllm):
    ended = record(stop_reason, score)
    values = [reward(ended, REWARDS[name]).value for name in ("agentbench", "agent_peft", "rllm")]
    assert values == [agentbench, agent_peft, rllm]


@pytest.mark.parametrize("preset", REWARDS.values(), ids=REWARDS.keys())
def test_what_could_not_be_judged_is_none_and_not_a_low_reward(preset):
    assert reward(record("db_unavailable", Score(None, "db_unavailable")), preset) == Score(None, "db_unavailable")


def test_reason_and_verdict_travel_with_the_reward():
    assert reward(record("answered", WRONG), REWARDS["rllm"]) == Score(-1.0, "wrong_answer", {"correctness": 0.0})
