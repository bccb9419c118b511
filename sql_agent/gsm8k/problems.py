"""Loads word problems from the hub, from a local file in GSM8K's form, or from the generator; reads their numbers."""

from __future__ import annotations

import random
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

from agentgrpo.nearest import did_you_mean
from sql_agent.environments.rows import read_rows, short
from sql_agent.gsm8k.generator import HELD_OUT_FRACTION, Problem, Split, generate_problems, in_split

HUB_NAME = "openai/gsm8k"
# Number of problems that the generator makes if no limit is given.
GENERATED = 1_000
_OTHERS = "give a .jsonl or .parquet file of rows with question and answer, or `generated` for made-up problems"

_NUMBER = (
    r"(?P<sign>-\s?\$?|\$\s?-?)?"
    r"(?P<digits>(?>[0-9]{1,3}(?:,[0-9]{3})++(?![0-9])|[0-9]++)(?:\.[0-9]++)?|\.[0-9]++)"
    r"(?![0-9]|[.,:][0-9]|[eE][-+]?[0-9]|\s*[*/^=×÷]|\s*[-+]\s*[0-9$])"  # 1/2, 3+4, 1e5, 5:30, 1,00 are not 1, 3, 5
)
_FINAL = re.compile(rf"[^\S\n]*{_NUMBER}")


def load_problems(
    source: str,
    *,
    split: Split = "train",
    limit: int | None = None,
    seed: int = 0,
    held_out_fraction: float = HELD_OUT_FRACTION,
) -> list[Problem]:
    """Load one split's problems in the seed's order; `read_problems` reads a whole file.

    Args:
        source: `gsm8k` for the hub or its cache; `generated`; or a JSONL or parquet file whose rows have a `question`
            and an `answer` that ends with `#### n`.
        split: the hub has its own splits. In a file, `test` is the share `held_out_fraction` of its questions, chosen
            only by their text. The generator has no story with the same numbers in both.
        limit: largest number of problems, drawn by the seed; None: all, or `GENERATED` from the generator.
    Raises:
        ValueError: the source cannot be reached or read, a row does not parse, no row of a file is in the split, or the
            generator does not have that many problems.
    """
    if source == "generated":
        return generate_problems(GENERATED if limit is None else limit, split=split, seed=seed)
    problems = _from_hub(split) if source == "gsm8k" else _from_file(Path(source), split, held_out_fraction)
    random.Random(seed).shuffle(problems)
    return problems[:limit]


def read_problems(path: Path) -> list[Problem]:
    """Raises ValueError: the file cannot be read, has no row, or a row is no problem."""
    if not path.is_file():
        meant = did_you_mean(str(path), ["gsm8k", "generated"]) or did_you_mean(path)
        others = f"no such file, and no other source of problems; `gsm8k` is the hub's; {_OTHERS}"
        raise ValueError(f"{path}: {others}{meant}")
    problems = []
    for placed in read_rows(path, "gsm8k"):
        try:
            final_answer(placed.task.row)
        except ValueError as error:
            raise ValueError(f"{placed.place}, {error}") from None
        problems.append({**placed.task.row, "id": placed.task.id})
    return problems


def _from_hub(split: Split) -> list[Problem]:
    import datasets  # the import takes seconds

    try:
        rows: Any = datasets.load_dataset(HUB_NAME, "main", split=split)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"gsm8k: {HUB_NAME} is neither in the cache nor can the hub be reached ({error}); {_OTHERS}"
        ) from None
    return [{"id": f"gsm8k-{split}-{index}", **dict(row)} for index, row in enumerate(rows)]


def _from_file(path: Path, split: Split, held_out_fraction: float) -> list[Problem]:
    everything = read_problems(path)
    problems = [row for row in everything if in_split(row["question"].strip(), split, held_out_fraction)]
    if not problems:
        raise ValueError(
            f"{path}: none of its {len(everything)} problems falls in the {split} share ({held_out_fraction:.0%} of "
            "the questions are test, by their text); give more rows"
        )
    return problems


def final_answer(row: Problem) -> Decimal:
    """Raises ValueError: the row is no problem; the message names the field."""
    for name in ("question", "answer"):
        if not isinstance(text := row.get(name), str) or not text.strip():
            raise ValueError(f"field {name}: expected a text, found {short(repr(text), 40)}")
    number = final_number(row["answer"])
    if number is None:
        raise ValueError(f"field answer: expected a last line such as #### 72, found {row['answer'].strip()[-40:]!r}")
    return number


def final_number(text: str) -> Decimal | None:
    """The number directly after the last `####`, on the same line; None if there is none.

    A dollar sign in front, commas between thousands and words after it (`$1,000 in all`) are ignored. A calculation or
    a fraction is not a number.
    """
    _, mark, rest = text.rpartition("####")
    found = _FINAL.match(rest) if mark else None
    if found is None:
        return None
    digits = found["digits"].replace(",", "")
    return Decimal(f"-{digits}" if "-" in (found["sign"] or "") else digits)
