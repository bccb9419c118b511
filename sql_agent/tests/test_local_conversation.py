"""Conversations in ids: what the template would have written, without tokenising anew what was sampled."""

import json
from pathlib import Path

import pytest
import trl
from transformers import AutoTokenizer

from agentgrpo.chat.replies import Conversation
from agentgrpo.chat.template import ChatTemplateError
from dbbench_adapter.protocols import fc

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
FIRST = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "How many rows?"}]


@pytest.fixture
def tokenizer(random_policy_folder):
    return AutoTokenizer.from_pretrained(random_policy_folder)


def call(name: str, **arguments) -> dict:
    return {"id": "call00000", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def test_a_rollout_of_three_turns_is_what_the_template_writes_of_its_messages(tokenizer):
    conversation = Conversation(tokenizer, fc.TOOLS)
    ask = {"role": "assistant", "content": "", "tool_calls": [call("execute_sql", query="SELECT 'a b'")]}
    thought = {"role": "assistant", "content": "I think."}
    turns = [
        (ask, [{"role": "tool", "tool_call_id": "call00000", "content": "[(3,)]"}]),
        (thought, [{"role": "user", "content": "No call was found."}]),
    ]
    messages, ids = list(FIRST), conversation.first_prompt(FIRST)
    for reply, answers in turns:
        whole = tokenizer.apply_chat_template([*messages, reply], tools=fc.TOOLS, tokenize=False)
        sampled = tokenizer.encode(whole[len(tokenizer.decode(ids)) :].removesuffix("\n"), add_special_tokens=False)
        ids += sampled + conversation.after_reply(FIRST, conversation.read_reply(sampled), answers)
        messages += [reply, *answers]
    expected = tokenizer.apply_chat_template(messages, tools=fc.TOOLS, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(ids) == expected


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        pytest.param(
            '<tool_call>\n{"name": "execute_sql", "arguments": {"query": "SELECT 1"}}\n</tool_call>',
            [{"name": "execute_sql", "arguments": '{"query": "SELECT 1"}'}],
            id="one_call",
        ),
        pytest.param(
            'Well.<tool_call>{"name": "a", "arguments": {}}</tool_call><tool_call>{"name": "b", "arguments": {}}'
            "</tool_call>",
            [{"name": "a", "arguments": "{}"}, {"name": "b", "arguments": "{}"}],
            id="two_calls_behind_a_thought",
        ),
        pytest.param("<tool_call>\n{broken}\n</tool_call>", None, id="no_json"),
        pytest.param('<tool_call>\n{"name": "execute_sql", "argu', None, id="cut"),
        pytest.param("Just words.", None, id="no_call"),
        pytest.param("", None, id="nothing"),
    ],
)
def test_what_a_reply_calls(tokenizer, text, calls):
    conversation = Conversation(tokenizer, fc.TOOLS)
    reply = conversation.read_reply(tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False))
    assert reply["content"] == text
    assert (calls is None) == ("tool_calls" not in reply)
    assert calls is None or [one["function"] for one in reply["tool_calls"]] == calls


def test_a_call_nested_too_deep_to_read_is_text(tokenizer):
    nested = '<tool_call>{"name": "a", "arguments": ' + "[" * 3000 + "]" * 3000 + "}</tool_call><|im_end|>"
    reply = Conversation(tokenizer, fc.TOOLS).read_reply(tokenizer.encode(nested, add_special_tokens=False))
    assert "tool_calls" not in reply


def test_arguments_nested_too_deep_for_a_template_are_left_out(tokenizer):
    """A template that fails on them ended a local run."""
    nested = '<tool_call>{"name": "a", "arguments": {"b": ' + "[" * 900 + "]" * 900 + "}}</tool_call><|im_end|>"
    conversation = Conversation(tokenizer, fc.TOOLS)
    reply = conversation.read_reply(tokenizer.encode(nested, add_special_tokens=False))
    assert reply["tool_calls"] == [call("a")]
    conversation.after_reply([{"role": "user", "content": "q"}], reply, [{"role": "tool", "content": "Error."}])


def test_a_tokenizer_that_names_no_end_is_named(tokenizer):
    tokenizer.eos_token = None
    with pytest.raises(ChatTemplateError, match="has no eos_token"):
        Conversation(tokenizer)


def test_where_no_tools_are_offered_a_call_is_text(tokenizer):
    ids = tokenizer.encode('<tool_call>{"name": "a", "arguments": {}}</tool_call><|im_end|>', add_special_tokens=False)
    assert "tool_calls" not in Conversation(tokenizer).read_reply(ids)


@pytest.mark.parametrize(
    ("name", "eos"),
    [
        ("qwen2_5", "<|im_end|>"),
        ("qwen3", "<|im_end|>"),
        ("qwen3_5_think", "<|im_end|>"),
        ("qwen3_instruct_2507", "<|im_end|>"),
        ("llama3_1", "<|eot_id|>"),
        ("llama3_2", "<|eot_id|>"),
    ],
)
def test_templates_of_known_families_can_be_trained_on(tokenizer, name, eos):
    tokenizer.chat_template = (TEMPLATES / f"{name}.jinja").read_text()
    tokenizer.add_special_tokens({"eos_token": eos, "bos_token": "<s>"})
    conversation = Conversation(tokenizer, fc.TOOLS)
    between = conversation.after_reply(FIRST, {"content": "x"}, [{"role": "user", "content": "Next?"}])
    assert "Next?" in tokenizer.decode(between)


@pytest.mark.parametrize(("tools", "taken"), [(fc.TOOLS, "tool_use"), ([], "default")])
def test_of_several_templates_the_one_of_the_prompts_is_used_and_saved(tokenizer, tools, taken):
    own = tokenizer.chat_template
    tokenizer.chat_template = {"default": own + "{# default #}", "tool_use": own + "{# tool_use #}"}
    Conversation(tokenizer, tools)
    assert tokenizer.chat_template == own + f"{{# {taken} #}}"


def test_templates_of_other_names_are_refused_by_name(tokenizer):
    tokenizer.chat_template = {"rag": tokenizer.chat_template}
    with pytest.raises(ChatTemplateError, match=r"multiple chat templates with no default.*rag"):
        Conversation(tokenizer, fc.TOOLS)


def test_a_template_that_rewrites_earlier_turns_gives_way_to_one_that_does_not(tokenizer, caplog):
    tokenizer.chat_template = (TEMPLATES / "qwen3.jinja").read_text()
    Conversation(tokenizer)
    assert tokenizer.chat_template == (TEMPLATES / "qwen3_training.jinja").read_text()
    assert "TRL's version of it for training" in caplog.text


@pytest.mark.parametrize(
    ("template", "words"),
    [
        pytest.param(None, "has no chat template", id="none"),
        pytest.param(
            "{% for m in messages %}{{ loop.length }}{{ m.role }}{{ m.content }}<|im_end|>{% endfor %}",
            "does not preserve prefixes",
            id="counts_its_messages",
        ),
        pytest.param(
            "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}", "does not preserve prefixes", id="no_ends"
        ),
        pytest.param(
            "{% for m in messages %}{{ m.role }}{{ m.content }}{{ m.tool_calls }}<|im_end|>{% endfor %}",
            "use --protocol text",
            id="calls_in_python",
        ),
        pytest.param(
            "{% for m in messages %}{{ m.role }}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
            "{{ c.function | tojson }}</tool_call>{% else %}<|im_end|>{% endfor %}{% endfor %}",
            r"a turn does not end with <\|im_end\|>",
            id="calls_that_nothing_ends",
        ),
        pytest.param("{{ raise_exception('only one message') }}", "only one message", id="raises"),
    ],
)
def test_a_template_that_cannot_be_trained_on_is_named(tokenizer, template, words):
    tokenizer.chat_template = template
    with pytest.raises(ChatTemplateError, match=words):
        Conversation(tokenizer, fc.TOOLS)
