from collections import Counter

import pytest

from agentgrpo.chat.conversations import (
    RowError,
    normalize_tool_call_ids,
    read_conversation,
    read_message,
    read_tools,
    without_tools,
)
from agentgrpo.chat.messages import FunctionCall, Message, ToolCall


def read(raw):
    return read_message(raw, "m", Counter())


def called(call_id, name="sql", arguments="{}", content=""):
    calls = (ToolCall(id=call_id, function=FunctionCall(name=name, arguments=arguments)),)
    return Message(role="assistant", content=content, tool_calls=calls)


def result(call_id, content="rows"):
    return Message(role="tool", content=content, tool_call_id=call_id)


USER, REPLY = Message(role="user", content="how many?"), Message(role="assistant", content="two")


@pytest.mark.parametrize(
    ("spelling", "role"),
    [("human", "user"), ("gpt", "assistant"), ("developer", "system"), ("observation", "tool"), (" User ", "user")],
)
def test_roles_are_read_in_every_common_spelling(spelling, role):
    assert read({"from": spelling, "value": "x"}) == Message(role=role, content="x")


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(
            {"id": "a", "type": "function", "function": {"name": "sql", "arguments": '{"q": "é"}'}}, id="openai"
        ),
        pytest.param({"id": "a", "function": {"name": "sql", "arguments": {"q": "é"}}}, id="arguments_as_object"),
        pytest.param({"id": "a", "name": "sql", "arguments": {"q": "é"}}, id="flat"),
    ],
)
def test_tool_calls_are_read_with_arguments_as_text(call):
    message = read({"role": "assistant", "content": None, "tool_calls": [call]})
    assert message == called("a", arguments='{"q": "é"}')


@pytest.mark.parametrize("key", ["parameters", "args", "input"])
def test_arguments_are_read_under_every_common_name_and_what_else_a_call_has_is_counted(key):
    changes = Counter()
    call = {"type": "tool_call", "name": "sql", key: {"q": 1}, "id": "a", "note": "x", "index": None}
    message = read_message({"role": "assistant", "content": "", "tool_calls": [call]}, "m", changes)
    assert message == called("a", arguments='{"q": 1}')
    assert changes == {"field 'note' of a call left out": 1}


def test_the_first_tool_interface_of_openai_is_read():
    asks = read({"role": "assistant", "content": None, "function_call": {"name": "sql", "arguments": "{}"}})
    answers = read({"role": "function", "name": "sql", "content": "rows"})
    assert normalize_tool_call_ids([USER, asks, answers], "m")[1:] == [called("call00001"), result("call00001")]


def test_fields_that_a_merged_schema_added_hide_nothing():
    call = {"name": "sql", "arguments": "{}"}
    assert read({"role": "assistant", "content": "", "tool_calls": [], "function_call": call}) == called("")
    assert read({"from": "gpt", "content": None, "value": "x"}) == Message(role="assistant", content="x")
    assert read({"role": None, "from": "gpt", "content": "x", "value": ""}) == Message(role="assistant", content="x")
    assert read({"role": "assistant", "from": "gpt", "content": "x"}) == Message(role="assistant", content="x")


def test_sharegpt_writes_calls_into_the_text():
    message = read({"from": "function_call", "value": '[{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]'})
    assert [(call.function.name, call.function.arguments) for call in message.tool_calls] == [
        ("f", '{"a": 1}'),
        ("g", "{}"),
    ]


def test_parts_of_text_become_one_text():
    assert (
        read({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}).content
        == "ab"
    )


def test_half_a_surrogate_pair_becomes_the_replacement_character_and_is_counted():
    changes = Counter()
    assert read_message({"role": "user", "content": "cut \ud83d"}, "m", changes).content == "cut \ufffd"
    assert changes == {"texts with half a surrogate pair, replaced by U+FFFD": 1}


def test_what_is_left_out_or_renamed_is_counted_by_name():
    changes = Counter()
    read_message({"role": "human", "content": "x", "name": "Ann", "refusal": None}, "m", changes)
    assert changes == {"role 'human' read as 'user'": 1, "message field 'name' left out": 1}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        pytest.param("hello", "m: expected a message object, found 'hello'", id="text"),
        pytest.param({"content": "x"}, "m.from: unknown role None", id="no_role"),
        pytest.param({"role": "wizard", "content": "x"}, "m.role: unknown role 'wizard'", id="unknown_role"),
        pytest.param({"role": ["user"], "content": "x"}, "m.role: unknown role", id="role_no_text"),
        pytest.param({"role": "user", "content": 4}, "m.content: expected a text, found 4", id="number"),
        pytest.param(
            {"role": "user", "content": None},
            "m.content: a user message without a text; write one, or leave it out",
            id="null",
        ),
        pytest.param({"role": "system", "content": " "}, "m.content: a system message without a text", id="blank"),
        pytest.param({"role": "user", "content": [{"type": "image_url"}]}, "found 'image_url'", id="image"),
        pytest.param(
            {"role": "user", "content": [{"type": "image", "text": ""}, {"type": "text", "text": "x"}]},
            "m.content.0: expected a part with a text, found 'image'",
            id="image_with_an_empty_text",
        ),
        pytest.param({"role": "assistant", "tool_calls": "f"}, "m.tool_calls: expected a list", id="calls_no_list"),
        pytest.param(
            {"role": "assistant", "tool_calls": [{"id": "a"}]}, "m.tool_calls.0: expected a call", id="no_name"
        ),
        pytest.param(
            {"role": "assistant", "tool_calls": [{"name": "f", "kwargs": {"a": 1}}]},
            "m.tool_calls.0: expected the arguments as one of arguments, parameters, args, input, found only 'kwargs'",
            id="arguments_under_an_unknown_name",
        ),
        pytest.param(
            {"role": "assistant", "tool_calls": [{"function": {"name": "f"}, "arguments": {"a": 1}}]},
            "found only 'arguments'",
            id="arguments_beside_the_function",
        ),
        pytest.param(
            {"role": "assistant", "tool_calls": [{"name": "f", "args": {"a": 1}, "input": {"a": 2}}]},
            "m.tool_calls.0: args and input",
            id="arguments_twice",
        ),
        pytest.param(
            {"role": "assistant", "tool_calls": [{"name": "f"}], "function_call": {"name": "g"}},
            "m.function_call: both function_call and tool_calls",
            id="calls_in_both_ways",
        ),
        pytest.param(
            {"from": "function_call", "value": '{"name": "f"}', "tool_calls": [{"name": "g"}]},
            "m.value: holds a call, and tool_calls",
            id="calls_in_text_and_field",
        ),
        pytest.param({"role": "user", "content": "x", "value": "y"}, "m.value: differs from", id="content_and_value"),
        pytest.param({"role": "user", "from": "gpt", "content": "x"}, "m.from: 'gpt' contradicts", id="role_and_from"),
        pytest.param({"from": "function_call", "value": "f(x)"}, "m.value: expected a call as JSON", id="call_no_json"),
        pytest.param(
            {"role": "user", "content": "x", "tool_calls": [{"name": "f"}]},
            "only an assistant calls tools",
            id="user_calls",
        ),
    ],
)
def test_a_message_that_cannot_be_read_is_named_with_its_field(raw, words):
    with pytest.raises(RowError) as problem:
        read(raw)
    assert words in str(problem.value)


def test_an_empty_list_is_no_conversation():
    with pytest.raises(RowError, match="m: expected messages, found an empty list"):
        read_conversation([], "m", Counter())


def test_calls_are_numbered_anew_so_that_equal_conversations_are_equal():
    one = [USER, called("x7"), result("x7"), called("x8"), result("x8"), REPLY]
    other = [USER, called("q1"), result("q1"), called("q2"), result("q2"), REPLY]
    expected = [USER, called("call00001"), result("call00001"), called("call00002"), result("call00002"), REPLY]
    assert normalize_tool_call_ids(one, "m") == normalize_tool_call_ids(other, "m") == expected
    assert normalize_tool_call_ids(expected, "m") == expected


def test_results_find_their_call_by_id_and_without_one_in_order():
    both = Message(role="assistant", tool_calls=(*called("a").tool_calls, *called("b").tool_calls))
    answers = normalize_tool_call_ids([USER, both, result("b", "of b"), result("a", "of a")], "m")[2:]
    assert [(m.tool_call_id, m.content) for m in answers] == [("call00002", "of b"), ("call00001", "of a")]
    answers = normalize_tool_call_ids([USER, both, result(None, "first"), result(None, "second")], "m")[2:]
    assert [(m.tool_call_id, m.content) for m in answers] == [("call00001", "first"), ("call00002", "second")]


@pytest.mark.parametrize(
    ("conversation", "words"),
    [
        pytest.param(
            [USER, result("a"), REPLY],
            "m.1: a tool's result that answers no call; put it after its call, or leave it out",
            id="no_call",
        ),
        pytest.param([USER, called("a"), result("b")], "m.2: a tool's result that answers no call", id="another_id"),
        pytest.param([USER, called("a"), result("a"), result("a")], "m.3: a tool's result", id="answered_twice"),
        pytest.param(
            [USER, Message(role="system", content="x")], "m.1: a system message that is not", id="late_system"
        ),
    ],
)
def test_a_conversation_that_no_template_could_mean_is_refused(conversation, words):
    with pytest.raises(RowError, match=words):
        normalize_tool_call_ids(conversation, "m")


def test_a_problem_in_the_prompt_is_called_so():
    with pytest.raises(RowError, match=r"^prompt\.1: "):
        normalize_tool_call_ids([USER, result("a"), REPLY], "chosen", num_prompt=2)
    with pytest.raises(RowError, match=r"^chosen\.0: "):
        normalize_tool_call_ids([USER, result("a"), REPLY], "chosen", num_prompt=1)


def test_without_tools_the_texts_are_left_and_replies_do_not_follow_each_other():
    changes = Counter()
    conversation = [USER, called("a", content="Let me look."), result("a"), called("b"), result("b"), REPLY]
    expected = [USER, Message(role="assistant", content="Let me look.\n\ntwo")]
    assert without_tools(conversation, changes) == expected
    assert changes == {
        "tool calls dropped, on both sides": 2,
        "tool results dropped, on both sides": 2,
        "replies joined, with only dropped tools between them": 1,
    }


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(None, None, id="none"),
        pytest.param([], None, id="empty"),
        pytest.param("", None, id="blank"),
        pytest.param('[{"name": "f"}]', '[{"type": "function", "function": {"name": "f"}}]', id="bare_as_text"),
        pytest.param(
            [{"type": "function", "function": {"name": "f"}}], '[{"type": "function", "function": {"name": "f"}}]'
        ),
        pytest.param([{"name": "f", "strict": None}], '[{"type": "function", "function": {"name": "f"}}]', id="nulls"),
        pytest.param(
            '[{"name": "f", "strict": null}]',
            '[{"type": "function", "function": {"name": "f", "strict": null}}]',
            id="nulls_of_a_text",
        ),
    ],
)
def test_tools_become_a_json_list_in_openais_wrapping(value, expected):
    assert read_tools(value, "tools", Counter()) == expected


@pytest.mark.parametrize("value", ["{", {"name": "f"}, ["f"], 3])
def test_tools_that_are_no_list_of_schemas_are_a_problem(value):
    with pytest.raises(RowError, match=r"^tools: expected a"):
        read_tools(value, "tools", Counter())
