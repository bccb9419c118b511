"""Makes a small database and questions about it, as you would bring your own: shop.sqlite, train.json and test.json."""

import argparse
import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path

SCHEMA = """
CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT, town TEXT);
CREATE TABLE product (id INTEGER PRIMARY KEY, name TEXT, price REAL);
CREATE TABLE sale (
    customer INTEGER REFERENCES customer(id), product INTEGER REFERENCES product(id), day TEXT, pieces INTEGER
);
"""
TOWNS = ("Ulm", "Graz", "Lyon", "Porto", "Turku", "Gent")
PRODUCTS = ("lamp", "chair", "kettle", "tent", "rope", "drum", "clock", "spade")
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ida", "Jan", "Kim", "Leo")
QUESTIONS = {
    "How many customers live in {town}?": "SELECT count(*) FROM customer WHERE town = '{town}'",
    "Which customers live in {town}?": "SELECT name FROM customer WHERE town = '{town}'",
    "What does a {product} cost?": "SELECT price FROM product WHERE name = '{product}'",
    "Which products cost more than a {product}?": "SELECT name FROM product WHERE price > "
    "(SELECT price FROM product WHERE name = '{product}')",
    "How many pieces of {product} were sold?": "SELECT sum(pieces) FROM sale JOIN product ON product.id = sale.product "
    "WHERE product.name = '{product}'",
    "Which products did {name} buy?": "SELECT DISTINCT product.name FROM sale "
    "JOIN product ON product.id = sale.product JOIN customer ON customer.id = sale.customer "
    "WHERE customer.name = '{name}'",
    "Who has bought a {product}, from A to Z?": "SELECT DISTINCT customer.name FROM sale "
    "JOIN customer ON customer.id = sale.customer JOIN product ON product.id = sale.product "
    "WHERE product.name = '{product}' ORDER BY customer.name",
    "How many sales were there in {town} each day?": "SELECT day, count(*) FROM sale "
    "JOIN customer ON customer.id = sale.customer WHERE town = '{town}' GROUP BY day",
}


def make(folder: Path) -> None:
    rng = random.Random(1)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "shop.sqlite"
    file.unlink(missing_ok=True)
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(SCHEMA)
        customers = [(i, name, TOWNS[i % len(TOWNS)]) for i, name in enumerate(NAMES)]
        products = [(i, name, rng.randrange(300, 9_000) / 100) for i, name in enumerate(PRODUCTS)]
        sales = [
            (rng.randrange(len(NAMES)), rng.randrange(len(PRODUCTS)), f"2024-05-0{rng.randrange(1, 8)}", pieces)
            for pieces in (1, 2, 3, 4) * 20
        ]
        connection.executemany("INSERT INTO customer VALUES (?, ?, ?)", customers)
        connection.executemany("INSERT INTO product VALUES (?, ?, ?)", products)
        connection.executemany("INSERT INTO sale VALUES (?, ?, ?, ?)", sales)
        connection.commit()
    rows = []
    for asked, query in QUESTIONS.items():
        for town, product, name in zip(TOWNS * 2, PRODUCTS * 2, NAMES, strict=False):
            row = {"db_id": "shop", "question": asked, "query": query}
            filled = {key: text.format(town=town, product=product, name=name) for key, text in row.items()}
            rows += [] if filled in rows else [filled]
    rng.shuffle(rows)
    cut = len(rows) * 4 // 5
    for part, some in (("train", rows[:cut]), ("test", rows[cut:])):
        (folder / f"{part}.json").write_text(json.dumps(some, indent=1) + "\n")
    print(f"{file}: {len(customers)} customers, {len(products)} products, {len(sales)} sales")
    print(f"{folder}/train.json: {cut} questions, {folder}/test.json: {len(rows) - cut}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("data/shop"), help="default data/shop")
    make(parser.parse_args().folder)
