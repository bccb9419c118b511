"""Defines the records of questions and tables, and reads question files. Importing this module is instant."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from agentgrpo.checks import UsageError
from agentgrpo.file_kinds import RowFileError
from agentgrpo.row_files import read_rows

Language = Literal["en", "zh"]
# The tables of `TABLES` that a database has, each with its columns.
Schema = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class MedicalTable:
    name_column: str
    """The column with an entry's name; a table needs only this and `id`."""
    columns: tuple[str, ...]
    """Columns with texts that an entry may have, besides `id` and its name."""


TABLES: dict[str, MedicalTable] = {
    "drugs_info": MedicalTable(
        "med_name",
        (
            *("component", "form", "specification", "indication", "dosage", "adverse_reactions", "contraindications"),
            *("precautions", "drug_interactions", "storage", "shelf_life", "approval_number", "company_name"),
        ),
    ),
    "disease": MedicalTable(
        "disease_name",
        (
            *("overview", "department", "susceptible_population", "transmission", "cause", "clinical_manif"),
            *("complication", "examination", "diagnosis", "differ_diag", "treatment", "prevention", "prognosis"),
        ),
    ),
}


@dataclass(frozen=True)
class Question:
    """One question. `table` to `answer` are for people and for preference pairs; no reward reads them."""

    id: str
    question: str
    language: Language = "en"
    table: str | None = None
    row_id: int | str | None = None
    column: str | None = None
    answer: str | None = None
    """The field's text. It never enters a prompt, a tool result or a span's conversation."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # a misspelt key stops the load

    @property
    def kind(self) -> str:
        return self.table or "medical"

    @property
    def entry(self) -> str:
        """Key that must be in only one half of a split: the row, or the question's id if it names no row."""
        return self.id if self.row_id is None else f"{self.table}/{self.row_id}"

    def to_dict(self) -> dict[str, Any]:
        """One line of a questions file; `from_dict` is the inverse."""
        return _QUESTION.dump_python(self, mode="json")

    @staticmethod
    def from_dict(fields: dict[str, Any]) -> Question:
        return _QUESTION.validate_python(fields)


_QUESTION: TypeAdapter[Question] = TypeAdapter(Question)


def read_questions(path: Path) -> list[Question]:
    """Line 1 is the first.

    Raises:
        UsageError: the file is missing or empty, a line is not a question, or an id occurs twice.
    """
    if not path.is_file():
        raise UsageError(f"{path} does not exist; agentgrpo tasks medical --questions writes such files")
    questions: dict[str, Question] = {}
    for number, value in _rows(path):
        try:
            question = _QUESTION.validate_python(value)
        except ValidationError as error:
            problem = error.errors()[0]
            field = ".".join(map(str, problem["loc"])) or "line"
            raise UsageError(f"{path}, line {number}, {field}: {problem['msg']}; see doc/medical.md") from None
        if question.id in questions:
            raise UsageError(f"{path}, line {number}: id {question.id!r} occurs twice; give each its own")
        questions[question.id] = question
    if not questions:
        raise UsageError(f"{path} holds no question; agentgrpo tasks medical --questions writes such files")
    return list(questions.values())


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        for row in read_rows(path):
            if fault := row.fault():
                raise UsageError(f"{path}, {fault}; see doc/medical.md")
            yield row.number, row.value
    except RowFileError as error:
        raise UsageError(str(error)) from None


def write_questions(questions: Iterable[Question], path: Path) -> None:
    lines = (json.dumps(question.to_dict(), ensure_ascii=False) + "\n" for question in questions)
    path.write_text("".join(lines), "utf-8")
