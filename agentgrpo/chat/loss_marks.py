"""Reads what a row for training says about which of its messages are learnt.

Trainers have many names for it: OpenAI, Mistral and Together write `weight`, ms-swift, XTuner and AgentInstruct `loss`,
axolotl `train` and `training`, slime `step_loss_mask`, torchtune `masked`. Rows for KTO say of each reply whether it is
good (`label`), and a bad one is not learnt either. A mark is obeyed where it can mean one thing only: 0 or 1 under a
known name, true or false for KTO, or 0 and 1 where a whole file of KTO's rows says no other number. Everything else
that looks like a mark is refused by its name, because a reply that is learnt against its mark shows nowhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from agentgrpo.chat.conversations import ROLES, RowError, short_repr
from agentgrpo.column_names import plain_name, words

# Names of which 1 says that a message or row is learnt; case and separators do not count.
LEARNT = frozenset(map(plain_name, (
    "weight", "loss", "train", "training", "trainable", "is_trainable", "train_on", "train_on_turn", "should_train",
    "loss_mask", "loss_scale", "loss_weight", "step_loss_mask", "compute_loss", "calculate_loss", "calc_loss",
    "has_loss", "use_loss", "learn", "learnable", "supervised", "sample_weight", "training_weight",
)))  # fmt: skip
# Names of which 1 says that a message or row is not learnt.
NOT_LEARNT = frozenset(map(plain_name, (
    "masked", "is_masked", "loss_masked", "mask_loss", "no_loss", "ignore_loss", "skip_loss", "exclude_loss",
    "exclude_from_loss", "ignore", "ignored", "skip", "skipped", "exclude", "excluded", "no_train", "untrained",
    "frozen",
)))  # fmt: skip
# Names of which `true` says that a reply is good, as in rows for KTO; other values may be those of a class.
GOOD = frozenset(map(plain_name, ("label", "kto_tag", "kto_label", "desirable", "is_desirable")))
BAD = frozenset(map(plain_name, ("undesirable", "is_undesirable")))
# Values under these names that may say that a reply is bad.
MAYBE_BAD = (0, -1, "0", "-1", "false", "bad", "undesirable", "rejected", "dispreferred")
# Names of which `false` says that a reply is bad, though perhaps not that it is to be left out.
APPROVED = frozenset(map(plain_name, (
    "accepted", "is_accepted", "approved", "is_approved", "preferred", "is_preferred", "good", "is_good", "correct",
    "is_correct", "thumbs_up", "chosen", "is_chosen",
)))  # fmt: skip
DISAPPROVED = frozenset(map(plain_name, (
    "rejected", "is_rejected", "bad", "is_bad", "incorrect", "is_incorrect", "wrong", "is_wrong", "thumbs_down",
)))  # fmt: skip
# A message's field whose name has one of these words looks like a mark, whatever else the name says.
MARK_WORDS = frozenset((
    "loss", "losses", "mask", "masks", "masked", "masking", "train", "trained", "training", "trainable", "weight",
    "weights", "learn", "learned", "learnt", "learnable", "supervise", "supervised", "supervision", "grad",
    "gradient", "backprop",
))  # fmt: skip
# Names of switches of a whole row; a list of numbers under a name with a word of a mark is refused as well.
OF_ROWS = frozenset(map(plain_name, (
    "mask", "train_detail", "train_on_input", "train_on_inputs", "train_on_prompt", "mask_history", "mask_prompt",
    "mask_input", "mask_inputs", "roles_to_train",
)))  # fmt: skip
_WRITE_WEIGHT = "write `weight` 0 or 1 into the assistant's messages instead, or remove it"


@dataclass(frozen=True)
class Mark:
    name: str
    learnt: bool


def take_mark(raw: Any, field: str) -> tuple[Any, Mark | None]:
    """Split a message into what is rendered and what its marks say.

    Raises:
        RowError: a mark's meaning is not certain, or two of them disagree.
    """
    if not isinstance(raw, dict):
        return raw, None
    if (place := _marked_part(raw)) is not None:
        raise RowError(f"{field}.{place}", f"marks a part of a message; {_WRITE_WEIGHT}")
    found = (_mark_in(name, value, f"{field}.{name}") for name, value in raw.items())
    marks = [mark for mark in found if mark is not None]
    other = next((mark for mark in marks if mark.learnt != marks[0].learnt), None)
    if other is not None:
        raise RowError(f"{field}.{other.name}", f"contradicts {marks[0].name}; keep one of them")
    names = {mark.name for mark in marks}
    return {name: value for name, value in raw.items() if name not in names}, marks[0] if marks else None


def _marked_part(raw: dict[str, Any]) -> str | None:
    """Place of the first mark inside a content in parts, `content.1.train`."""
    for key in ("content", "value"):
        parts: Any = raw.get(key)
        for number, part in enumerate(parts if isinstance(parts, list) else []):
            for name in part if isinstance(part, dict) else ():
                if _is_mark(name, part[name]):
                    return f"{key}.{number}.{name}"
    return None


def is_context(mark: Mark | None, role: str, field: str, changes: Counter[str]) -> bool:
    """Whether the message is a reply that is not learnt.

    Raises:
        RowError: another message than a reply is marked as learnt.
    """
    if mark is None or (role == "assistant") == mark.learnt:
        return False
    if mark.learnt:
        raise RowError(
            f"{field}.{mark.name}", f"says that a {role} message is learnt; only the assistant's are: remove the field"
        )
    changes[f"replies that {mark.name!r} marks as not to be learnt"] += 1
    return True


def left_out_by(row: dict[str, Any]) -> str | None:
    """Name of the field by which a row says that nothing of it is learnt.

    Raises:
        RowError: a field of the row looks like a mark, and its meaning is not certain.
    """
    for name, value in row.items():
        plain = plain_name(name)
        if (mark := _verdict(name, value, name)) is not None and not mark.learnt:
            return name
        if _is_empty(value) or not (plain in LEARNT | NOT_LEARNT | OF_ROWS or _is_list_of_marks(name, value)):
            continue
        if plain == "mask" and isinstance(value, str) and ROLES.get(value.strip().lower(), "assistant") != "assistant":
            continue  # NeMo's rows name the role that is not learnt
        if not _mark(name, value, name).learnt:
            return name
    return None


def class_labels(rows: Iterable[Any]) -> frozenset[str]:
    """Columns of which all values are 0 or 1, and both occur: a class label of KTO's two classes.

    Args:
        rows: all rows of the file; those without `prompt` and `completion` are no rows for KTO.
    """
    found: dict[str, set[Any]] = {}
    for row in rows:
        for name in _class_columns(row):
            found.setdefault(name, set()).add(row[name] if type(row[name]) is int else None)
    return frozenset(name for name, values in found.items() if values == {0, 1})


def numbers_a_reply(row: Any) -> bool:
    return any(type(row[name]) is int and row[name] in (0, 1) for name in _class_columns(row))


def with_labels(row: Any, names: Collection[str], changes: Counter[str]) -> Any:
    """Read 0 and 1 under these names as false and true.

    Raises:
        RowError: another integer is under a name of KTO's.
    """
    read = {}
    for name in _class_columns(row):
        value = row[name]
        if type(value) is int and value not in (1, *MAYBE_BAD):
            raise RowError(name, f"expected true or false, or 0 and 1 in all rows, found {value}; or remove the column")
        if name in names:
            changes[f"field {name!r}, 0 or 1 in all rows, read as false or true"] += 1
            read[name] = value == 1
    return {**row, **read} if read else row


def _class_columns(row: Any) -> list[str]:
    if not isinstance(row, dict) or not row.keys() >= {"prompt", "completion"}:
        return []
    return [name for name in row if isinstance(name, str) and plain_name(name) in GOOD | BAD]


def rates_a_reply(row: dict[str, Any]) -> str | None:
    numbered = _class_columns(row) if numbers_a_reply(row) else ()
    rated = (name for name, value in row.items() if plain_name(name) in GOOD and isinstance(value, bool))
    return next(rated, next(iter(numbered), None))


def _verdict(name: Any, value: Any, field: str) -> Mark | None:
    """Raises RowError: it may call the reply bad, and that may mean something else."""
    plain = plain_name(name) if isinstance(name, str) else ""
    if plain in GOOD | BAD and isinstance(value, bool):
        return Mark(name, value == (plain in GOOD))
    said = value.strip().lower() if isinstance(value, str) else value
    if plain in GOOD | BAD and said in MAYBE_BAD:
        what = "may say that the reply is bad"
        raise RowError(field, f"{what}: expected true or false, found {short_repr(value)}; write that, or remove it")
    if plain in APPROVED | DISAPPROVED and value is (plain in DISAPPROVED):
        raise RowError(field, f"is {value}, so the reply may be bad; leave the row out, or remove the field")
    return None


def _mark_in(name: Any, value: Any, field: str) -> Mark | None:
    return _verdict(name, value, field) or (_mark(name, value, field) if _is_mark(name, value) else None)


def _mark(name: str, value: Any, field: str) -> Mark:
    plain = plain_name(name)
    if plain not in LEARNT | NOT_LEARNT:
        raise RowError(field, f"may say what is learnt, and trainers read it differently; {_WRITE_WEIGHT}")
    if not isinstance(value, int | float) or value not in (0, 1):
        raise RowError(field, f"expected 0 or 1, found {short_repr(value)}; {_WRITE_WEIGHT}")
    return Mark(name, bool(value) == (plain in LEARNT))


def _is_list_of_marks(name: str, value: Any) -> bool:
    numbers = isinstance(value, list) and all(isinstance(each, int | float | list) for each in value)
    return numbers and not words(name).isdisjoint(MARK_WORDS)


def _is_mark(name: Any, value: Any) -> bool:
    if not isinstance(name, str):  # a map in a parquet file may have other keys
        return False
    looks = plain_name(name) in LEARNT | NOT_LEARNT or not words(name).isdisjoint(MARK_WORDS)
    return looks and not _is_empty(value)


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | dict) and not value)
