"""A conversation goes on from what was sampled, whatever its template makes of earlier turns: examples in ids."""

import json

import pytest

from agentgrpo.chat.continuation import OTHER, another_reply, continue_exactly

EOS, STOP = 99, 98
SYSTEM_ASK = [1, 2]
NEXT = [10, 40, 41, 50]
"""A line break after the end of a turn, two tokens of the next message, the mark of the next reply."""


def test_sampled_ids_stay_and_only_what_follows_the_reply_is_taken_from_the_template():
    known = [*SYSTEM_ASK, 30, 31, EOS]  # 30, 31 were sampled; the template would write 35 instead
    rendered, otherwise = [*SYSTEM_ASK, 35, EOS, *NEXT], [*SYSTEM_ASK, 36, EOS, *NEXT]
    assert continue_exactly(known, rendered, otherwise, {EOS}) == [1, 2, 30, 31, EOS, 10, 40, 41, 50]


def test_a_reply_cut_before_its_end_is_closed():
    assert continue_exactly([1, 30], [1, 35, EOS, 10, 40], [1, 36, EOS, 10, 40], {EOS}) == [1, 30, EOS, 10, 40]


def test_a_template_may_rewrite_everything_before_the_end_of_the_reply():
    """7 stands for 1, 2 once the reply is answered, and its thought, 60 and 61, is gone."""
    known = [1, 2, 60, 61, 30, EOS]
    assert continue_exactly(known, [7, 35, EOS, *NEXT], [7, 36, EOS, *NEXT], {EOS}) == [*known, *NEXT]


def test_replies_that_end_alike_are_closed_at_their_end_and_not_before():
    """Two calls end with the same 33, 34: the seam is the end of the turn behind them."""
    rendered, otherwise = [1, 35, 33, 34, EOS, *NEXT], [1, 36, 33, 34, EOS, *NEXT]
    assert continue_exactly([1, 30, EOS], rendered, otherwise, {EOS}) == [1, 30, EOS, *NEXT]


def test_an_end_mark_inside_the_reply_is_no_seam():
    """The reply says the mark's text, which the template's tokenizer takes for the token."""
    known = [1, 30, 31, EOS]
    assert continue_exactly(known, [1, 30, EOS, 35, EOS, *NEXT], [1, 36, EOS, *NEXT], {EOS}) == [*known, *NEXT]


def test_a_turn_may_end_with_another_token_than_the_tokenizers_eos():
    """Gemma's: EOS is never written, the engine stops at STOP as well."""
    known = [1, 30, STOP]
    assert continue_exactly(known, [1, 35, STOP, *NEXT], [1, 36, STOP, *NEXT], {EOS, STOP}) == [*known, *NEXT]
    assert continue_exactly(known, [1, 35, STOP, *NEXT], [1, 36, STOP, *NEXT], {EOS}) is None


def test_a_reply_that_ended_with_another_token_is_closed_as_the_template_closes_it():
    known = [1, 30, EOS]
    assert continue_exactly(known, [1, 35, STOP, *NEXT], [1, 36, STOP, *NEXT], {EOS, STOP}) == [*known, STOP, *NEXT]


@pytest.mark.parametrize(
    ("rendered", "otherwise"),
    [
        pytest.param([1, 35, 40, 50], [1, 36, 40, 50], id="no_end_of_a_turn"),
        pytest.param([1, EOS, 40], [1, EOS, 40], id="the_reply_is_left_out"),
        pytest.param([1, 35, EOS, 50], [1, 36, EOS, 51], id="what_follows_depends_on_the_reply"),
    ],
)
def test_a_template_without_a_seam_is_not_joined(rendered, otherwise):
    assert continue_exactly([1, 30, EOS], rendered, otherwise, {EOS}) is None


def test_another_reply_calls_the_same_tools_under_the_same_ids():
    """Results name the calls they belong to."""
    function = {"name": "execute_sql", "arguments": '{"query": "SELECT 1"}'}
    call = {"id": "call_0", "type": "function", "function": function}
    other = another_reply({"role": "assistant", "content": "Let me look.", "tool_calls": [call]})
    (made,) = other["tool_calls"]
    assert (made["id"], made["function"]["name"]) == ("call_0", "execute_sql")
    assert OTHER in json.loads(made["function"]["arguments"]).values()
    assert another_reply({"role": "assistant", "content": "three"}) == {"role": "assistant", "content": OTHER}
