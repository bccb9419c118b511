"""The words of `words.yaml`, and a medical database of entries that are invented of them; the same seed gives the same
rows.
"""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import yaml

from agentgrpo.outputs import written
from sql_agent.medical.datatypes import TABLES, Language

_SAID = yaml.load(Path(__file__).with_suffix(".yaml").read_text("utf-8"), yaml.CSafeLoader)
NOTICE: tuple[str, ...] = tuple(_SAID["notice"])
NAMES: Mapping[Language, Mapping[str, Sequence[str]]] = _SAID["names"]
WORDS: Mapping[Language, Mapping[str, Sequence[str]]] = _SAID["words"]
FIELDS: Mapping[Language, Mapping[str, str]] = _SAID["fields"]
LABELS: Mapping[Language, Mapping[str, str]] = _SAID["labels"]
ASK: Mapping[Language, Sequence[str]] = _SAID["ask"]
ANSWER: Mapping[Language, str] = _SAID["answer"]
REFUSALS: Mapping[Language, Sequence[str]] = _SAID["refusals"]


LANGUAGES: tuple[Language, Language] = ("en", "zh")
_SLOT = re.compile(r"\{(\w+)(?:-(\d+))?\}")


def make_database(path: Path, *, n_drugs: int = 200, n_diseases: int = 120, seed: int = 0) -> None:
    """An existing file is replaced, atomically.

    Args:
        n_drugs, n_diseases: rows of `drugs_info` and `disease`, alternately English and Chinese.
    """
    with written(path) as unfinished, closing(sqlite3.connect(unfinished)) as connection:
        connection.execute("CREATE TABLE notice (text TEXT NOT NULL)")
        connection.executemany("INSERT INTO notice VALUES (?)", [(text,) for text in NOTICE])
        for table, count in (("drugs_info", n_drugs), ("disease", n_diseases)):
            columns = (TABLES[table].name_column, *TABLES[table].columns)
            declared = ", ".join(f"{column} TEXT" for column in columns)
            connection.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, {declared})")
            marks = ", ".join("?" for _ in ("id", *columns))
            rows = entries(table, count, random.Random(f"{seed}/{table}"))
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        connection.commit()


def entries(table: str, count: int, draw: random.Random) -> Iterator[tuple[int | str, ...]]:
    used: set[str] = set()
    for number in range(1, count + 1):
        language = LANGUAGES[number % 2]
        name = _fresh(language, table, used, draw)
        yield number, name, *(filled(FIELDS[language][c], language, draw) for c in TABLES[table].columns)


def _fresh(language: Language, table: str, used: set[str], draw: random.Random) -> str:
    for attempt in range(1_000_000):
        name = filled(draw.choice(NAMES[language][table]), language, draw)
        if attempt >= 20:  # unused names without a number become rare
            name += f" {draw.randrange(2, 10 ** (1 + attempt // 20))}"
        if name not in used:
            used.add(name)
            return name
    raise AssertionError("unreachable: numbers grow until one is free")


def filled(template: str, language: Language, draw: random.Random) -> str:
    # A slot that occurs twice gets two different words.
    used: set[str] = set()

    def fill(slot: re.Match[str]) -> str:
        if slot[2] is not None:
            return str(draw.randint(int(slot[1]), int(slot[2])))
        word = draw.choice([word for word in WORDS[language][slot[1]] if word not in used])
        used.add(word)
        return word

    text = _SLOT.sub(fill, template)
    return text[0].upper() + text[1:]
