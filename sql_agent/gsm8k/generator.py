"""Generates word problems in GSM8K's form without a network, from `stories` with random names and numbers.

Each has a solution of two to four calculations whose results are whole numbers above 0. The problems are easier than
GSM8K's own: they teach the form, the tool and short chains of steps.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, Literal

from sql_agent.gsm8k.calculator import calculate
from sql_agent.gsm8k.stories import PEOPLE, PRONOUNS, STORIES, TIMES, Story

Split = Literal["train", "test"]
# A row: `id`, `question`, and `answer`, the solution with its last line `#### n`.
Problem = dict[str, Any]

HELD_OUT_FRACTION = 0.2
# Number of draws in a row without a new problem after which the generator stops.
MAX_DRAWS = 10_000

_CALCULATION = re.compile(r"\[(\w): (\$?)([^\]]+)\]")


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
