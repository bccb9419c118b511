"""Columns beside what is read of a row: fine-tuning and pairs refuse by their name those that may belong to the prompt,
the tools or the reply, and leave out and count all others."""

import json

import pytest

from reward_model.shapes import Converter, form_of
from sql_agent.sft.data import read_messages


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


LEARNT = {
    "messages": {"messages": [user("a"), assistant("b")]},
    "completion": {"prompt": "a", "completion": "b"},
    "text": {"text": "b"},
}
PAIRS = {
    "explicit": {"prompt": "Which?", "chosen": "4 of", "rejected": "5 of"},
    "implicit": {"chosen": "The sky is blue.", "rejected": "The sky is blond."},
    "sharegpt": {"conversations": [user("2+2?")], "chosen": assistant("4"), "rejected": assistant("5")},
    "hh": {"chosen": "\n\nHuman: hi\n\nAssistant: 4", "rejected": "\n\nHuman: hi\n\nAssistant: 5"},
}


@pytest.fixture(params=[*LEARNT, *PAIRS])
def form(request) -> str:
    return request.param


@pytest.fixture
def notes(form, tmp_path):
    """What is counted when a row of the form is read with these columns beside it."""

    def of_learnt(columns):
        (tmp_path / "rows.jsonl").write_text(json.dumps(LEARNT[form] | columns))
        found = read_messages(tmp_path / "rows.jsonl")
        assert len(found.kept) == 1
        return found.notes

    def of_pairs(columns):
        converter, row = Converter(), PAIRS[form] | columns
        assert form_of(row) == form
        assert converter(row, {}) == Converter()(PAIRS[form], {})
        return +converter.changes

    return of_learnt if form in LEARNT else of_pairs


def left_out(name, value):
    return {} if value is None else {f"field {name!r} left out": 1}


ASKED = ["question", "context", "history", "input"]
OF_PAIRS = ["query", "system_prompt", "userInput", "conversation", "dialogue", "chat_history", "messages",
            "user_message", "problem", "Questions"]  # fmt: skip
OF_LEARNT = ["system", "instruction", "systemPrompt"]
PROMPTS = ["How many fruit?", [user("How many fruit?")], json.dumps([user("How many fruit?")])]


def test_what_looks_like_a_prompt_is_refused_by_its_name(form, notes):
    for name in (*ASKED, *(OF_LEARNT if form in LEARNT else OF_PAIRS)):
        for value in PROMPTS[:1] if form in LEARNT else PROMPTS:
            with pytest.raises(ValueError, match=rf"\b{name}: looks like a part of the prompt"):
                notes({name: value})
        if form in LEARNT:  # a text that the row says anyway
            assert notes({name: "b"}) == left_out(name, "b")


def test_the_beginning_of_a_reply_is_refused_by_its_name(form, notes):
    names = ["assistant_prefix", "initial_reason_steps"]
    if form in LEARNT:
        names += ["prefix", "responsePrefill", "partial_answer", "previous_turns"]
    for name in names:
        with pytest.raises(ValueError, match=f"{name}: looks like "):
            notes({name: "Step 1: look."})
        if form in LEARNT:
            assert notes({name: "b"}) == left_out(name, "b")


def test_a_number_a_flag_or_a_text_about_tools_is_no_tool(form, notes):
    for name in ("num_tools", "tools_used", "function", "apis", "plugin_version"):
        for value in (2, 0, 1.5, True, False, None, "two"):
            assert notes({name: value}) == left_out(name, value), (name, value)


MEDIA = ["a.png", ["a.png"], [{"bytes": None, "path": "a.png"}], {"array": [0.1], "sampling_rate": 8000}, [[0, 255]]]
NO_MEDIA = [[], [None], "", [""], " ", {"bytes": None, "path": None}, [{"bytes": None, "path": ""}], True, 0, 2, 0.5]


def test_images_and_sound_are_refused_by_their_name(form, notes):
    for name in ("image", "images", "image_url", "imgPath", "video", "audios"):
        for value in MEDIA:
            with pytest.raises(ValueError, match=f"{name}: (looks like images or sound|images and sound are not read)"):
                notes({name: value})
        for value in NO_MEDIA:
            notes({name: value, "has_image": True, "image_id": "a7"})
