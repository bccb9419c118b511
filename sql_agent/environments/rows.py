"""Reads tasks from the rows of a file: JSON objects of any form, one per line, or parquet.

What a row means is left out: a class of the user's says it (`user`), or an agent (`sql_agent.user_agents.tasks`).
"""

from __future__ import annotations

import json
import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgrpo.chat.conversations import RowError, without_json_texts
from agentgrpo.spelling import did_you_mean
from dbbench_adapter.protocols import Message
from dbbench_adapter.tasks.load import raw_records
from dbbench_adapter.tasks.records import RowFault
from sql_agent.environments.base import Split, Taskset, digest
from sql_agent.settings.groups import NO_SPLIT, SPLIT_SEED, DataConfig


@dataclass(frozen=True)
class RowTask:
    id: str
    kind: str
    row: dict[str, Any]

    @property
    def question(self) -> str:
        """For lists that a person reads."""
        asked = self.row.get("question") or self.row.get("prompt") or self.id
        return str(asked[-1]["content"] if isinstance(asked, list) else asked)

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.id, "kind": self.kind, "row": self.row}

    @staticmethod
    def from_dict(fields: dict[str, Any]) -> RowTask:
        return RowTask(fields["id"], fields["kind"], fields["row"])


@dataclass(frozen=True)
class PlacedTask:
    task: RowTask
    place: str
    """`FILE, line N`, for messages."""


class RowTaskset(Taskset):
    """Provides tasks that are rows of files."""

    _without_file: str
    """Why there are no tasks without a file."""

    def read_split(self, data: DataConfig, seed: int) -> Split:
        if data.train_file is None:
            raise ValueError(f"{self._without_file}; give a file of rows, --train-file ROWS.jsonl")
        train = self.read_tasks(data.train_file)
        if data.val_file is not None:
            return Split(train, self.read_tasks(data.val_file))
        return Split(*split_rows(train, data.held_out_fraction))

    @abstractmethod
    def read_tasks(self, file: Path) -> list[RowTask]: ...

    def fingerprint(self, task: RowTask) -> str:
        said = {name: value for name, value in task.row.items() if name != "id" and value is not None}
        return digest(json.dumps(said, sort_keys=True))  # columns that only other rows of the file have do not count

    def row(self, task: RowTask) -> dict[str, Any]:
        return task.row

    def task(self, fields: dict[str, Any]) -> RowTask:
        return RowTask.from_dict(fields)


def read_placed_tasks(file: Path, kind: str) -> list[PlacedTask]:
    """Read every row of a file in order. A column that a row lacks becomes None, as in a `datasets.Dataset`.

    A task has its row's own `id` and `kind`, or else its number in the file as messages count, and the argument `kind`.

    Raises:
        ValueError: the file is missing, a row is not a JSON object, or two rows have the same `id`.
    """
    if not file.is_file():
        expected = "rows of JSON, one object per line, or a .parquet file"
        raise ValueError(f"{file}: no such file; expected {expected}{did_you_mean(file)}")
    found: list[tuple[str, str, Any]] = []
    for record in raw_records(file):
        if isinstance(record, RowFault):
            raise ValueError(f"{file}, {record.where}: {record.problem}")
        number = record.place.rpartition(" ")[2]
        found.append((f"{file.stem}-{number}", f"{file}, {record.place}", record.value))
    return placed_tasks(found, kind)


def placed_tasks(found: Sequence[tuple[str, str, Any]], kind: str) -> list[PlacedTask]:
    """The rules are those of `read_placed_tasks`.

    Args:
        found: of each row its default id, its place, and the row.
    """
    for _, place, row in found:
        if not isinstance(row, dict):
            there = type(row).__name__
            raise ValueError(f"{place}: expected a JSON object with the columns of a row, found {there}")
    columns = dict.fromkeys(name for *_, row in found for name in row)
    places: dict[str, str] = {}
    tasks = []
    for default, place, row in found:
        id = str(row["id"]) if isinstance(row.get("id"), str | int) else default
        if id in places:
            raise ValueError(f"{place}: its id {id!r} is also that of {places[id]}; ids have to differ")
        places[id] = place
        own_kind = row.get("kind")
        try:
            row = without_json_texts(row, Counter())
        except RowError as error:
            raise ValueError(f"{place}, {error}") from None
        whole = {name: _plain(row.get(name)) for name in columns}
        tasks.append(PlacedTask(RowTask(id, own_kind if isinstance(own_kind, str) else kind, whole), place))
    return tasks


def split_rows(tasks: Sequence[RowTask], held_out_fraction: float) -> tuple[list[RowTask], list[RowTask]]:
    """(train, held out), drawn by `SPLIT_SEED`; rows that differ only in their `id` stay together.

    Args:
        held_out_fraction: share of the different rows, at least one; 0 holds nothing out.
    Raises:
        ValueError: all rows are the same.
    """
    if not held_out_fraction:
        return list(tasks), []
    # unlike `fingerprint` with columns that only other rows have, whose order decides the draw: splits have to last
    said = [json.dumps({k: v for k, v in task.row.items() if k != "id"}, sort_keys=True) for task in tasks]
    different = sorted(set(said))
    if len(different) < 2:
        raise ValueError(f"{len(different)} different row is too few to hold some out; {NO_SPLIT}")
    random.Random(SPLIT_SEED).shuffle(different)
    held_out = set(different[: min(max(round(held_out_fraction * len(different)), 1), len(different) - 1)])
    train = [task for task, text in zip(tasks, said, strict=True) if text not in held_out]
    return train, [task for task, text in zip(tasks, said, strict=True) if text in held_out]


def as_messages(prompt: Any) -> list[Message]:
    """Raises ValueError: the prompt is invalid; the message continues a sentence about it."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list) or not prompt:
        raise ValueError(f"is {prompt!r:.80}, expected a text, or a list of messages")
    messages: list[Message] = []
    for message in prompt:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError(f"has a message {message!r:.80}, expected {{'role': ..., 'content': ...}}")
        content = message.get("content")
        messages.append({**message, "content": "" if content is None else text_of(content)})
    return messages


def text_of(content: Any) -> str:
    """Turn a tool's result into text as TRL does: a list of text blocks is joined, anything else goes through `str`.

    Raises:
        ValueError: it contains an image; the policies here read text only.
    """
    if isinstance(content, str):
        text = content
    elif isinstance(content, list) and content and all(isinstance(b, dict) and "type" in b for b in content):
        if any(block["type"] != "text" for block in content):
            raise ValueError("contains an image; the policies here read text alone")
        text = "".join(str(block.get("text", "")) for block in content)
    else:
        text = str(content)
    return text.encode("utf-8", "replace").decode()  # a lone surrogate cannot be sent


def _plain(value: Any) -> Any:
    # as JSON: a parquet file may also hold dates and bytes
    return json.loads(json.dumps(value, default=str))


def short(value: Any, most: int = 200) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"
