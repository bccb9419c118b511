"""`sql_agent.source.scoring`: which rollouts are scored, in what form, and what a silent service does."""

import json

import pytest

from agentgrpo.chat.messages import FunctionCall, Message, ToolCall
from agentgrpo.machine import free_port
from dbbench_adapter.datatypes import Score
from reward_model.service.middleware import MAX_BODY_BYTES
from reward_model.service.schemas import VllmChat
from reward_model.service.strict_json import read_strict_json
from sql_agent.datatypes import RolloutRecord, ScorerResult
from sql_agent.oracle import call, calls
from sql_agent.rewards import NO_JUDGE
from sql_agent.settings.groups import RewardModelConfig
from sql_agent.source.scoring import RolloutScorer, check_scorer, scored_conversation
from sql_agent.tests.conftest import serve_scores

ASK = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "How many?"}]
LOOK = {**calls(call("execute_sql", {"query": "SELECT 4"}, "x")), "reasoning_content": "hm"}
FOUND = {"role": "tool", "tool_call_id": "x", "content": "[(4,)]"}
COMMIT = calls(call("commit_final_answer", {"answers": ["4"]}, "y"))
DONE = {"role": "tool", "tool_call_id": "y", "content": "Committed."}


RIGHT = Score(1.0, "match")


def record(*said, score=RIGHT, stop_reason="answered"):
    return RolloutRecord(
        task_id="t-0", kind="other", stop_reason=stop_reason, score=score, num_turns=2, malformed_calls=0,
        messages=[*ASK, *said], prompt_tokens=10, completion_tokens=5, seconds=0.1,
    )  # fmt: skip


async def ask_scorer(rollout, url, **settings):
    scorer = RolloutScorer(RewardModelConfig(url=url, **settings))
    try:
        return await scorer.score(rollout)
    finally:
        await scorer.aclose()


def test_what_is_scored_ends_with_the_policys_last_message():
    said = scored_conversation([*ASK, LOOK, FOUND, COMMIT, DONE])
    assert said == [
        Message(role="system", content="Rules."),
        Message(role="user", content="How many?"),
        Message(role="assistant", tool_calls=(made("call00001", "execute_sql", '{"query": "SELECT 4"}'),)),
        Message(role="tool", content="[(4,)]", tool_call_id="call00001"),
        Message(role="assistant", tool_calls=(made("call00002", "commit_final_answer", '{"answers": ["4"]}'),)),
    ]
    assert scored_conversation(
        [*ASK, {"role": "assistant", "content": "Four."}, {"role": "assistant", "content": " "}]
    )[-1] == Message(role="assistant", content="Four.")


def made(call_id, name, arguments):
    return ToolCall(id=call_id, function=FunctionCall(name=name, arguments=arguments))


def test_it_is_the_form_that_pairs_of_rollouts_are_trained_in():
    from reward_model.pairs_from_rollouts import rollout_of

    rollout = record(LOOK, FOUND, COMMIT, DONE)
    trained = rollout_of(rollout.to_dict(), "file:1")
    assert scored_conversation(rollout.messages) == [*trained.prompt, *trained.side]


@pytest.mark.parametrize(("score", "stop_reason", "asked", "expected"), [
    pytest.param(RIGHT, "answered", 1, ScorerResult(0.5), id="right"),
    pytest.param(Score(0.0, "wrong_answer"), "max_turns", 1, ScorerResult(0.5), id="wrong_for_the_log"),
    pytest.param(Score(None, NO_JUDGE), "answered", 1, ScorerResult(0.5), id="without_a_judge"),
    pytest.param(Score(None, NO_JUDGE), "max_turns", 0, ScorerResult(None, "no_answer"), id="without_an_answer"),
    pytest.param(Score(None, "db_unavailable"), "db_unavailable", 0, None, id="lost"),
])  # fmt: skip
async def test_which_rollouts_are_scored(score, stop_reason, asked, expected):
    seen = []
    with serve_scores(lambda _: 0.5, seen) as url:
        said = {"role": "assistant", "content": "It is 4."}
        assert await ask_scorer(record(said, score=score, stop_reason=stop_reason), url) == expected
    assert len(seen) == asked


async def test_a_service_that_is_gone_gives_no_score_within_the_deadline():
    scorer = RolloutScorer(RewardModelConfig(url=f"http://127.0.0.1:{free_port()}", timeout_s=0.3, give_up_s=1.0))
    assert await scorer.score(record(COMMIT)) == ScorerResult(None, "scorer_unavailable")
    assert 0.0 < scorer.down_s < 5.0
    await scorer.aclose()


async def test_a_conversation_that_is_refused_gives_no_score():
    with serve_scores(lambda _: 422) as url:
        assert await ask_scorer(record(COMMIT), url) == ScorerResult(None, "scorer_refused")


MANY = calls(*(call("execute_sql", {"query": f"SELECT {k}"}, f"c{k}") for k in range(600)))


@pytest.mark.parametrize("written", [
    pytest.param([calls(call("", {}, "x")), FOUND], id="a_call_without_a_name"),
    pytest.param([calls(call("execute_sql", "[1", "x")), FOUND], id="arguments_that_do_not_parse"),
    pytest.param([calls(call("execute_sql", '{"a": NaN}', "x")), FOUND], id="arguments_that_are_no_json"),
    pytest.param([LOOK, {**FOUND, "content": "x" * 1_100_000}], id="a_result_of_a_megabyte"),
    pytest.param([MANY, *({**FOUND, "tool_call_id": f"c{k}"} for k in range(600))], id="six_hundred_calls"),
    pytest.param([{"role": "system", "content": "Another agent."}], id="a_second_conversation"),
    pytest.param([FOUND], id="a_result_whose_call_was_cut_from_the_history"),
    pytest.param([{"role": "assistant", "content": "\ud83d"}], id="half_a_surrogate_pair"),
])  # fmt: skip
def test_a_service_takes_every_conversation_that_a_policy_can_write(written):
    """One call with an empty name lost the whole group of a policy without a judge, its neighbours with it."""
    said = scored_conversation([*ASK, *written, COMMIT])
    body = {"messages": [message.to_dict() for message in said]}
    assert (said[0].role, said[-1].tool_calls[0].function.name) == ("system", "commit_final_answer")
    assert all(isinstance(c.function.as_object, dict) and c.function.name for m in said for c in m.tool_calls)
    assert VllmChat.model_validate(read_strict_json(json.dumps(body).encode())).messages == tuple(said)
    assert len(json.dumps(body)) < MAX_BODY_BYTES


async def test_a_run_is_refused_while_nobody_scores():
    port = free_port()
    with pytest.raises(ValueError, match=rf"no reward model is ready.*reward serve --model MERGED --port {port}"):
        await check_scorer(RewardModelConfig(url=f"http://127.0.0.1:{port}", timeout_s=1.0))
    with serve_scores(lambda _: 401) as url, pytest.raises(ValueError, match="its token is read from REWARD_API_TOKEN"):
        await check_scorer(RewardModelConfig(url=url))
    with serve_scores(lambda _: 0.5) as url:
        await check_scorer(RewardModelConfig(url=url))
