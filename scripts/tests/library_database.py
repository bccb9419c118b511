"""Makes a database of eleven tables and sixty questions about it, which no example and no test of training has seen."""

import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path

SCHEMA = """
CREATE TABLE branch (id INTEGER PRIMARY KEY, name TEXT, town TEXT, opened INTEGER, floor_area REAL);
CREATE TABLE author (id INTEGER PRIMARY KEY, name TEXT, country TEXT, born INTEGER);
CREATE TABLE publisher (id INTEGER PRIMARY KEY, name TEXT, town TEXT, founded INTEGER);
CREATE TABLE book (
    id INTEGER PRIMARY KEY, title TEXT, author INTEGER REFERENCES author(id),
    publisher INTEGER REFERENCES publisher(id), year INTEGER, pages INTEGER, language TEXT
);
CREATE TABLE copy (
    id INTEGER PRIMARY KEY, book INTEGER REFERENCES book(id), branch INTEGER REFERENCES branch(id),
    shelf TEXT, price REAL, condition TEXT
);
CREATE TABLE member (
    id INTEGER PRIMARY KEY, name TEXT, town TEXT, joined TEXT, branch INTEGER REFERENCES branch(id), kind TEXT
);
CREATE TABLE loan (
    id INTEGER PRIMARY KEY, copy INTEGER REFERENCES copy(id), member INTEGER REFERENCES member(id),
    taken TEXT, due TEXT, returned TEXT
);
CREATE TABLE fine (id INTEGER PRIMARY KEY, loan INTEGER REFERENCES loan(id), amount REAL, paid INTEGER);
CREATE TABLE employee (
    id INTEGER PRIMARY KEY, name TEXT, branch INTEGER REFERENCES branch(id), role TEXT, salary REAL, hired TEXT
);
CREATE TABLE supplier (id INTEGER PRIMARY KEY, name TEXT, town TEXT, phone TEXT);
CREATE TABLE purchase (
    id INTEGER PRIMARY KEY, supplier INTEGER REFERENCES supplier(id), book INTEGER REFERENCES book(id),
    pieces INTEGER, cost REAL, day TEXT
);
"""
TOWNS = ("Arles", "Bergen", "Celle", "Delft", "Evora")
NAMES = ("Anna", "Boris", "Clara", "Dario", "Elsa", "Fritz", "Greta", "Hugo", "Irma", "Jonas", "Klara", "Luis")
TITLES = ("Tides", "Orchard", "Signals", "Granite", "Harbour", "Lantern", "Meadow", "Northward", "Paper", "Quarry")
QUESTIONS = {
    "How many members live in {town}?": "SELECT count(*) FROM member WHERE town = '{town}'",
    "Who works at the branch in {town}?": "SELECT employee.name FROM employee "
    "JOIN branch ON branch.id = employee.branch WHERE branch.town = '{town}'",
    "How many pages has {title}?": "SELECT pages FROM book WHERE title = '{title}'",
    "Who wrote {title}?": "SELECT author.name FROM author JOIN book ON book.author = author.id "
    "WHERE book.title = '{title}'",
    "How many copies of {title} are there?": "SELECT count(*) FROM copy JOIN book ON book.id = copy.book "
    "WHERE book.title = '{title}'",
    "What did {name} pay in fines?": "SELECT sum(fine.amount) FROM fine JOIN loan ON loan.id = fine.loan "
    "JOIN member ON member.id = loan.member WHERE member.name = '{name}' AND fine.paid = 1",
    "When did {name} join?": "SELECT joined FROM member WHERE name = '{name}'",
    "Which publishers are in {town}?": "SELECT name FROM publisher WHERE town = '{town}'",
}


def make(folder: Path) -> tuple[Path, Path]:
    """Write the database and its questions, in Spider's form, and return their files."""
    rng = random.Random(5)
    folder.mkdir(parents=True, exist_ok=True)
    file, questions = folder / "library.sqlite", folder / "questions.json"

    def day() -> str:
        return f"202{rng.randrange(5)}-0{rng.randrange(1, 10)}-1{rng.randrange(10)}"

    rows = {
        "branch": [(i, f"{town} House", town, 1950 + i, 400.0 + i) for i, town in enumerate(TOWNS)],
        "author": [(i, f"{name} Wren", TOWNS[i % 5], 1900 + 7 * i) for i, name in enumerate(NAMES)],
        "publisher": [(i, f"{title} Press", TOWNS[i % 5], 1880 + 9 * i) for i, title in enumerate(TITLES)],
        "book": [(i, t, i % 12, i % 10, 1960 + 5 * i, 90 + 31 * i, "en") for i, t in enumerate(TITLES)],
        "copy": [(i, i % 10, i % 5, f"S{i % 9}", 9.5 + i, "good") for i in range(60)],
        "member": [(i, name, TOWNS[i % 5], day(), i % 5, "adult") for i, name in enumerate(NAMES)],
        "loan": [(i, rng.randrange(60), i % 12, day(), day(), day()) for i in range(120)],
        "fine": [(i, i, float(rng.randrange(1, 20)), int(i % 3 > 0)) for i in range(60)],
        "employee": [(i, f"{name} Holm", i % 5, "clerk", 2000.0 + 50 * i, day()) for i, name in enumerate(NAMES)],
        "supplier": [(i, f"{town} Books", town, f"0{i}42") for i, town in enumerate(TOWNS)],
        "purchase": [(i, i % 5, i % 10, 1 + i % 7, 10.0 * i, day()) for i in range(40)],
    }
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(SCHEMA)
        for table, values in rows.items():
            connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values[0]))})", values)
        connection.commit()
    asked = {}
    for words, query in QUESTIONS.items():
        for town, title, name in zip(TOWNS * 2, TITLES, NAMES, strict=False):
            filled = {key: text.format(town=town, title=title, name=name) for key, text in (("q", words), ("s", query))}
            asked[filled["q"]] = filled["s"]
    chosen = rng.sample(sorted(asked), 60)
    questions.write_text(json.dumps([{"db_id": "library", "question": q, "query": asked[q]} for q in chosen], indent=1))
    return file, questions
