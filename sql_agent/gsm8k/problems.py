"""Loads word problems from the hub or from a local file in GSM8K's form, or makes them up; reads their numbers.

Those that are made up come from the stories of `stories.yaml`, with random names and numbers. Each has a solution of
two to four calculations whose results are whole numbers above 0. They are easier than GSM8K's own: they teach the form,
the tool and short chains of steps.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import yaml

from agentgrpo.checks import UsageError
from agentgrpo.spelling import did_you_mean
from sql_agent.environments.rows import read_placed_tasks, short
from sql_agent.gsm8k.calculator import calculate

Split = Literal["train", "test"]
# A row: `id`, `question`, and `answer`, the solution with its last line `#### n`.
Problem = dict[str, Any]

HELD_OUT_FRACTION = 0.2
# Number of draws in a row without a new problem after which the generator stops.
MAX_DRAWS = 10_000

_CALCULATION = re.compile(r"\[(\w): (\$?)([^\]]+)\]")

# Names with their pronouns; `{name}` and `{other}` of a story are two of them.
PEOPLE = (
    *(("Amara", "she"), ("Bruno", "he"), ("Chen", "he"), ("Daria", "she"), ("Elif", "she"), ("Farid", "he")),
    *(("Greta", "she"), ("Hugo", "he"), ("Ines", "she"), ("Jonas", "he"), ("Kofi", "he"), ("Leila", "she")),
    *(("Mateo", "he"), ("Nadia", "she"), ("Omar", "he"), ("Petra", "she"), ("Quinn", "he"), ("Rosa", "she")),
    *(("Sven", "he"), ("Tessa", "she"), ("Umar", "he"), ("Vera", "she"), ("Wanda", "she"), ("Yusuf", "he")),
)
PRONOUNS = {"she": "her", "he": "his"}
TIMES = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}


@dataclass(frozen=True)
class Story:
    """A row of `stories.yaml`, whose first lines say what the fields are."""

    name: str
    numbers: dict[str, Sequence[int]]
    question: str
    steps: Sequence[str]
    things: Sequence[str]


def _numbers(said: Any) -> Sequence[int]:
    return range(said["from"], said["to"] + 1, said.get("by", 1)) if isinstance(said, dict) else said


STORIES = tuple(
    Story(**row | {"numbers": {letter: _numbers(said) for letter, said in row["numbers"].items()}})
    for row in yaml.load(Path(__file__).with_name("stories.yaml").read_text("utf-8"), yaml.CSafeLoader)
)


def in_split(key: str, split: Split, held_out_fraction: float) -> bool:
    # Only the key decides, not the seed or the other problems.
    digest = hashlib.sha256(key.encode()).digest()
    return (int.from_bytes(digest[:8], "big") < held_out_fraction * 2**64) == (split == "test")


def generate_problems(count: int, *, split: Split = "train", seed: int = 0) -> list[Problem]:
    """A story with its numbers belongs to one split, whatever the seed and the names.

    Raises:
        ValueError: the generator does not have that many problems.
    """
    problems = list(islice(_problems(split, seed), count))
    if len(problems) < count:
        raise ValueError(
            f"the generator has no more than {len(problems)} {split} problems, {count} were asked for; take fewer"
        )
    return problems


def _problems(split: Split, seed: int) -> Iterator[Problem]:
    draw, seen, failed_draws = random.Random(f"{seed}/{split}"), set(), 0
    while failed_draws < MAX_DRAWS:
        story = draw.choice(STORIES)
        numbers = {letter: draw.choice(values) for letter, values in story.numbers.items()}
        key = f"{story.name}/{'/'.join(map(str, numbers.values()))}"
        problem = None
        if key not in seen and in_split(key, split, HELD_OUT_FRACTION):
            problem = _fill_story(story, numbers, f"generated-{split}-{seed}-{len(seen)}", draw)
        if problem is None:
            failed_draws += 1
            continue
        seen.add(key)
        failed_draws = 0
        yield problem


def _fill_story(story: Story, numbers: dict[str, int], problem_id: str, draw: random.Random) -> Problem | None:
    """None if a result is not a whole number above 0."""
    (name, she), (other, _) = draw.sample(PEOPLE, 2)
    words = {"name": name, "other": other, "she": she, "She": she.capitalize(), "her": PRONOUNS[she]}
    words |= {"thing": draw.choice(story.things)}
    words |= {f"{letter}_times": TIMES.get(number, "") for letter, number in numbers.items()}
    values = {letter: str(number) for letter, number in numbers.items()}

    def calculation(found: re.Match[str]) -> str:
        letter, dollar, expression = found.groups()
        expression = re.sub(r"[a-z]", lambda variable: values[variable[0]], expression)
        values[letter] = calculate(expression)
        return f"{expression} = {dollar}<<{expression}={values[letter]}>>{values[letter]}"

    sentences = [_CALCULATION.sub(calculation, step) for step in story.steps]
    if not all(value.isdigit() and value != "0" for value in values.values()):
        return None
    solution = "\n".join([*sentences, f"#### {list(values.values())[-1]}"]).format(**words, **values)
    return {"id": problem_id, "question": story.question.format(**words, **values), "answer": solution}


HUB_NAME = "openai/gsm8k"
# Number of problems that the generator makes if no limit is given.
GENERATED = 1_000
SOURCES = ("gsm8k", "generated")
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


def check_source(source: str) -> None:
    """Raises UsageError: there is no such file, nor another source of that name."""
    if source not in SOURCES:
        _check_file(Path(source))


def _check_file(path: Path) -> None:
    if not path.is_file():
        meant = did_you_mean(str(path), SOURCES) or did_you_mean(path)
        others = f"no such file, and no other source of problems; `gsm8k` is the hub's; {_OTHERS}"
        raise UsageError(f"{path}: {others}{meant}")


def read_problems(path: Path) -> list[Problem]:
    """Raises ValueError: the file cannot be read, has no row, or a row is no problem."""
    _check_file(path)
    problems = []
    for placed in read_placed_tasks(path, "gsm8k"):
        try:
            gold_answer(placed.task.row)
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


def gold_answer(row: Problem) -> Decimal:
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
