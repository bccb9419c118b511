"""Ask a judge for verdicts: `python -m dbbench_adapter.judge` answers JSON lines on standard input.

In:  {"id", "variant": "text|fc|lab|strict", "expected", "given"}
Out: {"id", "correct", "reason"}, or {"id", "error"} for a line that cannot be judged

`expected` and `given` have the variant's own form. fc: the list of gold texts and the JSON value of `answers`. text:
the list of gold texts and everything after `Final Answer:` on that line. lab: the list of rows and the stripped rest of
the line. strict: rows or values on both sides, in any order. Changes are left out, since they are judged by the state
of a database: `python -m dbbench_adapter.table_hash` and `dbbench_adapter.episode`.
"""

from __future__ import annotations

if __name__ == "__main__":
    from agentgrpo.commands import run_module

    run_module("dbbench_adapter.judge")

from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, StrictBool, StrictFloat, StrictInt, StrictStr, TypeAdapter

from agentgrpo.flags import described_parser
from agentgrpo.json_lines import serve_lines
from agentgrpo.json_text import JsonObject
from dbbench_adapter.datatypes import Rows
from dbbench_adapter.judges import fc, lab, strict, text
from dbbench_adapter.judges.base import Answers

_Cell = StrictInt | StrictFloat | StrictStr | None
_TEXTS = TypeAdapter(list[StrictStr])
_ROWS = TypeAdapter(list[list[_Cell | StrictBool]])
_VALUES = TypeAdapter(list[list[_Cell]] | list[_Cell])


class _Case(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: Any = None
    variant: Literal["text", "fc", "lab", "strict"]
    expected: Any
    given: Any


def answer(row: JsonObject) -> dict[str, object]:
    """Raises ValueError: a field is missing or has another form than the variant's."""
    case = _Case.model_validate(row)
    correct = _JUDGES[case.variant](case.expected, case.given)
    return {"correct": correct, "reason": "match" if correct else "wrong_answer"}


def _strict(expected: object, given: Answers) -> bool:
    values = _VALUES.validate_python(expected)
    rows: Rows = tuple(tuple(row) if isinstance(row, list) else (strict.meant(row),) for row in values)
    return strict.same_answers(given, rows, ordered=False)


def _line(given: object) -> str:
    if not isinstance(given, str):
        raise ValueError(f"field given: expected the text of the answer line, found {type(given).__name__}")
    return given


_JUDGES: dict[str, Callable[[Any, Any], bool]] = {
    "text": lambda expected, given: text.same_answers(_line(given), _TEXTS.validate_python(expected)),
    "fc": lambda expected, given: fc.same_answers(
        given, expected if isinstance(expected, str) else _TEXTS.validate_python(expected)
    ),
    "lab": lambda expected, given: lab.same_rows(_line(given), _ROWS.validate_python(expected)),
    "strict": _strict,
}


def main() -> None:
    described_parser("python -m dbbench_adapter.judge", __doc__).parse_args()
    serve_lines(answer)
