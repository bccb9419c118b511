from collections import Counter

import pytest

from agentgrpo.chat.conversations import RowError, is_context, take_mark

REPLY = {"role": "assistant", "content": "a"}
LEARNT = ("weight", "loss", "train", "training", "loss_mask", "lossMask", "LOSS_MASK", "step_loss_mask")


@pytest.mark.parametrize("value", [False, True, 0, 1, 0.0, 1.0])
@pytest.mark.parametrize("name", [*LEARNT, "masked"])
def test_a_known_mark_is_taken_out_of_its_message_and_obeyed(name, value):
    assert take_mark(REPLY | {name: value}, "m") == (REPLY, (name, (value == 1) == (name in LEARNT)))


@pytest.mark.parametrize("value", [None, "", [], {}])
def test_a_mark_without_a_value_says_nothing(value):
    message = REPLY | {"weight": value, "masked": value, "my_own_mask": value}
    assert take_mark(message, "m") == (message, None)


@pytest.mark.parametrize("value", [0.5, 2, -1, "false", [0, 1]])
def test_a_share_or_a_text_as_mark_is_refused(value):
    with pytest.raises(RowError) as problem:
        take_mark(REPLY | {"weight": value}, "messages.1")
    assert str(problem.value).startswith(f"messages.1.weight: expected 0 or 1, found {value!r}; write `weight` 0 or 1")


@pytest.mark.parametrize(
    "name", ["mask", "trained", "token_weights", "isTrainable", "no_loss", "ignore", "frozen", "kto_tag", "label"]
)
@pytest.mark.parametrize("value", [True, 0, [0, 0, 1]])
def test_a_field_that_looks_like_a_mark_of_unknown_meaning_is_refused(name, value):
    with pytest.raises(RowError, match=f"m.{name}: may say what is learnt, and trainers read it differently"):
        take_mark(REPLY | {name: value}, "m")


def test_other_fields_are_no_marks():
    other = {"name": "x", "reasoning_content": "x", "tool_call_id": "x", "id": 3, "constraints": [3], "grade": 2,
             "train_topics": ["a"], "training_source": "web", "label": "math", "labels": [0, 1]}  # fmt: skip
    assert take_mark(REPLY | other, "m") == (REPLY | other, None)


def test_two_marks_agree_or_are_refused():
    assert take_mark(REPLY | {"weight": 0, "loss": False, "masked": True}, "m") == (REPLY, ("weight", False))
    with pytest.raises(RowError, match="m: weight and loss disagree about what is learnt; keep one of them"):
        take_mark(REPLY | {"weight": 0, "loss": True}, "m")


@pytest.mark.parametrize(
    ("role", "learnt", "context"),
    [("assistant", True, False), ("assistant", False, True), ("user", False, False), ("tool", False, False)],
)
def test_a_reply_that_is_not_learnt_is_context_and_counted(role, learnt, context):
    changes = Counter()
    assert is_context(("loss", learnt), role, "m", changes) == context
    assert changes == ({"replies that 'loss' marks as not to be learnt": 1} if context else {})


@pytest.mark.parametrize("role", ["user", "system", "tool"])
def test_only_replies_are_learnt(role):
    with pytest.raises(RowError, match=f"m.loss: says that a {role} message is learnt; only the assistant's are"):
        is_context(("loss", True), role, "m", Counter())
