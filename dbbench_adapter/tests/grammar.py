"""Random statements of MySQL and MariaDB: `statements(seed)`, the same for the same seed.

Three sources: a grammar over the two tables of an episode, those of others and of the server;
syntax trees of `hostile`, `agent_sql` and the grammar with parts put in each other's places; and any of these with a
few tokens gone wrong. Most are right, some nearly. `python -m dbbench_adapter.tests.grammar SEED [COUNT]` prints them.

The rules are in `grammar_rules`.
"""

from __future__ import annotations

import logging
import random
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

import sqlglot
from sqlglot import exp
from sqlglot.errors import ErrorLevel, SqlglotError

from dbbench_adapter.dialect.lexer import tokens
from dbbench_adapter.tests.agent_sql import STATEMENTS as AGENT_SQL
from dbbench_adapter.tests.grammar_rules import FUNCTION_NAMES, KEYWORDS, NESTS, RULES
from dbbench_adapter.tests.hostile import STATEMENTS

MAX_CHARS = 19_000
"""No statement is longer; SQLite takes 20,000."""
_MAX_SPLICED_CHARS = 1_500
"""Parts are taken from no longer statement."""
_MAX_RULES = (8, 8, 16, 30, 60, 150)
"""Rules that a statement follows before it comes to its ends the shortest way, one of these."""

_Alternative = tuple[str, ...]
"""Texts and, at the odd places, names of rules with their mark."""
_PLACE = re.compile(r"<(\w{2,}[?,+]?)>")


def _read(rules: str) -> dict[str, list[_Alternative]]:
    grammar: dict[str, list[_Alternative]] = {}
    name = ""
    for line in filter(str.strip, rules.split("\n")):
        if not line.startswith(" "):
            name = line.removesuffix(":")
            continue
        weight, text = re.fullmatch(r"  (?:\*(\d+) )?(.*)", line, re.DOTALL).groups()
        grammar.setdefault(name, []).extend([tuple(_PLACE.split(text))] * int(weight or 1))
    grammar["nest"] = [("", "value", "")]  # written by `_Writer`
    grammar["keyword"] = [(word,) for word in KEYWORDS]
    grammar["function"] = [(function,) for function in FUNCTION_NAMES]
    return grammar


def _depths(grammar: dict[str, list[_Alternative]]) -> dict[str, int]:
    """How many rules deep the shortest text of each rule is."""
    depths: dict[str, int] = {}
    while len(depths) < len(grammar):
        known = len(depths)
        for name in grammar.keys() - depths.keys():
            found = [d for alternative in grammar[name] if (d := _depth(alternative, depths)) is not None]
            if found:
                depths[name] = 1 + min(found)
        if len(depths) == known:
            raise ValueError(f"rules that come to no end: {sorted(grammar.keys() - depths.keys())}")
    return depths


def _depth(alternative: _Alternative, depths: dict[str, int]) -> int | None:
    needed = [part.rstrip(",+") for part in alternative[1::2] if not part.endswith("?")]
    if unknown := [part for part in alternative[1::2] if part.rstrip("?,+") not in _GRAMMAR]:
        raise ValueError(f"unknown rules: {unknown}")
    return max((depths[name] for name in needed), default=0) if all(name in depths for name in needed) else None


_GRAMMAR = _read(RULES)
_DEPTHS = _depths(_GRAMMAR)


class _Writer:
    """Writes one statement."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._rules, self._most = rng, 0, rng.choice(_MAX_RULES)

    def text(self, name: str) -> str:
        self._rules += 1
        if name == "nest":
            opening, closing = self._rng.choice(NESTS)
            depth = self._rng.choice((20, 60, 200, 1_000))
            return f"{opening * depth}{self.text('small')}{closing * depth}"
        alternatives = _GRAMMAR[name]
        if self._rules > self._most:
            shortest = min(_depth(alternative, _DEPTHS) for alternative in alternatives)
            alternatives = [each for each in alternatives if _depth(each, _DEPTHS) == shortest]
        alternative = self._rng.choice(alternatives)
        return "".join(part if place % 2 == 0 else self._part(part) for place, part in enumerate(alternative))

    def _part(self, part: str) -> str:
        name, mark = (part[:-1], part[-1]) if part[-1] in "?,+" else (part, "")
        if mark == "?":
            wanted = self._rules <= self._most and self._rng.random() < 0.5
            return self.text(name) if wanted else ""
        if mark:
            count = self._rng.choice([1, 1, 2, 3]) if self._rules <= self._most else 1
            return (", " if mark == "," else " ").join(self.text(name) for _ in range(count))
        return self.text(name)


def statement_of_grammar(rng: random.Random) -> str:
    """One statement, now and then a value deep in parentheses, subqueries or operators."""
    writer = _Writer(rng)
    return writer.text("statement") if rng.random() < 0.98 else f"SELECT {writer.text('nest')} FROM t"


# Parts of syntax trees in each other's places -------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _trees() -> tuple[list[exp.Expr], dict[str, list[exp.Expr]]]:
    """What can be recombined, and all their parts by kind."""
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    rng = random.Random(0)
    texts = [sql for _, sql in STATEMENTS] + list(map(_over_our_tables, AGENT_SQL))
    texts += [statement_of_grammar(rng) for _ in range(500)]
    trees, parts = [], {}
    for sql in texts:
        tree = _parsed(sql) if len(sql) <= _MAX_SPLICED_CHARS else None
        if tree is not None and not isinstance(tree, exp.Command):
            trees.append(tree)
            for node in tree.walk():
                parts.setdefault(_kind(node), []).append(node)
    return trees, parts


def _over_our_tables(sql: str) -> str:
    for ours, theirs in (("t", "Fruit"), ("u", "Sales"), ("a", "Name|Color|Day"), ("b", "Price|Stock|Amount")):
        sql = re.sub(rf"\b({theirs})\b", ours, sql, flags=re.IGNORECASE)
    return sql


def _parsed(sql: str) -> exp.Expr | None:
    try:
        return sqlglot.parse_one(sql, read="mysql")
    except (SqlglotError, RecursionError, ValueError, AttributeError, TypeError):
        return None


def _kind(node: exp.Expr) -> str:
    """Nodes of one kind may stand in each other's place."""
    for name, kind in (("query", exp.Query), ("source", exp.Table), ("value", exp.Condition)):
        if isinstance(node, kind):
            return name
    return type(node).__name__


def spliced(rng: random.Random) -> str:
    """A statement with up to three of its parts taken from others."""
    trees, parts = _trees()
    while True:
        tree = rng.choice(trees).copy()
        for _ in range(rng.choice([1, 1, 2, 3])):
            node = rng.choice([node for node in tree.walk() if node is not tree] or [tree])
            if node is not tree:
                node.replace(rng.choice(parts[_kind(node)]).copy())
        try:
            return tree.sql("mysql", unsupported_level=ErrorLevel.IGNORE)
        except (SqlglotError, RecursionError, ValueError, AttributeError, TypeError, LookupError):
            continue  # some combinations have no text


def mutated(sql: str, rng: random.Random) -> str:
    """A statement with one to three of its tokens left out, said twice, exchanged or replaced."""
    found = [token.text for token in tokens(sql)]
    for _ in range(rng.choice([1, 1, 2, 3]) if found else 0):
        place = rng.randrange(len(found))
        other = rng.choice([rng.choice(found), rng.choice(KEYWORDS), rng.choice(FUNCTION_NAMES)])
        found[place] = rng.choice(["", f"{found[place]} {found[place]}", other])
    return "".join(found)


def statement(rng: random.Random) -> str:
    while True:
        source = rng.random()
        sql = statement_of_grammar(rng) if source < 0.8 else spliced(rng)
        if rng.random() < 0.05:
            sql = mutated(sql, rng)
        if len(sql) <= MAX_CHARS:
            return sql


def statements(seed: int) -> Iterator[str]:
    """Statements without end, the same for the same seed."""
    rng = random.Random(seed)
    while True:
        yield statement(rng)


if __name__ == "__main__":
    for sql in islice(statements(int(sys.argv[1])), int(sys.argv[2]) if len(sys.argv) > 2 else 20):
        print(repr(sql))
