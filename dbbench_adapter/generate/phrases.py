"""The sentences of generated questions, several for each shape; conditions bring their own words.

Every question holds the name of the rows (`delivery routes`), which no two splits share. Left out: languages other than
English, and small talk around the question.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from dbbench_adapter.generate.conditions import Where
from dbbench_adapter.generate.tables import Scene

AGGREGATES = {"SUM": "total", "AVG": "average", "MAX": "highest", "MIN": "lowest"}
NAMINGS = ("{} (as {})", "{} (named {})", "{} under the name {}")
CALCULATIONS = (
    ("sum of {} and {}", "+", "combined_value"),
    ("product of {} and {}", "*", "product_value"),
    ("{} minus {}", "-", "difference_value"),
)

_ROWS = (
    "Return the {columns} of every {row}{where}",
    "List the {columns} for all {rows}{where}",
    "Show the {columns} of each {row}{where}",
    "I need the {columns} of all {rows}{where}",
    "What is the {columns} of each {row}{where}",
)
_ROWS_WHERE = (
    *_ROWS,
    "Find all {rows}{where}. Return the {columns} of each",
    "Look up the {rows}{where}. For each one, give the {columns}",
    "For every {row}{where}, return the {columns}",
)
_COUNTS = ("How many {rows} are there{where}", "Count the {rows}{where}", "Return the number of {rows}{where}")
_SUMMARIES = (
    "What is the {columns} of all {rows}{where}",
    "Return the {columns}, computed over all {rows}{where}",
    "Tell me the {columns} over the set of all {rows}{where}",
    "Take all {rows}{where}. Compute the {columns} over them",
)
_GROUPED = (
    "For each {each}, return the {columns}, taking into account only {rows}{where}",
    "Consider only the {rows}{where}. For each {each}, return the {columns}",
    "Take the {rows}{where} and no others. Group them by {groups} and return the {columns} per group",
    "Look only at {rows}{where}. Summarize them by {groups}: return the {columns}",
)
_GROUPED_ALL = (
    "For each {each} among the {rows}, return the {columns}",
    "Group all {rows} by {groups}. For each group, return the {columns}",
    "Considering all {rows}, show the {columns} for every {each}",
    "Summarize the {rows} by {groups}: return the {columns}",
)
_DISTINCT = (
    "Return each different {each} found among the {rows}{where}. Do not repeat any",
    "Which distinct values of {each} occur among the {rows}{where}. List each only once",
    "List every {each} that occurs among the {rows}{where}. Each should appear only once",
)
_HAVING = (
    ". Keep only groups where {words}",
    ". Include a group only if {words}",
    ". Leave out every group unless {words}",
    ". Report just those groups for which {words}",
)
_ORDERS = (
    ". Sort the result by {}",
    ". Order the rows by {}",
    ". Arrange the result by {}",
    ". The result is to be sorted by {}",
)
_LIMITS = (
    ". Return only the first {n} {entry}",
    ". Limit the output to {n} {entry}",
    ", and stop after {n} {entry}",
    ", limited to the first {n} {entry}",
)
_OFFSETS = (
    ". Skip the first {skipped} and return the next {next}",
    ". Return {n} {entry}, starting from the {nth} one",
    ", limited to {n} {entry} starting from the {nth} one",
    ". Leave out the first {skipped} and limit the rest to {n} {entry}",
)


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def rows(rng: random.Random, scene: Scene, where: Where | None, columns: str) -> str:
    return _filled(rng, _ROWS_WHERE if where else _ROWS, scene, where, columns=columns)


def summary(rng: random.Random, scene: Scene, where: Where | None, columns: str, *, counts_only: bool) -> str:
    return _filled(rng, _COUNTS if counts_only else _SUMMARIES, scene, where, columns=columns)


def grouped(rng: random.Random, scene: Scene, where: Where | None, groups: str, columns: str) -> str:
    each = f"combination of {groups}" if " and " in groups else groups
    return _filled(rng, _GROUPED if where else _GROUPED_ALL, scene, where, columns=columns, groups=groups, each=each)


def distinct(rng: random.Random, scene: Scene, where: Where | None, columns: str, width: int) -> str:
    return _filled(rng, _DISTINCT, scene, where, each=f"combination of {columns}" if width > 1 else columns)


def having(rng: random.Random, words: str) -> str:
    return rng.choice(_HAVING).format(words=words)


def keys(rng: random.Random, sort_keys: Sequence[tuple[str, bool, str]]) -> str:
    """Sort keys in words, from (noun, descending, role)."""
    if len(sort_keys) == 2 and sort_keys[0][1] == sort_keys[1][1] and rng.random() < 0.6:
        (first, descending, _), (second, _, _) = sort_keys
        direction = "descending" if descending else "ascending"
        return f"{first} and then by {second}, both in {direction} order"
    return " and then by ".join(f"{noun} {_direction(rng, descending, role)}" for noun, descending, role in sort_keys)


def _direction(rng: random.Random, descending: bool, role: str) -> str:
    plain = "in descending order" if descending else "in ascending order"
    if role == "date":
        return rng.choice([plain, "from latest to earliest" if descending else "from earliest to latest"])
    if role in ("category", "label"):
        return rng.choice([plain, "from Z to A" if descending else "from A to Z"])
    return rng.choice([plain, "from highest to lowest" if descending else "from lowest to highest"])


def tail(rng: random.Random, order: str, limit: int, skip: int) -> str:
    """Order and limit, to be put behind a sentence that is still open; left open itself.

    Args:
        limit, skip: 0 for none.
    """
    text = rng.choice(_ORDERS).format(order)
    if not limit:
        return text
    template = rng.choice(_OFFSETS if skip else _LIMITS)
    return text + template.format(
        n=limit,
        entry="entry" if limit == 1 else "entries",
        next="one" if limit == 1 else limit,
        nth=ordinal(skip + 1),
        skipped="one" if skip == 1 else skip,
    )


def ended(text: str) -> str:
    """The first sentence with a question mark where it asks, the last one with its full stop."""
    first, stop, rest = text.partition(". ")
    mark = "?" if first.startswith(("What ", "Which ", "How many ")) else "."
    return f"{first}{mark} {rest}." if stop else f"{first}{mark}"


def ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{ending}"


def _filled(rng: random.Random, templates: Sequence[str], scene: Scene, where: Where | None, **slots: str) -> str:
    """One of the templates; a list of conditions is not followed by a comma, so that it is clear where it ends."""
    if where is not None and where.is_list:
        templates = [template for template in templates if re.search(r"\{where\}(\.|$)", template)]
    condition = f" {where.words}" if where else ""
    return rng.choice(templates).format(row=scene.row, rows=scene.rows, where=condition, **slots)
