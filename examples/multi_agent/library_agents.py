"""Defines a triage agent and an analyst who answer questions about a library. Imports nothing of this project.

The triage agent has the analyst as a tool: it asks in its own words, reads the answer, and replies. Questions that the
database cannot answer it has to recognise by itself. Each of the two sees a conversation of its own, and the policy
plays both. The database is a SQLite file, which this file makes when it is imported and which all rollouts share.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from agents import Agent, function_tool

DATABASE = Path(__file__).resolve().parents[2] / "data" / "library.sqlite"
TABLES = """
CREATE TABLE books (id INTEGER PRIMARY KEY, title TEXT, author TEXT, year INTEGER);
CREATE TABLE members (id INTEGER PRIMARY KEY, name TEXT, town TEXT);
CREATE TABLE loans (book INTEGER REFERENCES books(id), member INTEGER REFERENCES members(id), days INTEGER);
INSERT INTO books VALUES (1, 'Salt Roads', 'Imre', 1987), (2, 'The Long Pier', 'Odile', 2003),
    (3, 'Nine Lamps', 'Imre', 1994), (4, 'A Winter Map', 'Tomas', 2011), (5, 'Glass Orchard', 'Odile', 1999);
INSERT INTO members VALUES (1, 'Ada', 'Ulm'), (2, 'Ben', 'Graz'), (3, 'Cleo', 'Ulm'), (4, 'Dan', 'Lyon');
INSERT INTO loans VALUES (1, 1, 14), (3, 1, 7), (2, 2, 21), (4, 3, 30), (5, 3, 3), (3, 2, 12), (1, 4, 9);
"""
MAY = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}
MOST_STEPS, MOST_BYTES, MOST_ROWS, MOST_CHARS = 1_000_000, 100_000, 50, 800
UNKNOWN = "unknown"


def make_database(file: Path) -> None:
    """Write the file whole or not at all, because several commands may start at once."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}")
    with closing(sqlite3.connect(unfinished)) as db:
        db.executescript(TABLES)
    unfinished.replace(file)


if not DATABASE.exists():
    make_database(DATABASE)


@function_tool
def execute_sql(query: str) -> str:
    """Run one SQL statement on the library's database and return its rows.

    Args:
        query: The SQL statement.
    """
    with closing(sqlite3.connect(f"{DATABASE.as_uri()}?mode=ro", uri=True)) as db:
        # A policy writes any SQL. It may read, but not attach files, run forever or fill the memory.
        db.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in MAY else sqlite3.SQLITE_DENY)
        db.set_progress_handler(lambda: 1, MOST_STEPS)
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
        return str(db.execute(query).fetchmany(MOST_ROWS))[:MOST_CHARS]  # the policy reads SQLite's errors


analyst = Agent(
    name="analyst",
    instructions="Answer with the value alone. Read it with execute_sql. The tables are books (id, title, author, "
    "year), members (id, name, town) and loans (book, member, days).",
    tools=[execute_sql],
)
triage = Agent(
    name="triage",
    instructions="You answer questions about a library. Its database knows books, members and loans: ask the analyst, "
    f"and reply with the value alone. To any other question reply {UNKNOWN}.",
    tools=[analyst.as_tool("ask_analyst", "Ask the analyst one question about books, members or loans.")],
)


def reward(record) -> float:
    """Return 1 for the right reply, and a tenth for a wrong one for which the database was read."""
    if record.output is None:  # a call of a tool that the agent does not have ends so, whatever its name
        return 0.0
    if str(record.output).strip() == record.task["row"]["answer"]:
        return 1.0
    return 0.1 if any(name == "execute_sql" for name, _ in record.calls) else 0.0
