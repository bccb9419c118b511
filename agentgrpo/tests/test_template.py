"""What a chat template gets to read, and what it says when it refuses."""

import pytest

from agentgrpo.chat.calls import call, calls
from agentgrpo.chat.template import ChatTemplate, ChatTemplateError, for_template, render


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        pytest.param('{"query": "SELECT 1"}', {"query": "SELECT 1"}, id="an_object"),
        pytest.param({"query": "SELECT 1"}, {"query": "SELECT 1"}, id="an_object_already"),
        pytest.param("[1]", "[1]", id="another_value_stays_text"),
        pytest.param("{broken", "{broken", id="no_json_stays_text"),
        pytest.param("[" * 100_000, "[" * 100_000, id="brackets_nested_too_deep_stay_text"),
    ],
)
def test_a_template_reads_arguments_of_calls_as_objects(arguments, read):
    asked = {"id": "call_0", "type": "function", "function": {"name": "sql", "arguments": arguments}}
    function = {"name": "sql", "arguments": read}
    expected = {"role": "assistant", "content": "", "tool_calls": [{**asked, "function": function}]}
    assert for_template(calls(asked)) == expected


def test_a_template_reads_no_weight_and_the_message_keeps_it():
    message = {"role": "assistant", "content": "Ok.", "weight": 0}
    assert for_template(message) == {"role": "assistant", "content": "Ok."}
    assert message["weight"] == 0


def test_a_call_has_its_arguments_as_text():
    function = {"name": "sql", "arguments": '{"q": "é"}'}
    assert call("sql", {"q": "é"}, "a") == {"id": "a", "type": "function", "function": function}
    assert call("sql", '{"q":  1}')["function"]["arguments"] == '{"q":  1}'


TEMPLATE = (
    "{{ bos_token }}{{ tools | length if tools else 'no' }} tools{% for m in messages %} {{ m.role }}{% endfor %}"
)
TEMPLATE += "{% if add_generation_prompt %} assistant:{% endif %}"


def test_a_conversation_is_rendered_with_tools_special_tokens_and_the_beginning_of_the_next_reply():
    user = {"role": "user", "content": "a"}
    tool = {"type": "function", "function": {"name": "sql"}}
    assert render(TEMPLATE, [user], [tool], special={"bos_token": "<s>"}, prompt=True) == "<s>1 tools user assistant:"
    template = ChatTemplate(TEMPLATE, None, {"bos_token": "<s>"}, lambda text: [len(text)], "m")
    assert template.ids([user]) == [len("<s>no tools user")]
    template = ChatTemplate(TEMPLATE, [tool, tool], {}, lambda text: [len(text)], "m")
    assert template.ids([user], prompt=True) == [len("2 tools user assistant:")]


def test_what_a_template_refuses_is_said_with_its_model_and_what_to_do():
    template = ChatTemplate("{{ raise_exception('no') }}", None, {}, lambda text: [], "models/m")
    words = r"the chat template of models/m refuses the conversation \(TemplateError: no\); give another"
    with pytest.raises(ChatTemplateError, match=words):
        template.write([{"role": "user", "content": "a"}], remedy="give another")
