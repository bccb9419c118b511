import math

import pytest

from agentgrpo.chat.messages import FunctionCall, Message, ToolCall
from reward_model.datatypes import Preference
from reward_model.measures import (
    FEATURES,
    FLUENT,
    REPEATS,
    Bin,
    adversarial_sides,
    calibration_bins,
    expected_calibration_error,
    neighbours,
    wins,
)
from reward_model.tests.conftest import assistant, user

# Rules ----------------------------------------------------------------------------------------------------------------


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


# Bad answers ----------------------------------------------------------------------------------------------------------


def pair(question: str, answer: str) -> Preference:
    return Preference(prompt=(user(question),), chosen=(assistant(answer),), rejected=(assistant("x"),))


CALL = Message(
    role="assistant", tool_calls=(ToolCall(id="1", function=FunctionCall(name="answer", arguments='{"rows": 4}')),)
)
RESULT = Message(role="tool", content="4", tool_call_id="1")


def test_the_answer_alone_is_replaced_and_the_work_before_it_stays():
    row = Preference(
        prompt=(Message(role="system", content="s"), user("How many?"), assistant("Of what?"), user("Of cats?")),
        chosen=(CALL, RESULT, assistant("4")),
        rejected=(assistant("5"),),
    )
    assert adversarial_sides(row, pair("Who?", "Ann")) == {
        "empty": (CALL, RESULT, assistant("")),
        "question repeated": (CALL, RESULT, assistant("Of cats?")),
        "very long": (CALL, RESULT, assistant(" ".join(["4"] * REPEATS))),
        "fluent and wrong": (CALL, RESULT, assistant(FLUENT)),
        "no work, fluent": (assistant(FLUENT),),
        "another task's answer": (CALL, RESULT, assistant("Ann")),
    }


def test_an_answer_given_by_a_call_is_drawn_out_by_its_arguments():
    row = Preference(prompt=(user("How many?"),), chosen=(CALL,), rejected=(assistant("5"),))
    assert adversarial_sides(row, None)["very long"] == (assistant(" ".join(['{"rows": 4}'] * REPEATS)),)


def test_without_another_task_there_is_no_answer_of_one():
    assert "another task's answer" not in adversarial_sides(pair("a", "1"), None)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param([("a", "1"), ("b", "2"), ("c", "3")], [1, 2, 0], id="the_next_in_a_circle"),
        pytest.param([("a", "1"), ("a", "2"), ("b", "3")], [2, 2, 0], id="not_of_the_same_prompt"),
        pytest.param([("a", "1"), ("b", "1"), ("c", "3")], [2, 2, 0], id="not_with_the_same_answer"),
        pytest.param([("a", "1"), ("a", "2")], [None, None], id="one_prompt_has_no_neighbour"),
        pytest.param([("a", "1")], [None], id="one_pair"),
    ],
)
def test_neighbours(rows, expected):
    made = [pair(*row) for row in rows]
    assert neighbours(made) == [None if i is None else made[i] for i in expected]


# Calibration ----------------------------------------------------------------------------------------------------------


# sigmoid(ln 3) = 3/4 and sigmoid(ln(17/3)) = 17/20
MARGINS = [math.log(3), math.log(3), -math.log(3), math.log(17 / 3), 0.0]


def test_pairs_are_grouped_by_how_sure_the_model_is_of_the_side_it_prefers():
    assert calibration_bins(MARGINS, bins=5) == [
        Bin(0.5, 0.6, 1, 0.5, 0.5),  # the tie is half right
        Bin(pytest.approx(0.7), pytest.approx(0.8), 3, pytest.approx(0.75), pytest.approx(2 / 3)),
        Bin(pytest.approx(0.8), pytest.approx(0.9), 1, pytest.approx(0.85), 1.0),
    ]


def test_the_calibration_error_weighs_bins_by_their_pairs():
    # (1 * |0.5 - 0.5| + 3 * |2/3 - 3/4| + 1 * |1 - 0.85|) / 5 = (0.25 + 0.15) / 5
    assert expected_calibration_error(MARGINS, bins=5) == pytest.approx(0.08)


def test_a_model_that_is_sure_and_always_wrong_is_off_by_one():
    assert calibration_bins([-1000.0] * 3) == [Bin(pytest.approx(0.95), 1.0, 3, 1.0, 0.0)]
    assert expected_calibration_error([-1000.0] * 3) == 1.0


def test_as_often_right_as_it_says_is_calibrated():
    assert expected_calibration_error([math.log(3)] * 3 + [-math.log(3)]) == pytest.approx(0.0)
