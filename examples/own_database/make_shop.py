"""Makes a small database and questions about it, as you would bring your own.

shop.sqlite is the database. train.json and test.json have questions with the query that answers each. log.json has
queries that people once typed: a look-up is mostly SELECT *, which shows the answer among other columns.
"""

import argparse
import json
import random
import re
import sqlite3
from contextlib import closing
from pathlib import Path

SCHEMA = """
CREATE TABLE customer (customer_id INTEGER PRIMARY KEY, name TEXT, town TEXT, age INTEGER);
CREATE TABLE product (product_id INTEGER PRIMARY KEY, name TEXT, kind TEXT, price REAL, stock INTEGER);
CREATE TABLE sale (
    customer_id INTEGER REFERENCES customer(customer_id), product_id INTEGER REFERENCES product(product_id),
    month INTEGER, pieces INTEGER
);
"""
WORDS = {
    "town": "Ulm Graz Lyon Porto Turku Gent Bari Brno Cork Delft Essen Faro",
    "kind": "toy tool book lamp",
    "product": "rope drum clock spade kettle tent kite saw atlas novel torch globe vase chair bench mug bowl fan",
    "name": "Ada Ben Cleo Dan Eve Finn Gus Hana Ida Jan Kim Leo Mia Nils Olga Paul Rosa Sven Tara Uwe Vera Will Yara "
    "Zoe Abel Bea Carl Dora Emil Fay Glen Hugo Ines Jack Kai Lena Max Nora Otto Pia",
}
VALUES = {
    **{name: words.split() for name, words in WORDS.items()},
    "month": range(1, 13),
    "age": range(20, 70),
    "number": range(5, 95),
}
QUESTIONS = {
    "SELECT price FROM product WHERE name = '{product}'": [
        "What does the {product} cost?",
        "What is the price of the {product}?",
        "How much do you pay for the {product}?",
    ],
    "SELECT stock FROM product WHERE name = '{product}'": [
        "How many of the {product} are in stock?", "What stock is left of the {product}?",
    ],
    "SELECT town FROM customer WHERE name = '{name}'": [
        "Where does {name} live?", "In which town does {name} live?", "What is the home town of {name}?",
    ],
    "SELECT age FROM customer WHERE name = '{name}'": ["How old is {name}?", "What is the age of {name}?"],
    "SELECT count(*) FROM customer WHERE age < {age}": [
        "How many customers are younger than {age}?", "How many people under {age} are customers?",
    ],
    "SELECT name FROM product WHERE kind = '{kind}' AND price < {number}": [
        "Which products of kind {kind} cost less than {number} euros?",
        "What {kind} can I get for under {number} euros?",
    ],
    "SELECT count(*) FROM product WHERE stock > {number}": [
        "Of how many products are there more than {number} in stock?", "How many products have a stock above {number}?",
    ],
    "SELECT name FROM product WHERE price > (SELECT price FROM product WHERE name = '{product}')": [
        "Which products cost more than the {product}?", "What is dearer than the {product}?",
    ],
    "SELECT avg(age) FROM customer WHERE town = '{town}'": [
        "What is the average age of the customers in {town}?", "How old are people from {town} on average?",
    ],
    "SELECT sum(pieces) FROM sale JOIN product USING (product_id) WHERE name = '{product}' AND month = {month}": [
        "How many pieces of the {product} were sold in month {month}?",
        "What number of the {product} sold in month {month}?",
    ],
    "SELECT count(*) FROM sale JOIN customer USING (customer_id) WHERE town = '{town}' AND month = {month}": [
        "How many sales went to {town} in month {month}?", "How often did people from {town} buy in month {month}?",
    ],
    "SELECT sum(price * pieces) FROM sale JOIN product USING (product_id) JOIN customer USING (customer_id) "
    "WHERE customer.name = '{name}'": [
        "How much money did {name} spend?", "What did {name} pay in all?", "How much has {name} paid us?",
    ],
}  # fmt: skip
"""References, simple ones first, each with several ways to ask for it."""
STAR_SHARE = 0.7
"""Share of the look-ups in the log that select every column."""


def make(folder: Path) -> None:
    rng = random.Random(1)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "shop.sqlite"
    file.unlink(missing_ok=True)
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(SCHEMA)
        rows = {
            "customer": [(i, name, rng.choice(VALUES["town"]), rng.randrange(18, 80)) for i, name in numbered("name")],
            "product": [
                (i, name, rng.choice(VALUES["kind"]), rng.randrange(300, 9_900) / 100, rng.randrange(100))
                for i, name in numbered("product")
            ],
            "sale": [
                (rng.randint(1, 40), rng.randint(1, 18), rng.randint(1, 12), rng.randint(1, 5)) for _ in range(800)
            ],
        }
        for table, some in rows.items():
            connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(some[0]))})", some)
        connection.commit()
        asked = [row for template in QUESTIONS for row in ask(template, connection, rng)]
    rng.shuffle(asked)
    parts = {"test": asked[:120], "log": [as_typed(row, rng) for row in asked[120:216]], "train": asked[216:]}
    for part, some in parts.items():
        (folder / f"{part}.json").write_text(json.dumps(some, indent=1) + "\n")
    print(f"{file}: {', '.join(f'{len(some)} rows of {table}' for table, some in rows.items())}")
    print("".join(f"{folder}/{part}.json: {len(some)} questions\n" for part, some in parts.items()), end="")


def numbered(values: str) -> enumerate:
    return enumerate(VALUES[values], start=1)


def as_typed(row: dict[str, str], rng: random.Random) -> dict[str, str]:
    looks_up = re.match(r"SELECT \w+ FROM", row["query"])
    if not looks_up or rng.random() >= STAR_SHARE:
        return row
    return row | {"query": row["query"].replace(looks_up[0], "SELECT * FROM", 1)}


def ask(template: str, connection: sqlite3.Connection, rng: random.Random) -> list[dict[str, str]]:
    """Return up to 40 questions with different references; the answer of each is neither empty nor zero."""
    found = {}
    for _ in range(600):
        values = {name: rng.choice(some) for name, some in VALUES.items()}
        query = template.format(**values)
        if len(found) < 40 and any(cell for row in connection.execute(query) for cell in row):
            found.setdefault(query, rng.choice(QUESTIONS[template]).format(**values))
    return [{"db_id": "shop", "question": question, "query": query} for query, question in found.items()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("data/shop"), help="default data/shop")
    make(parser.parse_args().folder)
