import pytest

from agentgrpo.chat.messages import FunctionCall, Message, ToolCall
from reward_model.measures import FEATURES, wins
from reward_model.tests.conftest import assistant


def call(arguments: str) -> Message:
    return Message(
        role="assistant", tool_calls=(ToolCall(id="1", function=FunctionCall(name="f", arguments=arguments)),)
    )


CALL = call('{"answers": ["12"]}')


def result(text: str) -> Message:
    return Message(role="tool", content=text, tool_call_id="1")


@pytest.mark.parametrize(
    ("side", "expected"),
    [
        pytest.param([assistant("12")], [1, 0, 1, 0], id="an_answer"),
        pytest.param([assistant(" \n")], [1, 0, 0, 0], id="white_space_is_none"),
        pytest.param([CALL], [1, 1, 1, 0], id="a_call_may_be_the_answer"),
        pytest.param([call('{"answers": []}')], [1, 1, 0, 0], id="a_call_that_says_nothing_is_none"),
        pytest.param([call('{"answers": [')], [1, 1, 0, 0], id="nor_is_one_without_json"),
        pytest.param([assistant("<tool_call>\n{oops")], [1, 0, 0, 0], id="a_call_that_did_not_parse_is_none"),
        pytest.param([CALL, result("[(1,)]"), assistant("1")], [3, 1, 1, 0], id="work_and_answer"),
        pytest.param(
            [CALL, result("no such table: x"), CALL, result("Error 1064"), assistant("sorry, an error")],
            [5, 2, 1, 2],
            id="errors_are_the_tools_only",
        ),
    ],
)
def test_features(side, expected):
    assert [feature(side) for feature in FEATURES.values()] == expected
    assert list(FEATURES) == ["messages", "tool calls", "has an answer", "tool errors"]


def test_more_is_better_is_half_right_where_both_have_as_much():
    assert wins([3, 1, 2], [1, 3, 2]) == [1.0, 0.0, 0.5]
