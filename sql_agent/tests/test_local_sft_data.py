import json
import sqlite3
from contextlib import closing, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

import pytest

from agentgrpo.chat.replies import Conversation, EncodedReplies, encode_conversation
from agentgrpo.chat.template import ChatTemplateError
from dbbench_adapter.datatypes import Gold
from dbbench_adapter.engines.sqlite.backend import SqliteBackend
from dbbench_adapter.generator import generate_tasks
from dbbench_adapter.protocols import PROTOCOLS, fc
from sql_agent.environments.base import make_environment
from sql_agent.environments.dbbench import DbBench
from sql_agent.environments.rows import RowTask
from sql_agent.oracle import call, calls
from sql_agent.settings.groups import EnvironmentSettings
from sql_agent.sft.data import (
    DataError,
    Demonstration,
    PlainText,
    dbbench_demonstrations,
    encode_all,
    encode_text,
    read_messages,
    reference_demonstrations,
)
from sql_agent.tests.conftest import forget_user_files
from sql_agent.text_to_sql.datatypes import Question
from sql_agent.text_to_sql.environment import TextToSql
from sql_agent.tiny_policy.tokenizer import build_tokenizer

BACKEND = SqliteBackend()
TRL_TEMPLATES = Path(find_spec("trl").submodule_search_locations[0]) / "chat_templates"
SPECIAL = ["<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<start_of_turn>", "<end_of_turn>"]


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(["SELECT COUNT(*) FROM fish; how many rows has the table?"])


@pytest.fixture(scope="module")
def with_template():
    """A tokenizer that knows the special tokens of several families, with a template that TRL ships."""

    def made(name):
        tokenizer = build_tokenizer(["SELECT COUNT(*) FROM fish"])
        tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL, "bos_token": "<s>"})
        tokenizer.chat_template = (TRL_TEMPLATES / f"{name}.jinja").read_text()
        return tokenizer

    return made


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


SQL_CALL = calls(call("execute_sql", {"query": "SELECT 1"}, "call_a"))
EPISODE = [
    {"role": "system", "content": "Rules."},
    user("How many?"),
    SQL_CALL,
    {"role": "tool", "tool_call_id": "call_a", "content": "[(1,)]"},
    assistant("One."),
]


def pieces(tokenizer, encoded: EncodedReplies) -> list[tuple[str, int]]:
    """The conversation as text, cut where the mask changes."""
    runs = groupby(zip(encoded.ids, encoded.mask, strict=True), key=lambda pair: pair[1])
    return [(tokenizer.decode([token for token, _ in run]), said) for said, run in runs]


# Tokens ---------------------------------------------------------------------------------------------------------------


def test_exactly_the_replies_are_learnt_up_to_the_token_that_ends_them(tokenizer):
    encoded = encode_conversation(tokenizer, EPISODE, fc.TOOLS)
    assert pieces(tokenizer, encoded) == [
        ("<|im_start|>system\nRules.<|im_end|>\n<|im_start|>user\nHow many?<|im_end|>\n<|im_start|>assistant\n", 0),
        ('<tool_call>\n{"name": "execute_sql", "arguments": {"query": "SELECT 1"}}\n</tool_call><|im_end|>', 1),
        ("\n<|im_start|>user\n<tool_response>\n[(1,)]\n</tool_response><|im_end|>\n<|im_start|>assistant\n", 0),
        ("One.<|im_end|>", 1),
    ]


def test_labels_hide_what_is_not_learnt_from_the_loss():
    assert EncodedReplies([5, 6, 7, 8], [0, 1, 1, 0]).labels == [-100, 6, 7, -100]


def test_an_assistant_turn_of_the_prompt_is_not_learnt_and_what_follows_the_last_reply_is_left_out(tokenizer):
    messages = [user("a"), assistant("Ok.", weight=0), user("b"), assistant("c"), user("never read")]
    assert pieces(tokenizer, encode_conversation(tokenizer, messages)) == [
        (
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nOk.<|im_end|>\n"
            "<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n",
            0,
        ),
        ("c<|im_end|>", 1),
    ]


@pytest.mark.parametrize("template", ["qwen2_5", "qwen3_training", "llama3", "gemma", "qwen3_instruct_2507"])
def test_the_prompt_is_what_the_engine_will_read_whatever_the_template(with_template, template):
    tokenizer = with_template(template)
    messages = [user("How many?"), assistant("One."), user("And now?"), assistant("Two.")]
    encoded = encode_conversation(tokenizer, messages, fc.TOOLS)
    engine = {"tools": fc.TOOLS, "add_generation_prompt": True, "return_dict": False}
    first, second = (tokenizer.apply_chat_template(messages[:turn], **engine) for turn in (1, 3))
    assert encoded.mask.index(1) == len(first)
    assert encoded.ids[: len(first)] == first
    last = len(encoded.mask) - encoded.mask[::-1].index(0)  # where the second reply begins
    assert tokenizer.decode(encoded.ids[:last]) == tokenizer.decode(second)
    end = {"llama3": "<|eot_id|>", "gemma": "<end_of_turn>"}.get(template, "<|im_end|>")
    thought = "<think>\n\n</think>\n\n" if template == "qwen3_training" else ""
    assert [text for text, said in pieces(tokenizer, encoded) if said] == [
        f"{thought}{reply}{end}" for reply in ("One.", "Two.")
    ]


@pytest.mark.parametrize("protocol", ["fc", "text", "lab"])
def test_what_is_learnt_is_what_a_rollout_would_be_had_the_policy_said_it(tokenizer, protocol):
    (task,) = generate_tasks(1, seed=4)
    tools, first = PROTOCOLS[protocol].tools, PROTOCOLS[protocol].messages(task)
    (shown,) = dbbench_demonstrations([task], DbBench("strict", protocol, BACKEND)).kept
    encoded = encode_conversation(tokenizer, shown.messages, shown.tools)
    *_, reply, answer, last = shown.messages
    start = encoded.mask.index(1)
    end = encoded.mask.index(0, start)
    sampling = Conversation(tokenizer, tools)
    asked = sampling.first_prompt(first)
    between = sampling.after_reply(first, reply, [answer])
    said = encoded.ids[start:end]
    assert asked + said + between == encoded.ids[: end + len(between)]
    assert encoded.mask == [0] * start + [1] * len(said) + [0] * len(between) + [1] * len(
        encoded.ids[end + len(between) :]
    )
    for message, ids in ((reply, said), (last, encoded.ids[end + len(between) :])):
        read = sampling.read_reply(ids)
        assert [c["function"] for c in read.get("tool_calls", ())] == [
            c["function"] for c in message.get("tool_calls", ())
        ]
        assert message["content"] in (None, read["content"])


@pytest.mark.parametrize(
    ("template", "words"),
    [
        pytest.param(
            (TRL_TEMPLATES / "qwen3.jinja").read_text(),
            "task 't': the chat template of .* does not preserve prefixes: .*--chat-template-path",
            id="earlier_thoughts_are_dropped",
        ),
        pytest.param(
            "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
            "{% if add_generation_prompt %}assistant: {% endif %}",
            r"ends a reply with 'One.', expected a special token: a policy could not learn to stop",
            id="no_end_of_turn",
        ),
        pytest.param(
            "{{ raise_exception('no tools here') if tools }}",
            r"refuses the conversation \(TemplateError: no tools here\); leave such rows out",
            id="raises",
        ),
    ],
)
def test_a_template_that_cannot_be_trained_on_is_refused_with_the_row_and_what_to_do(tokenizer, template, words):
    other = build_tokenizer(["a"])
    other.chat_template = template
    messages = [user("a"), assistant("One."), user("b"), assistant("Two.")]
    with pytest.raises(ChatTemplateError, match=words):
        encode_all(other, [Demonstration(messages, fc.TOOLS, "task 't'")], max_length=100)


WITHOUT_CALLS = "{% for m in messages %}{{ m.role + ': ' + (m.content or '') }}<|im_end|>\n{% endfor %}"
# DeepSeek's form of a reply, whether it is the last one or not
WITHOUT_THOUGHTS = WITHOUT_CALLS.replace("(m.content or '')", "m.content.split('</think>')[-1]")
PROMPT = "{% if add_generation_prompt %}assistant: {% endif %}"
THOUGHT = assistant("<think>one</think>One.")


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        (WITHOUT_CALLS, [user("a"), assistant("One.")], None),
        (
            WITHOUT_CALLS,
            EPISODE,
            "task 't': the chat template of .* leaves out the arguments of tool calls; leave such",
        ),
        (WITHOUT_THOUGHTS, [user("a"), assistant("One.")], None),
        (WITHOUT_THOUGHTS, [user("a"), {**THOUGHT, "weight": 0}, user("b"), assistant("One.")], None),
        (WITHOUT_THOUGHTS, [user("a"), THOUGHT], "leaves out the reasoning of replies .before </think>., which will"),
        (WITHOUT_CALLS, [user("a"), THOUGHT], None),
    ],
)
def test_what_a_template_does_not_write_of_a_reply_is_not_taken_for_learnt(template, messages, words):
    """A user fine-tuned on 90 tokens of calls of which 6 were learnt, each the token that ends a turn."""
    tokenizer = build_tokenizer(["a"])
    tokenizer.chat_template = template + PROMPT
    with pytest.raises(ChatTemplateError, match=words) if words else nullcontext():
        (learnt,) = encode_all(tokenizer, [Demonstration(messages, [], "task 't'")], max_length=100)
        said = messages[-1]["content"]
        assert (
            tokenizer.decode([i for i, kept in zip(learnt.ids, learnt.mask, strict=True) if kept])
            == f"{said}<|im_end|>"
        )


def test_what_is_too_long_is_left_out_whole(tokenizer):
    short, long = ([user("a " * count), assistant("b")] for count in (1, 50))
    fits = len(encode_conversation(tokenizer, short).ids)
    rows = [Demonstration(messages, [], "row") for messages in (long, short)]
    assert encode_all(tokenizer, rows, max_length=fits) == [encode_conversation(tokenizer, short)]
    with pytest.raises(DataError, match=f"all 2 conversations are longer than --max-length {fits - 1}; the shortest"):
        encode_all(tokenizer, rows, max_length=fits - 1)


# DB-Bench -------------------------------------------------------------------------------------------------------------


def test_the_oracles_episode_is_the_prompt_its_statement_the_real_result_and_the_answer():
    task = next(task for task in generate_tasks(8, seed=4) if task.kind == "counting")
    (shown,) = dbbench_demonstrations([task], DbBench("strict", backend=BACKEND)).kept
    (count,) = task.gold.answers
    assert shown == Demonstration(
        [
            *fc.messages(task),
            calls(call("execute_sql", {"query": task.gold.sql}, "call00000")),
            {"role": "tool", "tool_call_id": "call00000", "content": f"[({count},)]"},
            calls(call("commit_final_answer", {"answers": [count]}, "call00001")),
        ],
        fc.TOOLS,
        f"task {task.id!r}",
    )


def test_what_the_judge_does_not_call_right_is_left_out_and_counted_by_reason():
    task = next(task for task in generate_tasks(8, seed=4) if task.gold.answers is not None)
    tasks = [
        task,
        replace(task, id="wrong", gold=Gold(answers=task.gold.answers, rows=((-1,),), sql=task.gold.sql)),
        replace(task, id="guess", gold=Gold(answers=task.gold.answers)),
    ]
    found = dbbench_demonstrations(tasks, DbBench("strict", backend=BACKEND))
    assert [shown.where for shown in found.kept] == [f"task {task.id!r}"]
    assert found.left_out == {"wrong_answer": 1, "no_reference": 1}


def test_an_episode_that_the_protocol_would_cut_is_left_out():
    task = replace(generate_tasks(1, seed=4)[0], table_note="x " * 3500)  # 3,500 segments are all that text shows
    assert dbbench_demonstrations([task], DbBench("strict", "text", BACKEND)).left_out == {"history_cut": 1}


# GSM8K ----------------------------------------------------------------------------------------------------------------


def test_solutions_that_their_calculator_contradicts_are_left_out():
    right, wrong = "It is 2+2 = <<2+2=4>>4.\n#### 4", "It is 2+2 = <<2+2=5>>5.\n#### 5"
    rows = {"a": right, "b": wrong, "c": wrong}
    tasks = [RowTask(id, "gsm8k", {"question": "Two and two?", "answer": text}) for id, text in rows.items()]
    with make_environment(EnvironmentSettings("gsm8k")) as environment:
        found = reference_demonstrations(tasks, environment)
    assert [shown.where for shown in found.kept] == ["task 'a'"]
    assert [message["content"] for message in found.kept[0].messages[2:]] == ["It is 2+2 =", "4", "4.\n#### 4"]
    assert found.left_out == {"no_reference": 2}


# Files ----------------------------------------------------------------------------------------------------------------


def write(folder, *rows) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_a_file_of_messages_is_read_with_its_tools_and_weights(tmp_path):
    messages = [user("a"), assistant("Ok.", weight=0), user("b"), assistant("c", weight=1)]
    path = write(tmp_path, {"messages": EPISODE, "tools": fc.TOOLS}, "", {"messages": messages, "tools": "[]", "id": 7})
    found = read_messages(path)
    assert [(shown.tools, shown.where) for shown in found.kept] == [
        (fc.TOOLS, f"{path}, line 1"),
        ([], f"{path}, line 3"),
    ]
    assert found.kept[0].messages[2:] == [
        assistant("", tool_calls=[call("execute_sql", {"query": "SELECT 1"}, "call00001")]),
        {"role": "tool", "content": "[(1,)]", "tool_call_id": "call00001"},
        assistant("One."),
    ]
    assert found.kept[1].messages == [user("a"), assistant("Ok.", weight=0), user("b"), assistant("c")]
    assert found.notes == {"field 'id' left out": 1, "replies that 'weight' marks as not to be learnt": 1}
    assert len(read_messages(path, limit=1).kept) == 1


def test_a_message_that_is_json_in_a_text_keeps_its_weight(tmp_path):
    messages = [user("a"), assistant("Ok.", weight=0), user("b"), assistant("c")]
    file = tmp_path / "texts.jsonl"
    file.write_text(json.dumps({"messages": [json.dumps(message) for message in messages]}))
    found = read_messages(file)
    assert [one.messages for one in found.kept] == [messages]
    assert found.notes == {"messages that were JSON in a text": 4, "replies that 'weight' marks as not to be learnt": 1}


def test_a_prompt_and_its_completion_are_a_conversation_of_which_the_completion_is_learnt(tokenizer, tmp_path):
    prompt = [user("a"), assistant("Ok."), user("How many?")]
    row = {"prompt": prompt, "completion": [*EPISODE[2:]], "tools": fc.TOOLS}
    found = read_messages(write(tmp_path, row))
    assert found.notes == {}
    assert [message.get("weight") for message in found.kept[0].messages] == [None, 0, None, None, None, None]
    (encoded,) = encode_all(tokenizer, found.kept, max_length=1000)
    whole = encode_conversation(tokenizer, [*prompt, *EPISODE[2:]], fc.TOOLS)
    assert encoded.ids == whole.ids
    assert [text for text, said in pieces(tokenizer, encoded) if said] == [
        '<tool_call>\n{"name": "execute_sql", "arguments": {"query": "SELECT 1"}}\n</tool_call><|im_end|>',
        "One.<|im_end|>",
    ]


@pytest.mark.parametrize("name", ["weight", "loss", "train", "lossMask", "step_loss_mask", "training", "masked"])
@pytest.mark.parametrize("form", ["messages", "completion", "sharegpt", "texts"])
def test_a_reply_that_is_marked_as_not_to_be_learnt_is_context(tokenizer, tmp_path, form, name):
    bad = assistant("It is 7.", **{name: name == "masked"})
    said = [user("a"), bad, user("b"), assistant("c")]
    row = {
        "messages": {"messages": said},
        "completion": {"prompt": said[:1], "completion": said[1:]},
        "sharegpt": {"messages": [{"from": m.pop("role"), "value": m.pop("content"), **m} for m in map(dict, said)]},
        "texts": {"messages": [json.dumps(message) for message in said]},
    }[form]
    found = read_messages(write(tmp_path, row))
    (encoded,) = encode_all(tokenizer, found.kept, max_length=1000)
    assert [text for text, learnt in pieces(tokenizer, encoded) if learnt] == ["c<|im_end|>"]
    assert found.notes[f"replies that {name!r} marks as not to be learnt"] == 1


@pytest.mark.parametrize("name", ["weight", "loss", "train", "loss_mask", "masked"])
@pytest.mark.parametrize(
    "row", [{"messages": [user("a"), assistant("b")]}, {"prompt": "a", "completion": "b"}, {"text": "b"}]
)
def test_a_row_that_is_marked_as_not_to_be_learnt_is_left_out_and_counted(tmp_path, row, name):
    marked = row | {name: name == "masked"}
    found = read_messages(write(tmp_path, marked, row, marked))
    assert [one.where[-1] for one in found.kept] == ["2"]
    assert (found.left_out, found.notes) == ({f"marked by {name!r} as not to be learnt": 2}, {})
    with pytest.raises(DataError, match=f"holds nothing to learn: 1 marked by {name!r} as not to be learnt"):
        read_messages(write(tmp_path, marked))


FORMS = [{"messages": [user("a"), assistant("b")]}, {"prompt": "a", "completion": "b"}, {"text": "b"}]


def test_a_reply_that_a_row_for_kto_calls_bad_is_left_out_and_counted(tmp_path):
    kto = {"prompt": "2+2?", "completion": "4"}
    found = read_messages(write(tmp_path, *(kto | {"label": label} for label in (False, True, False, "math"))))
    assert [one.where[-1] for one in found.kept] == ["2", "4"]
    assert found.left_out == {"marked by 'label' as not to be learnt": 2}
    path = write(tmp_path, kto | {"label": 1})
    with pytest.raises(
        DataError, match="line 1, label: expected true or false, found 1; to learn every row: --columns"
    ):
        read_messages(path)
    assert len(read_messages(path, columns="prompt=prompt,completion=completion").kept) == 1


@pytest.mark.parametrize(
    ("name", "value"), [("label", "math"), ("label", 3), ("label", None), ("is_correct", True), ("image", "a.png")]
)
def test_columns_that_the_form_does_not_have_are_counted(tmp_path, name, value):
    found = read_messages(write(tmp_path, *[row | {name: value} for row in FORMS[:1]]))
    assert (len(found.kept), found.notes) == (1, {} if value is None else {f"field {name!r} left out": 1})


LOOK = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}
OFFERED = [{"type": "function", "function": LOOK}]


@pytest.mark.parametrize("name", ["tools", "functions"])
@pytest.mark.parametrize("value", [[LOOK], OFFERED, json.dumps([LOOK])], ids=["functions", "tools", "text"])
def test_tools_are_offered_under_the_name_of_openais_older_form_too(tmp_path, name, value):
    found = read_messages(write(tmp_path, {"messages": [user("a"), assistant("b")], name: value}))
    assert (found.kept[0].tools, found.notes) == (OFFERED, {})


def test_tools_under_another_name_are_read_by_the_columns_that_the_refusal_prints(tmp_path):
    path = write(tmp_path, {"Messages": [user("a"), assistant("b")], "available_tools": [LOOK]})
    with pytest.raises(DataError) as refused:
        read_messages(path)
    read_it, leave_out = "messages=Messages,tools=available_tools", "messages=Messages"
    assert str(refused.value) == (
        f"{path}, line 1, available_tools: is not read, and looks like tools; to read it: --columns {read_it}; to "
        f"leave it out: --columns {leave_out}"
    )
    assert [read_messages(path, columns=columns).kept[0].tools for columns in (read_it, leave_out)] == [OFFERED, []]


@pytest.mark.parametrize("row", FORMS[1:])
@pytest.mark.parametrize("name", ["tools", "functions", "system"])
def test_tools_and_a_system_message_beside_a_plain_text_are_refused(tmp_path, row, name):
    with pytest.raises(DataError, match=f"line 1, {name}: is read beside messages only; to leave it out: --columns "):
        read_messages(write(tmp_path, row | {name: OFFERED}))


@pytest.mark.parametrize(("name", "where"), [("functions", "the row's tools"), ("function_calls", "tool_calls")])
def test_tools_and_calls_under_another_name_inside_a_message_are_refused(tmp_path, name, where):
    row = {"messages": [user("a"), assistant("b", **{name: [LOOK]})]}
    with pytest.raises(DataError, match=rf"messages\.1\.{name}: is not read in a message; move it to {where}"):
        read_messages(write(tmp_path, row))


@pytest.mark.parametrize("text", ["<image>\nHow many?", "How many?\n<image>", "a\n<video>", "See <image 1>."])
def test_the_place_of_an_image_in_a_text_is_refused(tmp_path, text):
    for row in ({"messages": [user(text), assistant("b")]}, {"prompt": text, "completion": "b"}, {"text": text}):
        with pytest.raises(
            DataError, match=r"holds '<.*>', the place of an image or of sound, and only texts are read"
        ):
            read_messages(write(tmp_path, row))


def test_a_question_about_an_element_of_html_is_read(tmp_path):
    row = {"messages": [user("Explain the tag <video>"), assistant("<video>")]}
    assert len(read_messages(write(tmp_path, row)).kept) == 1


@pytest.mark.parametrize("arguments", [{"query": "SELECT 1", "answers": None, "path": None},
    json.dumps(json.dumps({"query": "SELECT 1"}))])  # fmt: skip
def test_arguments_are_learnt_as_they_were_before_a_table_held_them(tokenizer, tmp_path, arguments):
    called = assistant(None, tool_calls=[{"id": "a", "function": {"name": "execute_sql", "arguments": arguments}}])
    row = {"messages": [user("a"), called], "tools": fc.TOOLS}
    found = read_messages(write(tmp_path, row))
    (encoded,) = encode_all(tokenizer, found.kept, max_length=1000)
    assert [text for text, learnt in pieces(tokenizer, encoded) if learnt] == [
        '<tool_call>\n{"name": "execute_sql", "arguments": {"query": "SELECT 1"}}\n</tool_call><|im_end|>',
    ]
    assert sum(found.notes.values()) == (2 if isinstance(arguments, dict) else 1)


@pytest.mark.parametrize("name", ["question", "instruction", "context", "history", "input", "systemPrompt"])
@pytest.mark.parametrize("row", FORMS)
def test_a_column_that_looks_like_a_prompt_and_is_not_read_is_refused_by_its_name(tmp_path, row, name):
    with pytest.raises(DataError, match=f"line 1, {name}: is not read, and looks like prompt; to read it: --columns "):
        read_messages(write(tmp_path, row | {name: "Be brief."}))


def test_conversations_of_sharegpt_are_read_with_their_system_message(tmp_path):
    said = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    found = read_messages(write(tmp_path, {"conversations": said, "system": "Be brief."}))
    assert found.kept[0].messages == [{"role": "system", "content": "Be brief."}, user("a"), assistant("b")]
    assert found.notes == {}


def test_rows_of_no_known_form_are_read_by_the_columns_that_the_refusal_prints(tmp_path):
    path = write(tmp_path, {"instruction": "Add.", "input": "1 2", "output": "3", "topic": "sums"})
    with pytest.raises(DataError, match=r"name yours: --columns prompt=instruction\+input,completion=output$"):
        read_messages(path)
    found = read_messages(path, columns="prompt=instruction+input,completion=output")
    assert (found.kept, found.notes) == ([PlainText("Add.\n1 2", "3", f"{path}, line 1")], {})


@pytest.mark.parametrize(
    ("row", "learnt"),
    [
        ({"prompt": "The sky is", "completion": " blue."}, " blue.<|im_end|>"),
        ({"prompt": "<|im_start|>user\n1?", "completion": "One<|im_end|>"}, "One<|im_end|>"),
        ({"text": "The sky is blue."}, "The sky is blue.<|im_end|>"),
    ],
)
def test_plain_texts_are_learnt_without_a_template_as_trl_does(tokenizer, tmp_path, row, learnt):
    """A token may span prompt and completion; it is learnt, by TRL too."""
    from types import SimpleNamespace

    from datasets import Dataset
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    (encoded,) = encode_all(tokenizer, read_messages(write(tmp_path, row)).kept, max_length=100)
    args = SFTConfig(output_dir=str(tmp_path / "run"), max_length=None, report_to=[], use_cpu=True, bf16=False)
    trainer = SimpleNamespace(_tokenizer=tokenizer, chat_template=None, completion_only_loss="prompt" in row)
    rows = Dataset.from_list([row])
    theirs = SFTTrainer._prepare_dataset(trainer, rows, tokenizer, args, False, None, "train")[0]  # pyright: ignore
    assert (encoded.ids, encoded.labels) == (theirs["input_ids"], theirs["labels"])
    assert tokenizer.decode([t for t, said in zip(encoded.ids, encoded.mask, strict=True) if said]) == learnt


def test_a_plain_text_needs_a_token_that_ends_it():
    endless = build_tokenizer(["What is 3 + 4? 7"])
    endless.eos_token = None
    with pytest.raises(DataError, match="has no eos_token, so nothing would end a plain text; set one in"):
        encode_text(endless, "What is 3 + 4? ", "7")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"text": "a"}, "line 2, row: plain text and messages in one file; give them as two files"),
        ({"text": " "}, "line 2, text: is empty"),
        ({"text": 3}, "line 2, text: expected a text, found 3"),
        ({"prompt": "a", "completion": ""}, "line 2, completion: is empty"),
        ({"prompt": [user("a")], "completion": "b"}, "line 2, completion: expected a list of messages, found 'b'"),
        (
            {"prompt": [user("a")], "completion": [user("b")]},
            "line 2, completion: no assistant message to imitate; leave the row out",
        ),
        ("{", "line 2, row: not JSON: Expecting property name"),
        (
            {"dialogue": [{"from": "human", "value": "a"}], "id": 1},
            "line 2, row: found 'dialogue', 'id'; expected messages, or prompt and completion, or text; name yours: ",
        ),
        ("[]", "line 2, row: expected an object, found []"),
        ({"messages": "hello"}, "line 2, messages: expected a list of messages, found 'hello'"),
        ({"messages": []}, "line 2, messages: expected messages, found an empty list"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "line 2, messages.0.role: unknown role 'robot'"),
        (
            {"messages": [user("a"), assistant("")]},
            "line 2, messages.1: an assistant message that says nothing cannot be imitated; give it weight 0",
        ),
        ({"messages": [assistant("a")]}, "line 2, messages.0: the assistant speaks first"),
        ({"messages": [user("a")]}, "line 2, messages: no assistant message to imitate; leave the row out"),
        (
            {"messages": [user("a"), assistant("b", weight=0)]},
            "line 2, messages: no assistant message to imitate; leave the row out",
        ),
        ({"messages": [user("a"), assistant("b", weight=2)]}, "line 2, messages.1.weight: expected 0 or 1, found 2"),
        (
            {"messages": [user("a"), assistant("b", loss_scale=0.5)]},
            "messages.1.loss_scale: may say what is learnt, and trainers read it differently",
        ),
        ({"messages": [user("a"), assistant("b", mask=True)]}, "messages.1.mask: may say what is learnt"),
        (
            {"messages": [user("a") | {"loss": True}, assistant("b")]},
            "messages.0.loss: says that a user message is learnt",
        ),
        (
            {"messages": [user("a"), assistant("b")], "loss_mask": [0, 1]},
            "line 2, loss_mask: expected 0 or 1, found [0",
        ),
        (
            {"messages": [user("a"), assistant("b<|im_end|>")]},
            "line 2, messages.1: holds '<|im_end|>', a mark of a chat",
        ),
        ({"prompt": [user("[INST] a")], "completion": [assistant("b")]}, "line 2, prompt.0: holds '[INST]', a mark"),
        ({"messages": [user("a"), assistant("b")], "tools": 3}, "line 2, tools: expected a list of tools, found 3"),
    ],
)
def test_a_bad_row_is_named_by_file_line_and_field(tmp_path, row, words):
    path = write(tmp_path, {"messages": EPISODE}, row)
    with pytest.raises(DataError) as caught:
        read_messages(path)
    assert str(caught.value).startswith(f"{path}, line 2")
    assert words in str(caught.value)


def test_a_file_that_is_empty_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds no row"):
        read_messages(write(tmp_path, ""))


def test_a_question_about_a_database_is_learnt_as_its_reference_handed_in(tmp_path):
    file = tmp_path / "fish.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript("CREATE TABLE fish (name TEXT); INSERT INTO fish VALUES ('cod');")
    right, empty = (
        Question("q-0", "Which?", "fish", "SELECT name FROM fish"),
        Question("q-1", "?", "fish", answer=((1,),)),
    )
    wrong = Question("q-2", "Which?", "fish", "SELECT nam FROM fish")
    with TextToSql(file) as environment:
        found = reference_demonstrations([right, empty, wrong], environment)
        [first] = found.kept
        assert first.messages[:-1] == environment.messages(right)
    arguments = json.dumps({"sql": "SELECT fish.name FROM fish"})
    handed_in = {"id": "call00000", "type": "function", "function": {"name": "submit_sql", "arguments": arguments}}
    assert first.messages[-1] == {"role": "assistant", "content": None, "tool_calls": [handed_in]}
    assert (first.where, found.left_out) == ("task 'q-0'", {"no_reference": 1, "sql_error": 1})


def test_a_reference_with_more_replies_than_the_agent_has_is_not_imitated(tmp_path):
    file = tmp_path / "fish.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript("CREATE TABLE fish (name TEXT);")
    eight, nine = (
        Question(f"q-{n}", "Add them", "fish", ";".join(["INSERT INTO fish VALUES ('cod')"] * n), changes=True)
        for n in (8, 9)
    )
    with TextToSql(file) as environment:
        found = reference_demonstrations([eight, nine], environment)
    assert ([one.where for one in found.kept], found.left_out) == (["task 'q-8'"], {"too_many_replies": 1})


COUNTER = """
class Counter:
    def reset(self, count, **row):
        self.count, self.said = count, None
        if count < 0:
            raise ValueError("less than nothing")
        return " Look first."

    def look(self) -> int:
        '''Count them.'''
        return self.count

    def submit(self, count: int) -> str:
        '''Submit the number.

        Args:
            count: How many there are.
        '''
        self.said, self.done = count, True
        return "Thank you."

    def get_reward(self):
        return 1.0 if self.said == self.count else 0.0


class Telling(Counter):
    done = False
    solved = property(lambda self: self.said == self.count)
"""


@pytest.fixture
def counted(tmp_path):
    """Demonstrations of a class of COUNTER for rows of counts and references."""

    def counted(name: str, *rows: tuple[int, list | None]):
        (tmp_path / "mine.py").write_text(COUNTER)
        prompt = [user("Hello."), assistant("Hello."), user("How many?")]
        lines = [json.dumps({"prompt": prompt, "count": count, "reference": steps}) for count, steps in rows]
        (tmp_path / "rows.jsonl").write_text("\n".join(lines))
        forget_user_files()
        with make_environment(EnvironmentSettings(f"{tmp_path}/mine.py:{name}")) as environment:
            return reference_demonstrations(environment.read_tasks(tmp_path / "rows.jsonl"), environment)

    return counted


CALL_LOOK, SUBMIT = {"name": "look"}, {"name": "submit", "arguments": {"count": 3}}


def test_references_of_an_own_environment_are_played_and_what_is_wrong_or_lost_is_left_out_by_reason(counted):
    found = counted(
        "Telling", (3, [CALL_LOOK, SUBMIT, "Never said."]), (4, [CALL_LOOK, SUBMIT]), (-1, [SUBMIT]), (5, None)
    )
    [kept] = found.kept
    assert [(m["role"], m["content"]) for m in kept.messages] == [
        ("user", "Hello."), ("assistant", "Hello."), ("user", "How many? Look first."),
        ("assistant", None), ("tool", "3"), ("assistant", None),
    ]  # fmt: skip
    assert kept.messages[1]["weight"] == 0  # it belongs to the prompt
    assert kept.messages[-1]["tool_calls"][0]["function"] == {"name": "submit", "arguments": '{"count": 3}'}
    assert found.left_out == {"not_solved": 1, "reset_error": 1, "no_reference": 1}
    [note] = found.notes
    assert note.startswith("first reference that was lost under reset_error: task ") and "less than nothing" in note


def test_references_are_kept_with_a_note_where_the_environment_does_not_say_what_is_solved(counted):
    found = counted("Counter", (3, [CALL_LOOK, "There are three."]), (4, [SUBMIT]))
    assert [demonstration.messages[-1]["role"] for demonstration in found.kept] == ["assistant", "tool"]
    assert found.kept[0].messages[-1] == assistant("There are three.")
    assert (found.notes, found.left_out) == ({"a reference was kept without a verdict": 2}, {})
