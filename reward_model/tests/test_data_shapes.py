import json

import pytest

from agentgrpo.chat.conversations import RowError
from agentgrpo.columns import parse_columns
from reward_model.datatypes import Preference
from reward_model.pair_forms import FORMS, Converter, pair_form


def said(role, content):
    return {"role": role, "content": content}


def user(text):
    return said("user", text)


def reply(text):
    return said("assistant", text)


def call(call_id):
    function = {"name": "sql", "arguments": '{"query": "SELECT 1"}'}
    return said("assistant", "") | {"tool_calls": [{"id": call_id, "type": "function", "function": function}]}


def result(call_id):
    return said("tool", "[(1,)]") | {"tool_call_id": call_id}


def pair(prompt, chosen, rejected, **more):
    return Preference.model_validate({"prompt": prompt, "chosen": chosen, "rejected": rejected, **more})


SIMPLE = pair([user("2+2?")], [reply("4")], [reply("5")])
SECOND = pair([user("hi"), reply("yo"), user("2+2?")], [reply("4")], [reply("5")])
WITH_SYSTEM = pair([said("system", "be brief"), user("2+2?")], [reply("4")], [reply("5")])
TOOLS = '[{"type": "function", "function": {"name": "sql"}}]'
OUR_CALL, OUR_RESULT = call("call00001"), result("call00001")
AGENT = pair([user("one?")], [OUR_CALL, OUR_RESULT, reply("1")], [reply("2")])

SHAPES = {
    "explicit_texts": ("explicit", {"prompt": "2+2?", "chosen": "4", "rejected": "5"}, SIMPLE),
    "explicit_messages": (
        "explicit",
        {"prompt": [user("2+2?")], "chosen": [reply("4")], "rejected": [reply("5")]},
        SIMPLE,
    ),
    "explicit_one_message_a_side": (
        "explicit",
        {"prompt": "2+2?", "chosen": reply("4"), "rejected": reply("5")},
        SIMPLE,
    ),
    "ultrafeedback_repeats_the_prompt": (
        "explicit",
        {"prompt": "2+2?", "chosen": [user("2+2?"), reply("4")], "rejected": [user("2+2?"), reply("5")]},
        SIMPLE,
    ),
    "prompt_repeated_after_a_system_message": (
        "explicit",
        {
            "prompt": "2+2?",
            "chosen": [said("system", "be brief"), user("2+2?"), reply("4")],
            "rejected": [said("system", "be brief"), user("2+2?"), reply("5")],
        },
        WITH_SYSTEM,
    ),
    "prompt_is_the_last_question_of_the_sides": (
        "explicit",
        {
            "prompt": "2+2?",
            "chosen": [user("hi"), reply("yo"), user("2+2?"), reply("4")],
            "rejected": [user("hi"), reply("yo"), user("2+2?"), reply("5")],
        },
        SECOND,
    ),
    "question_in_the_sides": (
        "explicit",
        {
            "prompt": [said("system", "be brief")],
            "chosen": [user("2+2?"), reply("4")],
            "rejected": [user("2+2?"), reply("5")],
        },
        WITH_SYSTEM,
    ),
    "prompt_repeated_in_texts": (
        "explicit",
        {"prompt": "What may be 2 and 2?", "chosen": "What may be 2 and 2? 4", "rejected": "What may be 2 and 2?\n5"},
        pair([user("What may be 2 and 2?")], [reply("4")], [reply("5")]),
    ),
    "prompt_repeated_keeps_what_is_indented": (
        "explicit",
        {
            "prompt": "def fibonacci(number):\n",
            "chosen": "def fibonacci(number):\n    return 1",
            "rejected": "def fibonacci(number):\n\n    return 2",
        },
        pair([user("def fibonacci(number):\n")], [reply("    return 1")], [reply("\n    return 2")]),
    ),
    "prompt_that_ends_inside_a_word_of_the_answers": (
        "explicit",
        {
            "prompt": "List the primes below 10",
            "chosen": "List the primes below 100: no",
            "rejected": "List the primes below 1000: no",
        },
        pair(
            [user("List the primes below 10")],
            [reply("List the primes below 100: no")],
            [reply("List the primes below 1000: no")],
        ),
    ),
    "conversations_as_json_in_texts": (
        "explicit",
        {
            "prompt": json.dumps([user("hi"), reply("yo"), user("2+2?")]),
            "chosen": json.dumps([{"from": "gpt", "value": "4"}]),
            "rejected": json.dumps([user("hi"), reply("yo"), user("2+2?"), reply("5")]),
        },
        SECOND,
    ),
    "answers_that_are_json_but_no_conversation": (
        "explicit",
        {"prompt": "2+2?", "chosen": '[{"from": "Rome", "to": "Pisa"}]', "rejected": "[1]"},
        pair([user("2+2?")], [reply('[{"from": "Rome", "to": "Pisa"}]')], [reply("[1]")]),
    ),
    "short_prompt_repeated_by_chance": (
        "explicit",
        {"prompt": "Yes?", "chosen": "Yes? Why not!", "rejected": "Yes? No!"},
        pair([user("Yes?")], [reply("Yes? Why not!")], [reply("Yes? No!")]),
    ),
    "system_field_and_the_same_system_message": (
        "explicit",
        {"system": "be brief", "prompt": [said("system", "be brief"), user("2+2?")], "chosen": "4", "rejected": "5"},
        WITH_SYSTEM,
    ),
    "implicit": (
        "implicit",
        {
            "chosen": [user("hi"), reply("yo"), user("2+2?"), reply("4")],
            "rejected": [user("hi"), reply("yo"), user("2+2?"), reply("5")],
        },
        SECOND,
    ),
    "implicit_one_side_goes_on": (
        "implicit",
        {"chosen": [user("2+2?"), reply("4")], "rejected": [user("2+2?"), reply("4"), user("sure?"), reply("5")]},
        pair([user("2+2?")], [reply("4")], [reply("4"), user("sure?"), reply("5")]),
    ),
    "implicit_parts_at_a_user_message": (
        "implicit",
        {
            "chosen": [user("hi"), reply("yo"), user("2+2?"), reply("4")],
            "rejected": [user("hi"), reply("yo"), user("2+3?"), reply("5")],
        },
        pair([user("hi")], [reply("yo"), user("2+2?"), reply("4")], [reply("yo"), user("2+3?"), reply("5")]),
    ),
    "implicit_with_ids_of_their_own": (
        "implicit",
        {
            "chosen": [user("one?"), call("x"), result("x"), reply("1")],
            "rejected": [user("one?"), call("y"), result("y"), reply("2")],
            "tools": [{"name": "sql"}],
        },
        pair([user("one?"), OUR_CALL, OUR_RESULT], [reply("1")], [reply("2")], tools=TOOLS),
    ),
    "implicit_texts": (
        "implicit",
        {"chosen": "The sky is blue.", "rejected": "The sky is blond."},
        pair([user("The sky is")], [reply("blue.")], [reply("blond.")]),
    ),
    "implicit_texts_over_lines": (
        "implicit",
        {"chosen": "Two plus two?\n\n4", "rejected": "Two plus two?\n\n5 "},
        pair([user("Two plus two?")], [reply("4")], [reply("5 ")]),
    ),
    "agent_log_is_the_better_one": (
        "agent",
        {
            "messages": [user("one?"), call("x"), result("x"), reply("1")],
            "rejected_messages": [user("one?"), reply("2")],
        },
        AGENT,
    ),
    "agent_log_is_the_worse_one": (
        "agent",
        {"messages": [user("one?"), reply("2")], "chosen_messages": [call("x"), result("x"), reply("1")]},
        AGENT,
    ),
    "agent_log_is_the_prompt": (
        "agent",
        {
            "messages": [user("one?")],
            "chosen_messages": [call("x"), result("x"), reply("1")],
            "rejected_messages": [reply("2")],
        },
        AGENT,
    ),
    "agent_log_ends_with_an_answer_beside_both": (
        "agent",
        {
            "messages": [user("one?"), call("x"), result("x"), reply("old")],
            "chosen_messages": [call("x"), result("x"), reply("1")],
            "rejected_messages": [reply("2")],
        },
        AGENT,
    ),
    "agent_log_ends_with_a_result_beside_both": (
        "agent",
        {
            "messages": [user("one?"), call("x"), result("x")],
            "chosen_messages": [reply("1")],
            "rejected_messages": [reply("2")],
        },
        pair([user("one?"), OUR_CALL, OUR_RESULT], [reply("1")], [reply("2")]),
    ),
    "agent_log_ends_with_a_call_beside_both": (
        "agent",
        {
            "messages": [user("one?"), call("x")],
            "chosen_messages": [result("x"), reply("1")],
            "rejected_messages": [result("x"), reply("2")],
        },
        pair([user("one?"), OUR_CALL], [OUR_RESULT, reply("1")], [OUR_RESULT, reply("2")]),
    ),
    "agent_whole_conversations_beside_a_log_with_an_answer": (
        "agent",
        {
            "messages": [said("system", "be brief"), user("2+2?"), reply("old")],
            "chosen_messages": [user("2+2?"), reply("4")],
            "rejected_messages": [said("system", "be brief"), user("2+2?"), reply("5")],
        },
        WITH_SYSTEM,
    ),
    "agent_log_and_a_reply_as_text": (
        "agent",
        {"messages": [user("2+2?"), reply("4")], "rejected_response": "5"},
        SIMPLE,
    ),
    "agent_log_of_several_questions": (
        "agent",
        {"messages": [user("hi"), reply("yo"), user("2+2?"), reply("4")], "rejected_messages": [reply("5")]},
        SECOND,
    ),
    "instruction": (
        "instruction",
        {"instruction": "Add", "input": "2 2", "chosen": "4", "rejected": "5"},
        pair([user("Add\n2 2")], [reply("4")], [reply("5")]),
    ),
    "instruction_with_history_and_system": (
        "instruction",
        {
            "instruction": "2+2?",
            "input": "",
            "system": "be brief",
            "history": [["hi", "yo"]],
            "chosen": "4",
            "rejected": "5",
        },
        pair([said("system", "be brief"), user("hi"), reply("yo"), user("2+2?")], [reply("4")], [reply("5")]),
    ),
    "sharegpt": (
        "sharegpt",
        {
            "conversations": [{"from": "human", "value": "2+2?"}],
            "chosen": {"from": "gpt", "value": "4"},
            "rejected": {"from": "gpt", "value": "5"},
            "system": "",
        },
        SIMPLE,
    ),
    "sharegpt_with_tools": (
        "sharegpt",
        {
            "conversations": [
                {"from": "human", "value": "one?"},
                {"from": "function_call", "value": '{"name": "sql", "arguments": {"query": "SELECT 1"}}'},
                {"from": "observation", "value": "[(1,)]"},
            ],
            "chosen": {"from": "gpt", "value": "1"},
            "rejected": {"from": "gpt", "value": "2"},
            "tools": '[{"name": "sql"}]',
        },
        pair([user("one?"), OUR_CALL, OUR_RESULT], [reply("1")], [reply("2")], tools=TOOLS),
    ),
    "hh": (
        "hh",
        {
            "chosen": "\n\nHuman: hi\n\nAssistant: yo\n\nHuman: 2+2?\n\nAssistant: 4",
            "rejected": "\n\nHuman: hi\n\nAssistant: yo\n\nHuman: 2+2?\n\nAssistant: 5",
        },
        SECOND,
    ),
    "hh_with_the_prompt_apart": (
        "hh",
        {"prompt": "\n\nHuman: 2+2?\n\nAssistant:", "chosen": " 4", "rejected": " 5"},
        SIMPLE,
    ),
}


@pytest.mark.parametrize(("form", "row", "expected"), SHAPES.values(), ids=SHAPES)
def test_a_row_of_each_form_is_found_out_and_becomes_a_preference(form, row, expected):
    assert pair_form(row) == form
    assert Converter()(row, {}) == expected
    assert Converter(form)(row, {}) == expected


@pytest.mark.parametrize(("form", "row", "expected"), SHAPES.values(), ids=SHAPES)
def test_what_was_converted_converts_to_itself(form, row, expected):
    assert Converter()(json.loads(json.dumps(expected.to_dict())), {}) == expected


def test_without_tools_the_answers_are_left():
    row = {
        "messages": [user("one?"), call("x"), result("x"), reply("1")],
        "rejected_messages": [user("one?"), reply("2")],
        "tools": TOOLS,
    }
    converter = Converter(drop_tools=True)
    assert converter(row, {}) == pair([user("one?")], [reply("1")], [reply("2")])
    assert +converter.changes == {
        "tool calls dropped, on both sides": 1,
        "tool results dropped, on both sides": 1,
        "tools' schemas dropped": 1,
    }


@pytest.mark.parametrize("text", ["", "I will look."])
def test_without_tools_a_side_that_ends_with_a_call_is_no_pair(text):
    row = {"messages": [user("one?"), call("x") | {"content": text}], "rejected_messages": [user("one?"), reply("2")]}
    with pytest.raises(RowError, match="chosen: ends with a tool call"):
        Converter(drop_tools=True)(row, {})


def test_without_tools_a_side_of_results_alone_is_no_pair():
    with pytest.raises(RowError, match="chosen: holds no reply"):
        Converter(drop_tools=True)({"chosen": [result("x")], "rejected": [user("q"), reply("a")]}, {})


@pytest.mark.parametrize(
    ("row", "change"),
    [
        pytest.param(
            {"prompt": "2+2?", "chosen": json.dumps([reply("4")]), "rejected": json.dumps([reply("5")])},
            {"conversations that were JSON in a text": 2},
            id="json",
        ),
        pytest.param(
            {"prompt": "What may be 2 and 2?", "chosen": "What may be 2 and 2? 4", "rejected": "5"},
            {"prompts that one side alone repeats, left in it": 1},
            id="one_side_repeats",
        ),
    ],
)
def test_what_a_text_is_taken_for_is_counted(row, change):
    converter = Converter()
    converter(row, {})
    assert +converter.changes == change


def test_which_of_two_prompts_is_meant_is_for_the_user_to_say():
    row = {"prompt": "2+2?", "instruction": "Be brief.", "chosen": "4", "rejected": "5"}
    with pytest.raises(RowError, match="prompt: is not read, and looks like prompt; to read it: --columns "):
        Converter()(row, {})
    assert Converter("explicit")(row, {}) == SIMPLE
    row = {"prompt": "Add.", "input": "2 2", "chosen": "4", "rejected": "5"}
    line = "prompt=prompt+input,chosen=chosen,rejected=rejected"
    with pytest.raises(RowError) as refused:
        Converter()(row, {})
    assert f"to read it: --columns {line};" in str(refused.value)
    assert Converter(columns=parse_columns(line))(row, {}) == pair([user("Add.\n2 2")], [reply("4")], [reply("5")])
    # UltraFeedback's `messages` are its `chosen`
    row = {"prompt": "2+2?", "messages": [user("2+2?"), reply("4")], "chosen": "4", "rejected": "5"}
    assert Converter()(row, {}) == SIMPLE


PROMPTS = ["question", "query", "input", "context", "history", "system_prompt", "userInput", "Questions"]
ROWS = {
    "explicit": {"prompt": "Which?", "chosen": "4 of", "rejected": "5 of"},
    "implicit": {"chosen": "The sky is blue.", "rejected": "The sky is blond."},
    "sharegpt": {"conversations": [user("2+2?")], "chosen": reply("4"), "rejected": reply("5")},
    "hh": {"chosen": "\n\nHuman: hi\n\nAssistant: 4", "rejected": "\n\nHuman: hi\n\nAssistant: 5"},
}


@pytest.mark.parametrize("value", ["How many fruit?", [user("How many fruit?")]])
@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("form", ROWS)
def test_a_column_that_looks_like_a_prompt_and_is_not_read_is_refused_by_its_name(form, name, value):
    row = ROWS[form] | {name: value}
    assert pair_form(row) == form
    with pytest.raises(RowError) as problem:
        Converter()(row, {})
    assert problem.value.field == name


def test_a_form_that_was_asked_for_says_that_its_fields_are_all():
    converter = Converter("explicit")
    converter(ROWS["explicit"] | {"context": "There are 4."}, {})
    assert +converter.changes == {"field 'context' left out": 1}


def test_a_question_that_is_named_where_no_prompt_can_be_guessed():
    row, line = (
        {"question": "Is it?", "chosen": "Yes.", "rejected": "No."},
        "chosen=chosen,rejected=rejected,prompt=question",
    )
    with pytest.raises(RowError) as refused:
        Converter()(row, {})
    assert f"question: is not read, and looks like prompt; to read it: --columns {line};" in str(refused.value)
    assert Converter(columns=parse_columns(line))(row, {}) == pair([user("Is it?")], [reply("Yes.")], [reply("No.")])


@pytest.mark.parametrize(
    ("name", "value"),
    [("messages", [user("Which?"), reply("4 of")]), ("image", "a.png"), ("prompt_id", "a7"), ("input_tokens", 12),
     ("question_type", "count"), ("context", None), ("history", []), ("query", ""), ("instruction_model", "m")],
)  # fmt: skip
def test_a_column_about_the_prompt_or_with_the_same_text_is_only_counted(name, value):
    converter = Converter()
    assert converter(ROWS["explicit"] | {name: value}, {}) == Converter()(ROWS["explicit"], {})
    assert +converter.changes == ({} if value is None else {f"field {name!r} left out": 1})


@pytest.mark.parametrize("side", ["prompt", "chosen", "rejected"])
@pytest.mark.parametrize(
    ("text", "marker"),
    [
        ("<|im_start|>user\nWhich?<|im_end|>", "<|im_start|>"),
        ("Four.<|im_end|>", "<|im_end|>"),
        ("[INST] Which? [/INST]", "[INST]"),
        ("<start_of_turn>user\nWhich?<end_of_turn>", "<start_of_turn>"),
        ("<|start_header_id|>user<|end_header_id|>\n\nWhich?<|eot_id|>", "<|start_header_id|>"),
        ("Be brief.\n\nHuman: Which?\n\nAssistant:", "Human:"),
        ("Four.</s>", "</s>"),
    ],
)
def test_a_text_that_a_chat_template_has_written_is_no_message(side, text, marker):
    for value in (text, [said("user" if side == "prompt" else "assistant", text)]):
        row = {"prompt": "Which?", "chosen": "4 of", "rejected": "5 of"} | {side: value}
        with pytest.raises(RowError) as problem:
            Converter()(row, {})
        assert problem.value.field == side
        assert problem.value.reason.startswith(f"holds {marker!r}, a mark of a chat format")


MARKS = {"weight": 0, "loss": False, "train": False, "loss_mask": 0, "masked": True}


@pytest.mark.parametrize("name", MARKS)
def test_a_reply_that_is_marked_as_not_to_be_learnt_may_only_stand_in_the_prompt(name):
    mark = {name: MARKS[name]}
    asked, better, worse = [user("hi"), reply("yo"), user("2+2?")], [reply("4")], [reply("5")]
    context = [user("hi"), reply("yo") | mark, user("2+2?")]
    rows = [
        {"prompt": context, "chosen": better, "rejected": worse},
        {"chosen": [*context, *better], "rejected": [*context, *worse]},
        {"messages": [*context, *better], "rejected_messages": worse},
        {"prompt": [json.dumps(message) for message in context], "chosen": better, "rejected": worse},
    ]
    for row in rows:
        converter = Converter()
        assert converter(row, {}) == SECOND
        assert converter.changes[f"replies that {name!r} marks as not to be learnt"] >= 1
    for row in (
        {"prompt": asked, "chosen": [reply("4") | mark], "rejected": worse},
        {"prompt": asked, "chosen": better, "rejected": reply("5") | mark},
        {"prompt": asked, "chosen": [call("x") | mark, result("x"), reply("4")], "rejected": worse},
    ):
        with pytest.raises(RowError, match="holds a reply that is marked as not to be learnt; put it into prompt"):
            Converter()(row, {})


@pytest.mark.parametrize("name", MARKS)
def test_a_pair_that_is_marked_as_not_to_be_learnt_is_no_pair(name):
    with pytest.raises(RowError, match=f"{name}: says that the row is not to be learnt"):
        Converter()(ROWS["explicit"] | {name: MARKS[name]}, {})


TOOL = {"name": "look", "parameters": {}}


@pytest.mark.parametrize("form", ROWS)
def test_tools_of_openais_older_form_are_the_pairs_tools_and_other_names_are_refused(form):
    read = Converter()(ROWS[form] | {"functions": [TOOL]}, {})
    assert json.loads(read.tools) == [{"type": "function", "function": TOOL}]
    assert Converter()(ROWS[form] | {"functions": [TOOL], "tools": [TOOL]}, {}) == read
    with pytest.raises(RowError, match="functions: differ from tools; keep one of them"):
        Converter()(ROWS[form] | {"functions": [TOOL], "tools": [TOOL, TOOL]}, {})
    with pytest.raises(RowError, match=r"available_tools: is not read, and looks like tools; to read it: --columns "):
        Converter()(ROWS[form] | {"available_tools": [TOOL]}, {})


def test_arguments_of_calls_are_mended_but_in_rollouts_of_a_policy():
    arguments = {"function": {"name": "sql", "arguments": {"query": "SELECT 1", "answers": None}}}
    row = {"prompt": "one?", "chosen": [said("assistant", "") | {"tool_calls": [arguments]}, reply("1")],
           "rejected": "2"}  # fmt: skip
    converter = Converter()
    assert converter(row, {}).chosen[0].tool_calls[0].function.arguments == '{"query": "SELECT 1"}'
    assert +converter.changes == {"null as argument 'answers' of a call left out": 1}
    of_rollouts = row | {"metadata": {"task_id": "a", "kind": "b", "sources": []}}
    kept = Converter()(of_rollouts, {}).chosen[0].tool_calls[0].function.arguments
    assert kept == '{"query": "SELECT 1", "answers": null}'


def test_unknown_fields_are_counted_and_a_rejected_row_changes_no_count():
    converter = Converter()
    converter({"prompt": "q", "chosen": "a", "rejected": "b", "score_chosen": 1.0, "margin": None}, {})
    with pytest.raises(RowError):
        converter({"prompt": "q", "chosen": "a", "rejected": "a", "score_chosen": 1.0}, {})
    assert +converter.changes == {"field 'score_chosen' left out": 1}
    assert converter.forms == {"explicit": 1}


@pytest.mark.parametrize(
    ("row", "field", "words"),
    [
        pytest.param([1], "row", "expected an object, found [1]", id="no_object"),
        pytest.param({"a": 1}, "row", "found 'a'; expected prompt and chosen and rejected, or", id="no_form"),
        pytest.param(
            {"prompt": "q", "chosen": "a"},
            "row",
            "name yours: --columns prompt=prompt,chosen=chosen,rejected=COLUMN",
            id="no_rejected",
        ),
        pytest.param({"prompt": "q", "chosen": "a", "rejected": "a"}, "rejected", "the same as chosen", id="equal"),
        pytest.param({"prompt": "q", "chosen": "a", "rejected": "a \n"}, "rejected", "the same as chosen", id="blanks"),
        pytest.param(
            {
                "input": {"messages": [user("q")]},
                "preferred_output": [reply("a")],
                "non_preferred_output": [reply("b")],
            },
            "row",
            "--columns prompt=input,chosen=preferred_output,rejected=non_preferred_output",
            id="openai",
        ),
        pytest.param(
            {"prompt": "q", "chosen": None, "rejected": "a"}, "row", "expected prompt and chosen", id="null_side"
        ),
        pytest.param({"prompt": "q", "chosen": 4, "rejected": "a"}, "chosen", "found 4", id="number_side"),
        pytest.param({"prompt": "q", "chosen": " \n", "rejected": "a"}, "chosen", "is empty", id="blank_side"),
        pytest.param({"prompt": "q", "chosen": [], "rejected": "a"}, "chosen", "an empty list", id="empty_side"),
        pytest.param({"prompt": "", "chosen": "b", "rejected": "a"}, "prompt", "is empty", id="empty_prompt"),
        pytest.param(
            {"prompt": "q", "chosen": [reply("")], "rejected": "a"}, "chosen", "an empty reply", id="no_reply"
        ),
        pytest.param(
            {"prompt": "q", "chosen": [reply("a"), user("b")], "rejected": "a"},
            "chosen",
            "with a user message",
            id="user_last",
        ),
        pytest.param(
            {"prompt": "p", "chosen": [user("q"), reply("a")], "rejected": "a"},
            "prompt",
            "does not contain it",
            id="other_prompt",
        ),
        pytest.param(
            {"prompt": [user("p"), reply("q"), user("r")], "chosen": [user("p"), reply("q")], "rejected": "a"},
            "prompt",
            "does not contain it",
            id="side_is_half_of_the_prompt",
        ),
        pytest.param(
            {
                "prompt": [said("system", "a"), user("q")],
                "chosen": [said("system", "b"), user("q"), reply("a")],
                "rejected": "c",
            },
            "chosen.0",
            "differs from the prompt's",
            id="system_other_than_the_prompts",
        ),
        pytest.param(
            {"chosen": [said("system", "s"), reply("a")], "rejected": [said("system", "s"), reply("b")]},
            "prompt",
            "same user",
            id="nobody_asks",
        ),
        pytest.param(
            {"chosen": [user("p"), reply("a")], "rejected": [user("q"), reply("a")]},
            "prompt",
            "same user",
            id="no_common",
        ),
        pytest.param(
            {
                "messages": [user("p"), reply("a"), user("q"), reply("b")],
                "rejected_messages": [reply("c"), user("q"), reply("d")],
            },
            "rejected_messages",
            "begins with a reply and holds user messages",
            id="way_from_an_earlier_turn",
        ),
        pytest.param(
            {
                "messages": [user("p"), reply("a"), user("q")],
                "chosen_messages": [user("q"), reply("b")],
                "rejected_messages": [user("q"), reply("c")],
            },
            "chosen_messages",
            "does not begin with the log's first question",
            id="ways_of_another_question",
        ),
        pytest.param(
            {"prompt": "q", "chosen": "[{'role': 'assistant', 'content': 'a'}]", "rejected": "b"},
            "chosen",
            "in Python's notation",
            id="messages_as_python_prints_them",
        ),
        pytest.param(
            {"system": "a", "prompt": [said("system", "b"), user("q")], "chosen": "a", "rejected": "b"},
            "prompt.0",
            "differs from the row's separate",
            id="two_systems",
        ),
        pytest.param(
            {"system": "a", "prompt": "q", "chosen": [said("system", "a")], "rejected": "b"},
            "chosen",
            "holds no reply",
            id="system_alone",
        ),
        pytest.param(
            {"instruction": "q", "history": ["x"], "chosen": "a", "rejected": "b"},
            "history",
            "[question, answer]",
            id="history",
        ),
        pytest.param(
            {"chosen": "\n\nHuman: q", "rejected": "\n\nHuman: q\n\nAssistant: b"},
            "chosen",
            "with a user",
            id="hh_open",
        ),
        pytest.param(
            {"chosen": "\n\nHuman: q\n\nAssistant: a", "rejected": "nothing"},
            "rejected",
            "begins with 'Human:'",
            id="hh_half",
        ),
        pytest.param(
            {"chosen": "Yes.", "rejected": "No."}, "prompt", "missing, and chosen and rejected do", id="no_prompt"
        ),
        pytest.param({"chosen": "a b ", "rejected": "a b c"}, "chosen", "holds nothing after what", id="ends_early"),
    ],
)
def test_a_row_that_is_no_pair_is_named_with_its_field(row, field, words):
    with pytest.raises(RowError) as problem:
        Converter()(row, {})
    assert problem.value.field == field
    assert words in problem.value.reason


def test_a_form_that_was_asked_for_is_the_only_one_tried():
    with pytest.raises(RowError, match="instruction: expected a text, found None"):
        Converter("instruction")({"prompt": "q", "chosen": "a", "rejected": "b"}, {})


def test_every_form_has_a_row_here():
    assert {form for form, _, _ in SHAPES.values()} == set(FORMS)
