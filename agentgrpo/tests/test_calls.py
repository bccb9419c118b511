import json
from collections import Counter

import pytest

from agentgrpo.chat.calls import plain_schemas, repair_tool_calls
from agentgrpo.chat.messages import FunctionCall, Message, ToolCall


def mended(arguments, parameters=None):
    call = ToolCall(function=FunctionCall(name="sql", arguments=arguments))
    tools = json.dumps([{"function": {"name": "sql", "parameters": parameters}}]) if parameters else None
    changes = Counter()
    [message] = repair_tool_calls([Message(role="assistant", tool_calls=(call,))], tools, changes)
    return message.tool_calls[0].function.arguments, changes


def null(name):
    return f"null as argument {name!r} of a call left out"


@pytest.mark.parametrize(
    "arguments", ['{"q":  "SELECT 1"}', '{"q": [null, 1]}', "{}", "{", "[1]", '"text"', "", "null"]
)
def test_arguments_without_nulls_keep_their_text(arguments):
    assert mended(arguments) == (arguments, {})


@pytest.mark.parametrize(
    ("arguments", "expected", "left_out"),
    [
        ('{"q": "é", "answers": null}', '{"q": "é"}', ["answers"]),
        ('{"answers": null}', "{}", ["answers"]),
        ('{"where": {"a": 1, "b": null}}', '{"where": {"a": 1}}', ["b"]),
        ('{"where": [{"a": 1, "b": null}, null]}', '{"where": [{"a": 1}, null]}', ["b"]),
    ],
)
def test_nulls_that_a_table_filled_in_are_left_out_and_counted(arguments, expected, left_out):
    assert mended(arguments) == (expected, {null(name): 1 for name in left_out})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": ["string", "null"]},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"enum": ["a", None]},
        {"type": "string", "nullable": True},
    ],
)
def test_a_null_that_the_tool_allows_is_kept(schema):
    assert mended('{"q": null}', {"properties": {"q": schema}}) == ('{"q": null}', {})


def test_a_null_where_the_tool_requires_a_value_is_what_was_said():
    parameters = {"properties": {"q": {"type": "string"}, "n": {"type": "integer"}, "path": None}, "required": ["q"]}
    assert mended('{"q": null, "n": null, "path": null, "more": null}', parameters) == (
        '{"q": null}',
        {null("n"): 1, null("path"): 1, null("more"): 1},
    )


@pytest.mark.parametrize("times", [2, 3])
def test_arguments_that_were_encoded_again_are_decoded_and_counted(times):
    text = {"q": "SELECT 'a'"}
    for _ in range(times):
        text = json.dumps(text)
    decoded = "arguments of calls that were encoded twice, decoded"
    assert mended(text) == ('{"q": "SELECT \'a\'"}', {decoded: 1})


def test_schemas_lose_their_nulls_but_for_defaults_of_what_may_be_null():
    changes = Counter()
    parameters = {
        "properties": {
            "q": {"type": "string", "enum": None, "default": None},
            "n": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            "path": None,
        },
        "required": None,
    }
    assert plain_schemas([parameters], changes) == [
        {
            "properties": {
                "q": {"type": "string"},
                "n": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            }
        }
    ]
    assert changes == {"nulls in the schemas of tools left out": 4}
