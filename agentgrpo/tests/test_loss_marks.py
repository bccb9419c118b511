from collections import Counter
from itertools import product

import pytest

from agentgrpo.chat.conversations import RowError
from agentgrpo.chat.loss_marks import LEARNT, MARK_WORDS, NOT_LEARNT, OF_ROWS, Mark, is_context, left_out_by, take_mark

REPLY = {"role": "assistant", "content": "a"}
SPELLINGS = ("loss_mask", "lossMask", "Loss-Mask", "LOSS_MASK")


def test_a_known_mark_is_taken_out_of_its_message_and_obeyed():
    marks = [*product(LEARNT | NOT_LEARNT, [False, True, 0, 1, 0.0, 1.0])]
    found = {(name, repr(value)): take_mark(REPLY | {name: value}, "m") for name, value in marks}
    assert found == {
        (name, repr(value)): (REPLY, Mark(name, learnt=(value == 1) == (name in LEARNT))) for name, value in marks
    }


@pytest.mark.parametrize("name", SPELLINGS)
def test_case_and_separators_of_a_mark_do_not_count(name):
    assert take_mark(REPLY | {name: 0}, "m") == (REPLY, Mark(name, learnt=False))


def test_a_mark_without_a_value_says_nothing():
    names = LEARNT | NOT_LEARNT | MARK_WORDS | {"train_detail", "my_own_mask"}
    messages = [REPLY | {name: value} for name, value in product(names, [None, "", [], {}])]
    assert [take_mark(message, "m") for message in messages] == [(message, None) for message in messages]


@pytest.mark.parametrize("value", [0.5, 2, -1, "false", [0, 1]])
def test_a_share_or_a_text_as_mark_is_refused(value):
    for name in LEARNT | NOT_LEARNT:
        with pytest.raises(RowError) as problem:
            take_mark(REPLY | {name: value}, "messages.1")
        said = f"messages.1.{name}: expected 0 or 1, found {value!r}; write `weight` 0 or 1"
        assert str(problem.value).startswith(said)


@pytest.mark.parametrize("name", ["mask", "train_detail", "loss_type", "masks", "trained", "grad", "token_weights"])
def test_a_field_that_looks_like_a_mark_of_unknown_meaning_is_refused(name):
    with pytest.raises(RowError, match=f"m.{name}: may say what is learnt, and trainers read it differently"):
        take_mark(REPLY | {name: True}, "m")


@pytest.mark.parametrize("name", ["name", "reasoning_content", "refusal", "annotations", "tool_call_id", "id"])
def test_other_fields_are_no_marks(name):
    assert take_mark(REPLY | {name: "x"}, "m") == (REPLY | {name: "x"}, None)


def test_two_marks_agree_or_are_refused():
    assert take_mark(REPLY | {"weight": 0, "loss": False, "masked": True}, "m") == (REPLY, Mark("weight", learnt=False))
    with pytest.raises(RowError, match="loss: contradicts weight; keep one of them"):
        take_mark(REPLY | {"weight": 0, "loss": True}, "m")


@pytest.mark.parametrize("key", ["content", "value"])
def test_a_mark_of_a_part_is_refused(key):
    parts = [{"type": "text", "text": "a", "image": None}, {"type": "text", "text": "b", "train": False}]
    with pytest.raises(RowError, match=rf"m.{key}.1.train: marks a part of a message; write `weight` 0 or 1"):
        take_mark({"role": "assistant", key: parts}, "m")


@pytest.mark.parametrize(
    ("role", "learnt", "context"),
    [("assistant", True, False), ("assistant", False, True), ("user", False, False), ("tool", False, False)],
)
def test_a_reply_that_is_not_learnt_is_context_and_counted(role, learnt, context):
    changes = Counter()
    assert is_context(Mark("loss", learnt), role, "m", changes) == context
    assert changes == ({"replies that 'loss' marks as not to be learnt": 1} if context else {})


@pytest.mark.parametrize("role", ["user", "system", "tool"])
def test_only_replies_are_learnt(role):
    with pytest.raises(RowError, match=f"m.loss: says that a {role} message is learnt; only the assistant's are"):
        is_context(Mark("loss", learnt=True), role, "m", Counter())


@pytest.mark.parametrize("name", sorted(LEARNT | NOT_LEARNT))
def test_a_row_says_whether_it_is_learnt(name):
    assert [left_out_by({"text": "a", name: value}) for value in (None, name in LEARNT, name not in LEARNT)] == [
        None, None, name,
    ]  # fmt: skip
    with pytest.raises(RowError, match=f"{name}: expected 0 or 1, found 0.5"):
        left_out_by({name: 0.5})


@pytest.mark.parametrize("name", [*sorted(OF_ROWS), "weights", "completion_mask", "assistantMasks", "turn_weights"])
def test_a_mask_of_a_whole_row_is_refused(name):
    with pytest.raises(RowError, match=f"{name}: may say what is learnt, and trainers read it differently"):
        left_out_by({name: [0, 0, 1]})


def test_other_fields_of_a_row_are_no_marks():
    assert left_out_by({"train_topics": ["a"], "training_source": "web", "weight_kg": 70, "scores": [0, 1]}) is None


def test_nemo_names_the_role_that_is_not_learnt():
    assert left_out_by({"mask": "User"}) is None
    for value in ("Assistant", "Nobody"):
        with pytest.raises(RowError, match="mask: may say what is learnt"):
            left_out_by({"mask": value})
