"""The loop of commands that answer JSON lines on standard input with JSON lines on standard output."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pydantic import ValidationError

logger = logging.getLogger(__name__)


def answer_lines(lines: Iterable[str], answer: Callable[[dict[str, Any]], dict[str, Any]]) -> Iterator[str]:
    """One line for each line that is not blank, in order: the row's `id`, then `answer`'s fields or an `error`.

    Args:
        answer: a function that raises `ValueError` for a row that it cannot take. Any other exception is an error of
        the program; it is logged and affects this row alone.
    """
    for marked in lines:
        line = marked.removeprefix("\ufeff")
        if not line.strip():
            continue
        row: Any = None
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"expected a JSON object, found {type(row).__name__}")
            fields = answer(row)
        except (ValueError, RecursionError) as error:
            fields = {"error": _error_message(error)}
        except Exception as error:  # a service answers every line, and one row must not end it
            logger.exception("row %.200s", line)
            fields = {"error": f"internal error: {type(error).__name__}: {error}"}
        yield json.dumps({"id": row.get("id") if isinstance(row, dict) else None, **fields})


def serve_lines(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Each answer is written before the next line is read."""
    sys.stdin.reconfigure(encoding="utf-8", errors="replace")  # pyright: ignore[reportAttributeAccessIssue]
    for line in answer_lines(sys.stdin, answer):
        print(line, flush=True)


def _error_message(error: ValueError | RecursionError) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "row"
        return f"field {field}: {first['msg']}; found {repr(first['input'])[:120]}"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error}"
    return str(error) or type(error).__name__
