import json

import pytest

from agentgrpo.column_names import holds_media, looks_like_prompt, plain_name, unread_part, unread_prompt, words


def test_a_name_is_cut_into_words():
    assert words("userInput_2") == {"user", "input", "2"}
    assert words("HTMLContext-id") == {"html", "context", "id"}
    assert [plain_name(name) for name in ("loss_mask", "lossMask", "Loss-Mask")] == ["lossmask"] * 3


@pytest.mark.parametrize("name", ["question", "Questions", "query", "input_text", "context", "chat_history",
    "instruction", "system", "system_prompt", "messages", "userMessage", "external_knowledge",
    "hints", "INPUT"])  # fmt: skip
def test_a_name_of_a_prompt_is_one(name):
    assert looks_like_prompt(name)


@pytest.mark.parametrize("name", ["prompt_id", "questionId", "input_tokens", "query_toks", "context_length", "score",
    "question_type", "system_name", "messages_hash", "margin", "source", "difficulty", "chosen_model"])  # fmt: skip
def test_a_name_about_a_prompt_is_none(name):
    assert not looks_like_prompt(name)


def test_a_column_is_unread_where_its_text_is_nowhere():
    asked = ["Be brief.\nHow many?"]
    assert unread_prompt({"prompt": "x", "question": "Which?"}, {"prompt"}, asked) == "question"
    assert unread_prompt({"question": "How  many?", "system": "Be brief."}, set(), asked) is None
    assert unread_prompt({"context": ["How many?", {"text": "none"}]}, set(), asked) == "context"
    assert unread_prompt({"context": ["How many?", {"role": "none", "n": 3}, None, "?!"]}, set(), asked) is None


def test_a_column_of_messages_may_hold_the_replies_too():
    row = {"messages": [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": "Two."}]}
    assert unread_prompt(row, set(), ["How many?"], ["Two."]) is None
    assert unread_prompt({"messages": json.dumps(row["messages"])}, set(), ["How many?"], ["Two."]) is None
    assert unread_prompt({"question": "Two."}, set(), ["How many?"], ["Two."]) == "question"


def test_only_lists_and_objects_hold_tools():
    for value in (2, 1.5, True, None, "none", [], [2, None]):
        assert unread_part({"tools_used": value}, set(), ["How many?"]) is None
    assert unread_part({"tools_used": [{"name": "look"}]}, set(), ["How many?"]) == (
        "tools_used", "tools or their calls", "rename it to tools, and write calls into the messages",
    )  # fmt: skip


def test_a_flag_a_count_and_an_empty_place_are_no_media():
    held = ["a.png", b"\x89PNG", ["", "a.png"], {"path": "a.png"}, [[0.5]], {"id": 7}]
    empty = [None, "", b"", " ", [], {}, [None], [""], {"path": None, "bytes": None}, True, [True], 0, 3, 0.5]
    assert [holds_media("image", value) for value in held] == [True] * len(held)
    assert [holds_media("image", value) for value in empty] == [False] * len(empty)
    assert not holds_media("image_caption", "A cod.")
