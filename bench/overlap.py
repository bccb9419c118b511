"""Count what held-out questions share with those that a policy learns from: `python -m bench.overlap TRAIN HELD_OUT`.

A figure on held-out questions says little if their databases, words or queries were learnt. Queries are compared
whatever their database is: as written, without their values, as text-to-SQL benchmarks are split (Finegan-Dollak et
al., ACL 2018), and without their names too. A database may come back under another name, so tables are compared too.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sqlglot import exp

from agentgrpo.flags import described_parser
from agentgrpo.row_files import iter_rows
from sql_agent.text_to_sql.load import parsed


class Row(NamedTuple):
    database: str
    question: str
    query: str


class Shared(NamedTuple):
    what: str
    held_out: int
    """Different ones among the held-out questions."""
    learnt: int
    """How many of these are among the learnt ones too."""
    questions: int
    """Held-out questions with one of these."""


def read(path: Path) -> list[Row]:
    rows = [dict(row.value) for row in iter_rows(path)]
    return [Row(row.get("db_id", ""), row["question"], row.get("query") or row["SQL"]) for row in rows]


def form_of(query: str, *, names: bool) -> str:
    """The query with one sign for each value, and with `names=False` for each name; as it is if it does not parse.

    A column in quotes without a table counts as a value, as which SQLite reads it where no column has that name.
    """
    tree = parsed(query)
    if tree is None:
        return " ".join(query.lower().split())
    columns = [each for each in tree.find_all(exp.Column) if not each.table and each.this.args.get("quoted")]
    for value in [*tree.find_all(exp.Literal), *columns]:
        value.replace(exp.Placeholder())
    for name in tree.find_all(exp.Identifier):
        name.set("this", name.this.lower() if names else "_")
        name.set("quoted", False)
    return tree.sql()


def overlap(train: Sequence[Row], held_out: Sequence[Row]) -> list[Shared]:
    forms = {
        "databases": lambda row: row.database,
        "questions, without case and signs": lambda row: " ".join(
            "".join(letter if letter.isalnum() else " " for letter in row.question.lower()).split()
        ),
        "queries": lambda row: " ".join(row.query.lower().split()),
        "queries without values": lambda row: form_of(row.query, names=True),
        "queries without values and names": lambda row: form_of(row.query, names=False),
    }
    found = []
    for what, form in forms.items():
        learnt, held = {form(row) for row in train}, [form(row) for row in held_out]
        found.append(Shared(what, len(set(held)), len(learnt & set(held)), sum(each in learnt for each in held)))
    learnt, held = tables_of(train), tables_of(held_out)
    alike = {name for name, own in held.items() if any(len(own & other) > len(own) / 2 for other in learnt.values())}
    found.append(Shared(ALIKE, len(held), len(alike), sum(row.database in alike for row in held_out)))
    return found


ALIKE = "databases most of whose tables are a learnt one's, by name"


def tables_of(rows: Sequence[Row]) -> dict[str, set[str]]:
    """The tables of each database that its queries name."""
    found: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        if tree := parsed(row.query):
            found[row.database] |= {table.name.lower() for table in tree.find_all(exp.Table)}
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = described_parser("python -m bench.overlap", __doc__)
    parser.add_argument("train", type=Path)
    parser.add_argument("held_out", type=Path)
    args: argparse.Namespace = parser.parse_args(argv)
    train, held_out = read(args.train), read(args.held_out)
    print(f"| of {len(held_out):,} held-out questions | different | learnt too | questions with a learnt one |")
    print("| --- | ---: | ---: | ---: |")
    for each in overlap(train, held_out):
        share = f"{each.questions:,} ({each.questions / len(held_out):.1%})"
        print(f"| {each.what} | {each.held_out:,} | {each.learnt:,} | {share} |")


if __name__ == "__main__":
    main()
