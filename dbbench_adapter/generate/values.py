"""What the columns of generated tables hold: names, places, categories, money, counts, ratings, years, dates, codes.

A `Field` is a column together with the words that a question calls it by and the distribution of its cells. Cells are
INT or TEXT and never NULL; no text holds a quote, bracket, comma, backquote or backslash, and no two texts of a column
differ by case or accents alone, so that MySQL and SQLite group and sort them alike. Left out: decimals, missing values.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Values = Callable[[random.Random, int], list[int] | list[str]]
"""Given a generator and a number of rows: one cell per row."""

Role = Literal["key", "label", "category", "amount", "level", "date"]
"""key: INT, never repeats. label: TEXT, never repeats. category: TEXT, repeats, to group by. amount: INT, summed.
level: INT that is not summed (a rating, a year, an age). date: TEXT, year-month-day."""


@dataclass(frozen=True)
class Field:
    """A column, in SQL and in English."""

    name: str
    role: Role
    phrase: str
    """A singular noun without article, e.g. `number of seats`."""
    values: Values

    @property
    def type(self) -> Literal["INT", "TEXT"]:
        return "INT" if self.role in ("key", "amount", "level") else "TEXT"


def key(name: str, phrase: str = "") -> Field:
    """Numbers that rise from row to row, now and then with gaps, and never repeat."""

    def values(rng: random.Random, n: int) -> list[int]:
        number, gaps = rng.choice([1, 101, 501, 1001, 2001, 5001]), rng.random() < 0.3
        cells = []
        for _ in range(n):
            cells.append(number)
            number += rng.randint(1, 4) if gaps else 1
        return cells

    return Field(name, "key", phrase or _phrase(name), values)


def person(name: str, phrase: str = "") -> Field:
    """Full names, one per row."""
    return Field(name, "label", phrase or _phrase(name), _distinct(FIRST_NAMES, LAST_NAMES))


def title(name: str, first: str, second: str, phrase: str = "") -> Field:
    """Two-word names, one per row, from comma-separated halves that give 64 or more pairs."""
    return Field(name, "label", phrase or _phrase(name), _distinct(_listed(first), _listed(second)))


def code(name: str, prefix: str, phrase: str = "") -> Field:
    """Codes such as QX-417, one per row; the part before the hyphen repeats."""

    def values(rng: random.Random, n: int) -> list[str]:
        prefixes = [prefix, *(f"{prefix[0]}{letter}" for letter in rng.sample("KQVXZ", 2))]
        return [f"{rng.choice(prefixes)}-{number}" for number in rng.sample(range(100, 1000), n)]

    return Field(name, "label", phrase or _phrase(name), values)


def staff(name: str, phrase: str = "") -> Field:
    """Full names of a few people who come up again and again."""

    def values(rng: random.Random, n: int) -> list[str]:
        return _repeated(rng, _pairs(rng, FIRST_NAMES, LAST_NAMES, min(rng.randint(4, 8), max(2, n // 3))), n)

    return Field(name, "category", phrase or _phrase(name), values)


def pick(name: str, choices: str, phrase: str = "") -> Field:
    """One of a few comma-separated words, some far more often than others in half of the tables."""
    words = _listed(choices)

    def values(rng: random.Random, n: int) -> list[str]:
        return _repeated(rng, rng.sample(words, max(2, min(len(words), n // 3))), n)

    return Field(name, "category", phrase or _phrase(name), values)


def city(name: str, phrase: str = "") -> Field:
    return _some_of(name, CITIES, phrase)


def country(name: str, phrase: str = "") -> Field:
    return _some_of(name, COUNTRIES, phrase)


def amount(name: str, low: int, high: int, phrase: str = "") -> Field:
    """Whole numbers that may be added up: even, skewed to the low end, or in round steps, by table."""
    return Field(name, "amount", phrase or _phrase(name), _numbers(low, high))


def level(name: str, low: int, high: int, phrase: str = "") -> Field:
    """Whole numbers that are compared and averaged but not added up: ratings, ages, years."""
    return Field(name, "level", phrase or _phrase(name), lambda rng, n: [rng.randint(low, high) for _ in range(n)])


def day(name: str, phrase: str = "") -> Field:
    """Dates as text (2023-05-17) over one or two years; in half of the tables days repeat."""

    def values(rng: random.Random, n: int) -> list[str]:
        first = datetime.date(rng.randint(2019, 2024), 1, 1)
        days = [first + datetime.timedelta(rng.randrange(rng.choice([365, 700]))) for _ in range(n)]
        if rng.random() < 0.5:
            days = rng.choices(days[: max(3, n // 2)], k=n)
        return [f"{date:%Y-%m-%d}" for date in days]

    return Field(name, "date", phrase or _phrase(name), values)


def _phrase(name: str) -> str:
    words = ["ID" if word == "id" else word for word in name.split("_")]
    return " ".join(words)


def _listed(words: str) -> list[str]:
    return [word.strip() for word in words.split(",")]


def _some_of(name: str, places: list[str], phrase: str) -> Field:
    def values(rng: random.Random, n: int) -> list[str]:
        return _repeated(rng, rng.sample(places, max(2, min(rng.randint(3, 8), n // 3))), n)

    return Field(name, "category", phrase or _phrase(name), values)


def _distinct(first: list[str], second: list[str]) -> Values:
    return lambda rng, n: _pairs(rng, first, second, n)


def _pairs(rng: random.Random, first: list[str], second: list[str], n: int) -> list[str]:
    """`n` different combinations, as texts."""
    chosen = rng.sample(range(len(first) * len(second)), n)
    return [f"{first[pair % len(first)]} {second[pair // len(first)]}" for pair in chosen]


def _repeated(rng: random.Random, words: list[str], n: int) -> list[str]:
    """Every word at least once where there is room, the rest evenly or by falling weights."""
    weights = [1.0] * len(words) if rng.random() < 0.5 else [1 / rank for rank in range(1, len(words) + 1)]
    cells = words[:n] + rng.choices(words, weights, k=max(0, n - len(words)))
    rng.shuffle(cells)
    return cells


def _numbers(low: int, high: int) -> Values:
    def values(rng: random.Random, n: int) -> list[int]:
        shape = rng.choice(["even", "skewed", "round"])
        if shape == "even":
            return [rng.randint(low, high) for _ in range(n)]
        if shape == "skewed":
            return [low + round((high - low) * rng.random() ** 2.5) for _ in range(n)]
        step = max(step for step in (1, 5, 10, 50, 100, 500) if step == 1 or (high - low) // step >= 20)
        start = -(-low // step)
        return [step * rng.randint(start, high // step) for _ in range(n)]

    return values


FIRST_NAMES = _listed(
    "Ada, Amir, Anna, Ben, Bruno, Carla, Chen, Clara, Daniel, Diana, Elena, Emil, Farah, Felix, Grace, Hana, Hugo, "
    "Ines,  Ivan, Jonas, Julia, Kofi, Laura, Leon, Lina, Marco, Maria, Mei, Nadia, Noah, Olga, Omar, Paula, Peter, "
    "Priya, Rosa,  Samir, Sofia, Tom, Vera, Yusuf, Zoe"
)
LAST_NAMES = _listed(
    "Adams, Baker, Berg, Brown, Castro, Chan, Costa, Davis, Diaz, Evans, Fischer, Garcia, Hall, Hansen, Ito, Jones, "
    "Kaya,  Khan, Kim, Klein, Lopez, Martin, Meyer, Moreau, Nguyen, Novak, Okafor, Patel, Reed, Rossi, Santos, "
    "Silva, Singh,  Smith, Tanaka, Turner, Weber, Wong, Young, Zhang"
)
CITIES = _listed(
    "Berlin, Boston, Cairo, Chicago, Delhi, Denver, Dublin, Geneva, Hanoi, Helsinki, Lagos, Lima, Lisbon, London, "
    "Madrid,  Milan, Nairobi, Osaka, Oslo, Paris, Prague, Quito, Rome, Santiago, Seattle, Seoul, Sydney, Toronto, "
    "Vienna, Warsaw"
)
COUNTRIES = _listed(
    "Argentina, Australia, Brazil, Canada, Chile, Egypt, France, Germany, Ghana, India, Italy, Japan, Kenya, "
    "Mexico,  Norway, Peru, Poland, Spain, Sweden, Turkey, Vietnam"
)
