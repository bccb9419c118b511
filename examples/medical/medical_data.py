"""Make a medical database of invented entries: `agentgrpo tasks medical --output medical.db --questions DIR`.

Nothing in it is medical advice: every drug, disease and company is invented, in English and Chinese. Questions go to
DIR/train.jsonl and DIR/held_out.jsonl, over different entries. --pairs adds preference pairs for a scorer over the same
two halves. With --database both are about a database of your own. See doc/project/predecessors.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agentgrpo.flags import Parser
from agentgrpo.outputs import OutputError, check_output, written

# The two tables, each with the column that has an entry's name.
NAMES = {"drugs_info": "med_name", "disease": "disease_name"}
WORDS = yaml.safe_load(Path(__file__).with_name("words.yaml").read_text("utf-8"))
# The share of the entries, and of the questions, that is held out.
HELD_OUT = 0.2
CALL = "call00001"
_SLOT = re.compile(r"\{(\w+)(?:-(\d+))?\}")


# The database ---------------------------------------------------------------------------------------------------------


def make_database(path: Path, *, n_drugs: int = 200, n_diseases: int = 120, seed: int = 0) -> None:
    """The same seed gives the same rows, alternately English and Chinese; an existing file is replaced."""
    with written(path) as unfinished, closing(sqlite3.connect(unfinished)) as connection:
        connection.execute("CREATE TABLE notice (text TEXT NOT NULL)")
        connection.executemany("INSERT INTO notice VALUES (?)", [(text,) for text in WORDS["notice"]])
        for table, count in (("drugs_info", n_drugs), ("disease", n_diseases)):
            columns = [NAMES[table], *WORDS["en"]["fields"][table]]
            connection.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, {' TEXT, '.join(columns)} TEXT)")
            rows = _invented(table, count, random.Random(f"{seed}/{table}"))
            connection.executemany(f"INSERT INTO {table} VALUES (?, ?{', ?' * (len(columns) - 1)})", rows)
        connection.commit()


def _invented(table: str, count: int, draw: random.Random) -> Iterator[tuple[int | str, ...]]:
    used: set[str] = set()
    for number in range(1, count + 1):
        words = WORDS[("en", "zh")[number % 2]]
        name = _filled(draw.choice(words["names"][table]), words, draw)
        name = f"{name} {number}" if name in used else name
        used.add(name)
        yield number, name, *(_filled(template, words, draw) for template in words["fields"][table].values())


def _filled(template: str, words: dict[str, Any], draw: random.Random) -> str:
    # A slot that occurs twice gets two different words.
    used: set[str] = set()

    def fill(slot: re.Match[str]) -> str:
        if slot[2] is not None:
            return str(draw.randint(int(slot[1]), int(slot[2])))
        word = draw.choice([word for word in words["words"][slot[1]] if word not in used])
        used.add(word)
        return word

    text = _SLOT.sub(fill, template)
    return text[0].upper() + text[1:]


# Questions, each about one field of one entry -------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    table: str
    id: int | str
    name: str
    fields: dict[str, str]
    """The texts by their column, without the empty ones."""

    @property
    def language(self) -> str:
        return "zh" if any("\u4e00" <= char <= "\u9fff" for char in self.name) else "en"

    def words(self, column: str) -> dict[str, str]:
        return {"name": self.name, "label": WORDS[self.language]["labels"].get(column, column.replace("_", " "))}


def read_entries(path: Path) -> list[Entry]:
    """Entries with a name that no other entry of their table has, since a question names nothing else of them.

    Raises:
        OutputError: the file has neither of the two tables.
    """
    found: list[Entry] = []
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        there = {row[0].lower() for row in connection.execute("SELECT name FROM sqlite_master")}
        for table in NAMES.keys() & there:
            rows = connection.execute(f"SELECT * FROM {table} ORDER BY id").fetchall()
            names = Counter(row[NAMES[table]] for row in rows)
            found += [_entry(table, row) for row in rows if row[NAMES[table]] and names[row[NAMES[table]]] == 1]
    if not found:
        raise OutputError(f"{path} has no entry in {' or '.join(NAMES)}; see doc/project/predecessors.md")
    return sorted(found, key=lambda entry: (entry.table, str(entry.id)))


def _entry(table: str, row: sqlite3.Row) -> Entry:
    texts = {column: text for column, text in dict(row).items() if column.lower() not in ("id", NAMES[table])}
    filled = {column: text for column, text in texts.items() if isinstance(text, str) and text.strip()}
    return Entry(table, row["id"], str(row[NAMES[table]]), filled)


def make_questions(
    path: Path, count: int, *, held_out: bool, held_out_fraction: float = HELD_OUT, seed: int = 0
) -> list[dict[str, Any]]:
    """Every entry gets its first question before any gets its second.

    Returns:
        The rows of a task file; fewer than `count` if the entries of that half have fewer fields with text.
    """
    draw = random.Random(f"{seed}/{held_out}")
    entries = [entry for entry in read_entries(path) if _is_held_out(entry, held_out_fraction) == held_out]
    draw.shuffle(entries)
    orders = [(entry, draw.sample(sorted(entry.fields), len(entry.fields))) for entry in entries]
    most = max((len(columns) for _, columns in orders), default=0)
    fields = [(entry, columns[k]) for k in range(most) for entry, columns in orders if k < len(columns)]
    return [_question(path, entry, column, draw) for entry, column in fields[:count]]


def _is_held_out(entry: Entry, fraction: float) -> bool:
    # The entry alone decides, so that every command holds out the same ones.
    digest = hashlib.sha256(f"{entry.table}/{entry.id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def _question(path: Path, entry: Entry, column: str, draw: random.Random) -> dict[str, Any]:
    # `table` to `answer` are for people and for preference pairs; no prompt and no reward has them.
    return {
        "id": f"{entry.table}-{entry.id}-{column}",
        "kind": entry.table,
        "question": draw.choice(WORDS[entry.language]["ask"]).format(**entry.words(column)),
        "database": str(path.resolve()),
        "row_id": entry.id,
        "column": column,
        "answer": entry.fields[column],
    }


# Preference pairs -----------------------------------------------------------------------------------------------------


def make_pairs(path: Path, questions: Sequence[dict[str, Any]], *, seed: int = 0) -> list[dict[str, Any]]:
    """Pairs in TRL's form: one call of the tool, its real result and an answer on either side.

    The better side reads the right field and says it. The worse one reads another entry (`wrong_row`) or another field
    (`wrong_field`) and says that, or reads rightly and declines to answer (`refusal`). In each of these kinds the
    better side is the longer one in half of the pairs, so that length does not show which one is better.
    """
    from medical import Medical  # it imports this module

    draw, environment = random.Random(f"{seed}/pairs"), Medical()
    entries = {(entry.table, entry.id): entry for entry in read_entries(path)}
    pairs: list[dict[str, Any]] = []
    for question in questions:
        entry, column = entries[question["kind"], question["row_id"]], question["column"]
        environment.reset(**question)
        prompt, chosen = (
            Medical.prompt(question),
            _side(environment, entry, column, _answer(entry, column, entry, column)),
        )
        for kind, looked_at, at, answer in _worse(entry, column, list(entries.values()), draw):
            rejected = _side(environment, looked_at, at, answer)
            metadata = {"task_id": question["id"], "kind": kind, "language": entry.language}
            pairs.append({"prompt": prompt, "chosen": chosen, "rejected": rejected, "metadata": metadata})
        environment.close()
    return _even(pairs, draw)


def _worse(
    entry: Entry, column: str, entries: Sequence[Entry], draw: random.Random
) -> Iterator[tuple[str, Entry, str, str]]:
    """What the worse side of each kind looks at, and says."""
    yield "refusal", entry, column, draw.choice(WORDS[entry.language]["refusals"]).format(**entry.words(column))
    peers = [other for other in entries if (other.table, other.language) == (entry.table, entry.language)]
    elsewhere = {
        "wrong_row": [(other, column) for other in peers if column in other.fields],
        "wrong_field": [(entry, at) for at in entry.fields],
    }
    for kind, places in elsewhere.items():
        if wrong := [(other, at) for other, at in places if other.fields[at] != entry.fields[column]]:
            other, at = draw.choice(wrong)
            yield kind, other, at, _answer(entry, column, other, at)


def _answer(asked: Entry, column: str, looked_at: Entry, at: str) -> str:
    return WORDS[asked.language]["answer"].format(**asked.words(column), value=looked_at.fields[at])


def _side(environment: Any, entry: Entry, column: str, answer: str) -> list[dict[str, Any]]:
    name = entry.name.replace("'", "''")
    sql = f"SELECT {column} FROM {entry.table} WHERE {NAMES[entry.table]} = '{name}'"
    # spelt as `agentgrpo reward convert` spells calls, so that a scorer reads them as it does those of rollouts
    function = {"name": "query_database_by_sql", "arguments": {"sql": sql}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [{"id": CALL, "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": CALL, "content": environment.query_database_by_sql(sql)},
        {"role": "assistant", "content": answer},
    ]


def longer(pair: dict[str, Any]) -> int:
    """Characters by which the better side is longer; negative if it is shorter."""
    return len(json.dumps(pair["chosen"], ensure_ascii=False)) - len(json.dumps(pair["rejected"], ensure_ascii=False))


def _even(pairs: Sequence[dict[str, Any]], draw: random.Random) -> list[dict[str, Any]]:
    left: list[dict[str, Any]] = []
    for kind in ("wrong_row", "wrong_field", "refusal"):
        of_kind = [pair for pair in pairs if pair["metadata"]["kind"] == kind]
        sides = [pair for pair in of_kind if longer(pair) > 0], [pair for pair in of_kind if longer(pair) < 0]
        left += [pair for side in sides for pair in draw.sample(side, min(map(len, sides)))]
    draw.shuffle(left)
    return left


# The command ----------------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="agentgrpo tasks medical", description=(__doc__ or "").partition("\n")[0])
    database = parser.add_mutually_exclusive_group(required=True)
    database.add_argument("--output", type=Path, help="the SQLite file to write, with invented entries")
    database.add_argument("--database", type=Path, help="a SQLite file of your own, in its place")
    parser.add_argument("--questions", type=Path, metavar="DIR", help="write train.jsonl and held_out.jsonl there")
    parser.add_argument(
        "--pairs", type=Path, metavar="FILE", help="preference pairs; X.jsonl, the held-out half in X.held_out.jsonl"
    )
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same files; default 0")
    parser.add_argument("--n-questions", type=int, default=500, help="both files together; default 500")
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist")
    args = parser.parse_args(argv)
    try:
        for path, flag in _outputs(args):
            check_output(path, flag, overwrite=args.overwrite)
        _write(args)
    except OutputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _halves(file: Path) -> dict[str, Path]:
    return {"train": file, "held_out": file.with_name(f"{file.stem}.held_out{file.suffix}")}


def _outputs(args: argparse.Namespace) -> Iterator[tuple[Path, str]]:
    if args.output is not None:
        yield args.output, "--output"
    if args.questions is not None:
        yield from ((args.questions / f"{half}.jsonl", "--questions") for half in ("train", "held_out"))
    if args.pairs is not None:
        yield from ((file, "--pairs") for file in _halves(args.pairs).values())


def _write(args: argparse.Namespace) -> None:
    if args.output is not None:
        make_database(args.output, seed=args.seed)
        print(f"a database of invented drugs and diseases: {args.output}")
    path, held_out = args.output or args.database, round(args.n_questions * HELD_OUT)
    for half, count in {"train": args.n_questions - held_out, "held_out": held_out}.items():
        questions = make_questions(path, count, held_out=half == "held_out", seed=args.seed)
        if args.questions is not None:
            short = f" of {count} asked for; more entries give more" if len(questions) < count else ""
            _write_rows(questions, args.questions / f"{half}.jsonl", f"questions{short}")
        if args.pairs is not None:
            pairs = make_pairs(path, questions, seed=args.seed)
            kinds = Counter(pair["metadata"]["kind"] for pair in pairs)
            _write_rows(pairs, _halves(args.pairs)[half], f"pairs ({', '.join(f'{k} {n}' for k, n in kinds.items())})")


def _write_rows(rows: Sequence[dict[str, Any]], path: Path, words: str) -> None:
    with written(path) as unfinished:
        unfinished.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    print(f"{len(rows)} {words}: {path}")


if __name__ == "__main__":
    sys.exit(main())
