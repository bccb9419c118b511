"""One rollout of one conversation, one sequence: what is joined, what is masked, and how a break is named.

`test_chains` has rollouts of several conversations."""

import json
import math
from dataclasses import dataclass, field, replace

import pytest

from sql_agent.credit.row import Row, Turn, stitch
from sql_agent.datatypes import ScorerResult
from sql_agent.lightning.spans import (
    OUTCOME,
    UntrainableCallError,
    all_there,
    outcome_text,
    read_turns,
    turn_span,
)
from sql_agent.model_servers.turns import turn_of
from sql_agent.tests.records import make_outcome, reported


def turn(prompt, sampled, *, log_probs=None, tool=False):
    return Turn(tuple(prompt), tuple(sampled), tuple(log_probs or [-0.5] * len(sampled)), tool)


def test_two_turns_become_one_sequence_with_the_tool_result_masked():
    first = turn([1, 2], [3, 4], log_probs=[-0.1, -0.2])
    second = turn([1, 2, 3, 4, 9, 9], [5], log_probs=[-0.3])  # 9, 9: the tool's result
    assert stitch([first, second], max_response_tokens=10) == Row(
        ids=(1, 2, 3, 4, 9, 9, 5),
        sampled=(0, 0, 1, 1, 0, 0, 1),
        log_probs=(0.0, 0.0, -0.1, -0.2, 0.0, 0.0, -0.3),
        prompt_tokens=2,
        num_turns=2,
        turn_ends=(4, 7),
    )


@pytest.mark.parametrize(
    ("second_prompt", "tool", "cause"),
    [
        pytest.param([1, 7, 3, 4, 9], True, "template", id="history_was_rewritten"),
        pytest.param([1, 2, 3, 8, 9], True, "tool_call_rendering", id="tool_call_written_down_anew"),
        pytest.param([1, 2, 3, 8, 9], False, "tokenisation", id="text_cut_into_other_ids"),
    ],
)
def test_a_break_begins_another_chain_and_names_its_cause(second_prompt, tool, cause):
    whole = [turn([1, 2], [3, 4], tool=tool), turn(second_prompt, [5]), turn([*second_prompt, 5, 9], [6])]
    row = stitch(whole, max_response_tokens=10)
    assert (row.ids, row.starts) == ((1, 2, 3, 4, *second_prompt, 5, 9, 6), (4,))
    assert row.sampled == (0, 0, 1, 1, *[0] * 5, 1, 0, 1)
    assert (row.prefix_break, row.num_turns, row.dropped_turns) == (cause, 3, 0)


def test_a_turn_that_does_not_fit_is_dropped_whole():
    row = stitch([turn([1], [2, 3]), turn([1, 2, 3, 9], [4, 5])], max_response_tokens=4)
    assert (row.ids, row.dropped_turns, row.prefix_break) == ((1, 2, 3), 1, None)


def test_a_turn_that_just_fits_is_kept():
    row = stitch([turn([1], [2, 3]), turn([1, 2, 3, 9], [4, 5])], max_response_tokens=5)
    assert (row.ids, row.dropped_turns) == ((1, 2, 3, 9, 4, 5), 0)


def test_what_continues_a_dropped_turn_is_dropped_even_if_it_would_fit_alone():
    first = [turn([1], [2, 3, 4]), turn([1, 2, 3, 4], [5])]  # the second alone would be a prompt of four and one token
    row = stitch(first, max_response_tokens=2)
    assert row == Row((1,), (0,), (0.0,), prompt_tokens=1, num_turns=0, dropped_turns=2)


def test_a_row_without_a_log_prob_for_each_token_is_refused():
    with pytest.raises(ValueError, match=r"one id, mask, log-prob and advantage per token, got \[1, 2\]"):
        Row((1, 2), (0, 1), (-0.5,), prompt_tokens=1, num_turns=1)


def test_no_turns_is_an_error():
    with pytest.raises(ValueError, match="nothing to stitch"):
        stitch([], max_response_tokens=4)


@dataclass
class Span:
    name: str
    sequence_id: int
    attributes: dict = field(default_factory=dict)


def model_call(sequence_id, prompt, sampled):
    ids = {"prompt_token_ids": prompt, "response_token_ids": sampled, "response_log_probs": [-1.0] * len(sampled)}
    return Span("litellm_request", sequence_id, {name: json.dumps(numbers) for name, numbers in ids.items()})


def test_turns_come_in_sequence_order_whatever_order_spans_arrive_in():
    spans = [model_call(2, [1, 2, 3], [4]), Span("something_else", 1), model_call(1, [1], [2])]
    assert [(t.prompt_ids, t.sampled_ids) for t in read_turns(spans)] == [((1,), (2,)), ((1, 2, 3), (4,))]


def test_a_turn_has_everything_that_its_span_says():
    span = model_call(1, [1], [2, 3])
    span.attributes |= {"gen_ai.response.finish_reason": "tool_calls", "agentgrpo.has_tool_calls": True}
    other = Span("some_other_call", 2, {**span.attributes, "prompt_token_ids": "[1, 2, 3, 4]"})
    assert read_turns([span, other]) == [Turn((1,), (2, 3), (-1.0, -1.0), has_tool_calls=True)]


@pytest.mark.parametrize(
    ("left_out", "reason", "words"),
    [
        ({"response_token_ids": "[]"}, "no_token_ids", "without token ids; the server needs return_token_ids"),
        ({"prompt_token_ids": "[]"}, "no_token_ids", "without token ids; the server needs return_token_ids"),
        ({"response_log_probs": "[]"}, "no_log_probs", "with 0 log-probabilities for 2 sampled ids"),
        ({"response_log_probs": "[-0.5]"}, "no_log_probs", "with 1 log-probabilities for 2 sampled ids"),
    ],
)
def test_a_call_that_cannot_be_trained_on_loses_its_rollout_under_its_own_reason(left_out, reason, words):
    span = model_call(1, [1], [2, 3])
    span.attributes |= left_out
    with pytest.raises(UntrainableCallError, match=words) as lost:
        read_turns([span])
    assert lost.value.reason == reason


def test_a_reply_of_vllm_becomes_a_turn():
    said = {"content": None, "tool_calls": [{"id": "call-1"}]}
    log_probs = {"content": [{"logprob": -0.1}, {"logprob": -0.2}]}
    choice = {"message": said, "finish_reason": "tool_calls", "token_ids": [3, 4], "logprobs": log_probs}
    answer = {"id": "chatcmpl-1", "choices": [choice], "prompt_token_ids": [1, 2]}
    span = turn_span(turn_of(answer), "ro-1", "at-1", 1)
    assert read_turns([span]) == [Turn((1, 2), (3, 4), (-0.1, -0.2), has_tool_calls=True)]


def test_a_call_tried_again_counts_once_with_the_reply_that_was_used():
    spans = [model_call(1, [1], [2]), model_call(2, [1], [3]), model_call(3, [1, 3, 9], [4])]
    assert [(t.prompt_ids, t.sampled_ids) for t in read_turns(spans)] == [((1,), (3,)), ((1, 3, 9), (4,))]


def test_an_agent_of_several_conversations_may_ask_the_same_twice():
    spans = [model_call(1, [1], [2]), model_call(2, [1], [3]), model_call(3, [1, 2, 9], [4])]
    turns = read_turns(spans, one_conversation=False)
    assert [(t.prompt_ids, t.sampled_ids) for t in turns] == [((1,), (2,)), ((1,), (3,)), ((1, 2, 9), (4,))]


def test_the_outcome_is_read_from_the_reward_span():
    for scorer in (None, ScorerResult(math.inf, truncated=True)):
        outcome = make_outcome(None, reason="db_unavailable", parts={"correctness": 0.5}, scorer=scorer, down_s=3.0)
        for each in (outcome, replace(outcome, one_conversation=False)):
            assert reported([Span("agentlightning.annotation", 3, {OUTCOME: outcome_text(each)})]) == each
    assert reported([model_call(1, [1], [2])]) is None


@pytest.mark.parametrize(
    ("sampled", "whole"),
    [
        pytest.param([[3, 4], [5]], True, id="what_the_agent_got"),
        pytest.param([[3, 4], [5], [6, 7]], True, id="and_a_call_it_gave_up"),
        pytest.param([[3, 4]], False, id="the_last_span_is_missing"),
        pytest.param([[3, 4], [6, 7]], False, id="the_last_question_was_asked_twice_and_this_is_not_the_answer_taken"),
    ],
)
def test_turns_are_all_there_when_number_and_tokens_are_those_of_the_agent(sampled, whole):
    outcome = make_outcome(1.0, num_turns=2, completion_tokens=3)
    assert all_there([turn([1], ids) for ids in sampled], outcome.record) is whole
