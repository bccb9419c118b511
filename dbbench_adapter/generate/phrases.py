"""Writes the sentences of generated questions; `phrases.yaml` lists several for each shape.

Every question holds the name of the rows (`delivery routes`), which no two splits share. Languages other than English,
and small talk around the question, are left out.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from dbbench_adapter.generate.conditions import Where
from dbbench_adapter.generate.themes import Scene, read_data

PHRASES = read_data("phrases")


def join_words(words: Sequence[str]) -> str:
    """`a`, `a and b` or `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def rows(rng: random.Random, scene: Scene, where: Where | None, columns: str) -> str:
    templates = PHRASES["rows"] + (PHRASES["rows_with_condition"] if where else [])
    return _filled(rng, templates, scene, where, columns=columns)


def summary_phrase(rng: random.Random, scene: Scene, where: Where | None, columns: str, *, counts_only: bool) -> str:
    return _filled(rng, PHRASES["counts" if counts_only else "summaries"], scene, where, columns=columns)


def grouped(rng: random.Random, scene: Scene, where: Where | None, groups: str, columns: str) -> str:
    each = f"combination of {groups}" if " and " in groups else groups
    templates = PHRASES["groups_with_condition" if where else "groups"]
    return _filled(rng, templates, scene, where, columns=columns, groups=groups, each=each)


def distinct(rng: random.Random, scene: Scene, where: Where | None, columns: str, width: int) -> str:
    each = f"combination of {columns}" if width > 1 else columns
    return _filled(rng, PHRASES["distinct"], scene, where, each=each)


def keys(rng: random.Random, sort_keys: Sequence[tuple[str, bool, str]]) -> str:
    """Write sort keys in words, from (noun, descending, role)."""
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
    """Write the words for order and limit. They continue a sentence and leave it open.

    Args:
        limit, skip: 0 for none.
    """
    text = rng.choice(PHRASES["orders"]).format(order)
    if not limit:
        return text
    template = rng.choice(PHRASES["offsets" if skip else "limits"])
    return text + template.format(
        n=limit,
        entry="entry" if limit == 1 else "entries",
        next="one" if limit == 1 else limit,
        nth=ordinal(skip + 1),
        skipped="one" if skip == 1 else skip,
    )


def punctuate(text: str) -> str:
    """End the first sentence with a question mark if it asks, and the last one with its full stop."""
    first, stop, rest = text.partition(". ")
    mark = "?" if first.startswith(("What ", "Which ", "How many ")) else "."
    return f"{first}{mark} {rest}." if stop else f"{first}{mark}"


def ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{ending}"


def _filled(rng: random.Random, templates: Sequence[str], scene: Scene, where: Where | None, **slots: str) -> str:
    # A list of conditions has to end a sentence, so that its end is clear.
    if where is not None and where.is_list:
        templates = [template for template in templates if re.search(r"\{where\}(\.|$)", template)]
    condition = f" {where.words}" if where else ""
    return rng.choice(templates).format(row=scene.row, rows=scene.rows, where=condition, **slots)
