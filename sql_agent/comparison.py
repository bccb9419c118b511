"""What a judge compared, so that a person can see why an answer is wrong. Leaves out the verdict itself (`Score`).

It holds the solution. So it is kept out of spans, and out of what reward functions, an LLM as judge and the reward
model get: it goes into trajectory files and onto a person's screen, and nowhere else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any

from dbbench_adapter.datatypes import Row, Rows

# Most rows that are kept of a result, cells of a row, and characters of a cell.
SHOWN_ROWS, SHOWN_CELLS, SHOWN_CHARS = 10, 20, 100
# A larger whole number is kept as text, since a browser would round it.
_EXACT_IN_JSON = 2**53


@dataclass(frozen=True)
class Excerpt:
    """The first rows of a result; long rows and long cells are cut and say so."""

    rows: list[list[Any]]
    """JSON values, at most `SHOWN_ROWS` rows."""
    count: int
    """Rows of the whole result."""
    digest: str = field(default="", compare=False)
    """Equal for equal results: of all rows, in their order only where it counts."""

    @classmethod
    def of(cls, rows: Sequence[Sequence[Any]], *, ordered: bool = False) -> Excerpt:
        texts = list(map(repr, rows))
        whole = "\n".join(texts if ordered else sorted(texts)).encode(errors="replace")
        return cls([_row(row) for row in rows[:SHOWN_ROWS]], len(rows), sha256(whole).hexdigest()[:16])


@dataclass(frozen=True)
class Comparison:
    """A field is None where there is nothing to show."""

    submitted: str | None = None
    """The statement that was handed in, or that ran last."""
    reference: str | None = None
    """The reference statement."""
    expected: Excerpt | None = None
    """The rows of the right answer; with `state` those that only the reference leaves behind."""
    returned: Excerpt | None = None
    """The rows of the given answer; with `state` those that only the agent leaves behind."""
    error: str | None = None
    """What the database said about `submitted`."""
    ordered: bool = False
    """Whether the order of the rows counts."""
    state: bool = False
    """Whether the task changes data, so that rows are compared after the change; each begins with its table's name."""

    def to_dict(self) -> dict[str, Any]:
        """JSON values; text that no encoder takes is replaced."""
        return asdict(self) | {name: _text(getattr(self, name)) for name in ("submitted", "reference", "error")}


def only_in(ours: Mapping[str, Rows], theirs: Mapping[str, Rows]) -> list[Row]:
    """The rows, by table, that `ours` holds and `theirs` does not, each after its table's name."""
    left = {table: Counter(map(repr, theirs.get(table, ()))) for table in ours}
    found = []
    for table, rows in ours.items():
        for row in rows:
            if left[table][repr(row)]:  # `repr` keeps 1 and 1.0 and '1' apart, and takes every cell
                left[table][repr(row)] -= 1
            else:
                found.append((table, *row))
    return found


def _row(row: Sequence[Any]) -> list[Any]:
    cells = [_cell(cell) for cell in row[:SHOWN_CELLS]]
    return cells if len(row) <= SHOWN_CELLS else [*cells, f"… {len(row) - SHOWN_CELLS} more cells"]


def _cell(cell: Any) -> Any:
    if cell is None or isinstance(cell, bool):
        return cell
    if isinstance(cell, int) and abs(cell) <= _EXACT_IN_JSON:
        return cell
    if isinstance(cell, float) and math.isfinite(cell):
        return cell
    text = _text(f"x'{cell.hex()}'" if isinstance(cell, bytes) else str(cell)) or ""
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}… {len(text)} characters"


def _text(text: str | None) -> str | None:
    # half a surrogate pair, which a policy may write, is replaced
    return None if text is None else text.encode("utf-8", "replace").decode()
