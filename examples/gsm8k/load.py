"""Loads word problems from the hub, from a local file in GSM8K's form, or from the generator."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from dbbench_adapter.tasks.load import raw_records
from dbbench_adapter.tasks.records import Fault, RawRecord
from examples.gsm8k.datatypes import Split, WordProblem, final_number, in_split
from examples.gsm8k.generator import HELD_OUT_FRACTION, generate_problems

HUB_NAME = "openai/gsm8k"
GENERATED = 1_000
"""Number of problems that the generator makes if no limit is given."""
_OTHERS = "give a .jsonl or .parquet file of rows with question and answer, or `generated` for made-up problems"


def load_problems(
    source: str,
    *,
    split: Split = "train",
    limit: int | None = None,
    seed: int = 0,
    held_out_fraction: float = HELD_OUT_FRACTION,
) -> list[WordProblem]:
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


def read_problems(path: Path) -> list[WordProblem]:
    """Read every problem of a file, in order.

    Raises:
        ValueError: the file cannot be read, has no row, or a row does not parse.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file, and no other source of problems; `gsm8k` is the hub's; {_OTHERS}")
    return list(_read(raw_records(path), str(path)))


def _from_hub(split: Split) -> list[WordProblem]:
    import datasets  # the import takes seconds

    try:
        rows = datasets.load_dataset(HUB_NAME, "main", split=split)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"gsm8k: {HUB_NAME} is neither in the cache nor can the hub be reached ({error}); {_OTHERS}"
        ) from None
    records = (RawRecord(f"gsm8k-{split}-{index}", f"row {index}", row) for index, row in enumerate(rows))
    return list(_read(records, f"gsm8k, {split}"))


def _from_file(path: Path, split: Split, held_out_fraction: float) -> list[WordProblem]:
    everything = read_problems(path)
    problems = [problem for problem in everything if in_split(problem.question, split, held_out_fraction)]
    if not problems:
        raise ValueError(
            f"{path}: none of its {len(everything)} problems falls in the {split} share ({held_out_fraction:.0%} of "
            "the questions are test, by their text); give more rows"
        )
    return problems


@dataclass(frozen=True)
class _Row:
    question: str
    answer: str


_ROW = TypeAdapter(_Row)


def _read(records: Iterator[RawRecord | Fault], source: str) -> Iterator[WordProblem]:
    for record in records:
        if isinstance(record, Fault):
            raise ValueError(f"{source}, {record}")
        try:
            yield _problem(record)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"])) or "row"
            raise ValueError(f"{source}, {record.where}, field {field}: {first['msg']}") from None
        except ValueError as error:
            raise ValueError(f"{source}, {record.where}, {error}") from None


def _problem(record: RawRecord) -> WordProblem:
    row = _ROW.validate_python(record.value)
    number = final_number(row.answer)
    if not row.question.strip():
        raise ValueError("field question: expected a text, found an empty one")
    if number is None:
        raise ValueError(f"field answer: expected a last line such as #### 72, found {row.answer[-40:]!r}")
    return WordProblem(record.id, row.question.strip(), f"{number:f}", row.answer.strip())
