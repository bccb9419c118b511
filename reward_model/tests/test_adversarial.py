import pytest

from agentgrpo.chat.messages import FunctionCall, Message, ToolCall
from reward_model.datatypes import Preference
from reward_model.measures import FLUENT, REPEATS, adversarial_sides, neighbours
from reward_model.tests.conftest import assistant, user


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
