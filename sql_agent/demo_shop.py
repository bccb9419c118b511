"""Make a shop's database, and 60 questions that a person asked of it.

`python -m sql_agent.demo_shop FOLDER` writes shop.db and questions.json there: the eleven tables that everybody knows,
for `agentgrpo demo`. With --large there are 26 tables and 6 views, of which most have nothing to do with a question and
two are idle, under the names that a shop's programmers give: a stranger's schema.
"""

import argparse
import json
import random
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path

from agentgrpo.flags import described_parser

SCHEMA = """
CREATE TABLE categories (id INTEGER PRIMARY KEY, name TEXT NOT NULL, parent_id INTEGER REFERENCES categories);
CREATE TABLE suppliers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, country TEXT, rating REAL, contact_email TEXT);
CREATE TABLE products (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, category_id INTEGER REFERENCES categories,
    supplier_id INTEGER REFERENCES suppliers, price REAL, weight_g INTEGER, launched_on TEXT, discontinued INTEGER,
    photo BLOB);
CREATE TABLE customers (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT, city TEXT, country TEXT, joined_on TEXT,
    newsletter INTEGER);
CREATE TABLE stores (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT, opened_on TEXT, area_m2 INTEGER);
CREATE TABLE employees (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, store_id INTEGER REFERENCES stores, job_title TEXT, hired_on TEXT,
    salary INTEGER, manager_id INTEGER REFERENCES employees);
CREATE TABLE shipping_methods (id INTEGER PRIMARY KEY, name TEXT NOT NULL, days INTEGER, fee REAL);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY, customer_id INTEGER REFERENCES customers, store_id INTEGER REFERENCES stores,
    employee_id INTEGER REFERENCES employees, shipping_method_id INTEGER REFERENCES shipping_methods, ordered_on TEXT,
    status TEXT);
CREATE TABLE order_items (
    order_id INTEGER REFERENCES orders, product_id INTEGER REFERENCES products, quantity INTEGER, unit_price REAL,
    discount REAL, PRIMARY KEY (order_id, product_id));
CREATE TABLE payments (
    id INTEGER PRIMARY KEY, order_id INTEGER REFERENCES orders, paid_on TEXT, method TEXT, amount REAL);
CREATE TABLE carriers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, phone TEXT);
CREATE TABLE shipments (
    id INTEGER PRIMARY KEY, order_id INTEGER REFERENCES orders, carrier_id INTEGER REFERENCES carriers,
    shipped_on TEXT, delivered_on TEXT);
CREATE TABLE warehouses (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT, capacity INTEGER);
CREATE TABLE stock (
    warehouse_id INTEGER REFERENCES warehouses, product_id INTEGER REFERENCES products, quantity INTEGER,
    reorder_level INTEGER, PRIMARY KEY (warehouse_id, product_id));
CREATE TABLE reviews (
    id INTEGER PRIMARY KEY, product_id INTEGER REFERENCES products, customer_id INTEGER REFERENCES customers,
    stars INTEGER, written_on TEXT, title TEXT);
CREATE TABLE returns (
    id INTEGER PRIMARY KEY, order_id INTEGER REFERENCES orders, product_id INTEGER REFERENCES products,
    returned_on TEXT, reason TEXT, refund REAL);
CREATE TABLE coupons (id INTEGER PRIMARY KEY, code TEXT NOT NULL, percent INTEGER, valid_from TEXT, valid_until TEXT);
CREATE TABLE coupon_uses (
    coupon_id INTEGER REFERENCES coupons, order_id INTEGER REFERENCES orders, PRIMARY KEY (coupon_id, order_id));
CREATE TABLE purchase_orders (
    id INTEGER PRIMARY KEY, supplier_id INTEGER REFERENCES suppliers, warehouse_id INTEGER REFERENCES warehouses,
    ordered_on TEXT, received_on TEXT);
CREATE TABLE purchase_items (
    purchase_order_id INTEGER REFERENCES purchase_orders, product_id INTEGER REFERENCES products, quantity INTEGER,
    unit_cost REAL, PRIMARY KEY (purchase_order_id, product_id));
CREATE TABLE price_changes (
    id INTEGER PRIMARY KEY, product_id INTEGER REFERENCES products, changed_on TEXT, old_price REAL, new_price REAL);
CREATE TABLE campaigns (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, channel TEXT, started_on TEXT, ended_on TEXT, budget INTEGER);
CREATE TABLE support_tickets (
    id INTEGER PRIMARY KEY, customer_id INTEGER REFERENCES customers, opened_on TEXT, closed_on TEXT, topic TEXT,
    priority TEXT);
CREATE TABLE ticket_messages (
    id INTEGER PRIMARY KEY, ticket_id INTEGER REFERENCES support_tickets, sent_on TEXT, author TEXT, text TEXT);
CREATE TABLE audit_log (
    id INTEGER PRIMARY KEY, happened_at TEXT, actor TEXT, action TEXT, table_name TEXT, row_id INTEGER, payload BLOB);
CREATE TABLE old_imports (id INTEGER PRIMARY KEY, file_name TEXT, imported_at TEXT, line_count INTEGER);
CREATE VIEW order_totals AS
    SELECT order_id, sum(quantity * unit_price * (1 - discount)) AS total FROM order_items GROUP BY order_id;
CREATE VIEW monthly_sales AS
    SELECT substr(ordered_on, 1, 7) AS month, count(*) AS orders, sum(total) AS revenue
    FROM orders JOIN order_totals ON order_id = orders.id GROUP BY 1;
CREATE VIEW product_ratings AS
    SELECT product_id, avg(stars) AS mean_stars, count(*) AS reviews FROM reviews GROUP BY product_id;
CREATE VIEW open_tickets AS SELECT * FROM support_tickets WHERE closed_on IS NULL;
CREATE VIEW low_stock AS SELECT * FROM stock WHERE quantity < reorder_level;
CREATE VIEW customer_spending AS
    SELECT customer_id, sum(total) AS spent FROM orders JOIN order_totals ON order_id = orders.id GROUP BY customer_id;
"""

TOWNS = {
    "Hamburg": "Germany",
    "Munich": "Germany",
    "Vienna": "Austria",
    "Graz": "Austria",
    "Lyon": "France",
    "Paris": "France",
    "Turin": "Italy",
    "Milan": "Italy",
    "Ghent": "Belgium",
    "Zurich": "Switzerland",
}
FIRST = "Anna Ben Clara David Emma Felix Greta Hugo Ida Jonas Klara Leon Mia Noah Olga Paul Rosa Simon Tina Vera"
LAST = "Bauer Conti Dubois Fischer Gruber Huber Keller Lang Moreau Novak Peeters Rossi Schmid Weber Winter"
CATEGORIES = ["Kitchen", "Garden", "Books", "Toys", "Lighting", "Office", "Sports", "Textiles"]
THINGS = ["Lamp", "Kettle", "Mug", "Chair", "Puzzle", "Notebook", "Blanket", "Spade", "Ball", "Clock", "Basket", "Pan"]
KINDS = ["Oak", "Steel", "Linen", "Blue", "Large", "Mini", "Classic", "Folding", "Copper", "Velvet"]

SMALL = {
    "categories", "suppliers", "products", "customers", "stores", "employees", "shipping_methods", "orders",
    "order_items", "reviews", "returns",
}  # fmt: skip

QUESTIONS = [
    ("How many customers do we have?", "SELECT count(*) FROM customers"),
    ("How many products are discontinued?", "SELECT count(*) FROM products WHERE discontinued = 1"),
    ("Which customers live in Vienna?", "SELECT name FROM customers WHERE city = 'Vienna'"),
    ("List the names of all suppliers from Italy.", "SELECT name FROM suppliers WHERE country = 'Italy'"),
    ("What is the average price of our products?", "SELECT avg(price) FROM products"),
    ("What does the most expensive product cost?", "SELECT max(price) FROM products"),
    ("Which product is the heaviest?", "SELECT name FROM products ORDER BY weight_g DESC LIMIT 1"),
    ("How many orders were cancelled?", "SELECT count(*) FROM orders WHERE status = 'cancelled'"),
    ("How many orders are there per status?", "SELECT status, count(*) FROM orders GROUP BY status"),
    ("Which cities do our stores stand in?", "SELECT DISTINCT city FROM stores"),
    ("What is the largest store by area?", "SELECT name FROM stores ORDER BY area_m2 DESC LIMIT 1"),
    ("How many employees work as cashiers?", "SELECT count(*) FROM employees WHERE job_title = 'cashier'"),
    ("What is the total salary of all employees?", "SELECT sum(salary) FROM employees"),
    ("Who earns the most?", "SELECT name FROM employees ORDER BY salary DESC LIMIT 1"),
    ("List names and salaries of the store managers.",
     "SELECT name, salary FROM employees WHERE job_title = 'store manager'"),
    ("Which shipping method is the cheapest?", "SELECT name FROM shipping_methods ORDER BY fee LIMIT 1"),
    ("How many payments were made by card?", "SELECT count(*) FROM payments WHERE method = 'card'"),
    ("What is the sum of all refunds?", "SELECT sum(refund) FROM returns"),
    ("How often was each return reason given?", "SELECT reason, count(*) FROM returns GROUP BY reason"),
    ("How many reviews have five stars?", "SELECT count(*) FROM reviews WHERE stars = 5"),
    ("What is the average number of stars of the reviews?", "SELECT avg(stars) FROM reviews"),
    ("Which coupons give more than 15 percent?", "SELECT code FROM coupons WHERE percent > 15"),
    ("How many coupons were used?", "SELECT count(*) FROM coupon_uses"),
    ("Which campaign had the biggest budget?", "SELECT name FROM campaigns ORDER BY budget DESC LIMIT 1"),
    ("How many campaigns ran by email?", "SELECT count(*) FROM campaigns WHERE channel = 'email'"),
    ("How many support tickets are still open?", "SELECT count(*) FROM support_tickets WHERE closed_on IS NULL"),
    ("How many tickets are there for each topic?", "SELECT topic, count(*) FROM support_tickets GROUP BY topic"),
    ("How many tickets have high priority?", "SELECT count(*) FROM support_tickets WHERE priority = 'high'"),
    ("What is the total capacity of the warehouses?", "SELECT sum(capacity) FROM warehouses"),
    ("Which warehouse is in Graz?", "SELECT name FROM warehouses WHERE city = 'Graz'"),
    ("How many customers joined in 2024?", "SELECT count(*) FROM customers WHERE joined_on LIKE '2024%'"),
    ("How many orders were placed in 2025?", "SELECT count(*) FROM orders WHERE ordered_on LIKE '2025%'"),
    ("Show the customers who get the newsletter and live in Paris.",
     "SELECT name FROM customers WHERE newsletter = 1 AND city = 'Paris'"),
    ("Which products cost less than 10?", "SELECT name FROM products WHERE price < 10"),
    ("List all products from the cheapest to the most expensive.", "SELECT name FROM products ORDER BY price"),
    ("Which products belong to the category Garden?",
     "SELECT products.name FROM products JOIN categories ON category_id = categories.id "
     "WHERE categories.name = 'Garden'"),
    ("How many products are in each category?",
     "SELECT categories.name, count(*) FROM products JOIN categories ON category_id = categories.id "
     "GROUP BY categories.id"),
    ("Which category has the most products?",
     "SELECT categories.name FROM products JOIN categories ON category_id = categories.id GROUP BY categories.id "
     "ORDER BY count(*) DESC LIMIT 1"),
    ("Which products come from suppliers in France?",
     "SELECT products.name FROM products JOIN suppliers ON supplier_id = suppliers.id WHERE country = 'France'"),
    ("How many orders did each customer place?",
     "SELECT customers.name, count(*) FROM customers JOIN orders ON customer_id = customers.id GROUP BY customers.id"),
    ("Which store got the most orders?",
     "SELECT stores.name FROM stores JOIN orders ON store_id = stores.id GROUP BY stores.id "
     "ORDER BY count(*) DESC LIMIT 1"),
    ("Which customers have never ordered anything?",
     "SELECT name FROM customers WHERE id NOT IN (SELECT customer_id FROM orders)"),
    ("How many units of each product were sold?",
     "SELECT products.name, sum(quantity) FROM products JOIN order_items ON product_id = products.id "
     "GROUP BY products.id"),
    ("Which products have never been reviewed?",
     "SELECT name FROM products WHERE id NOT IN (SELECT product_id FROM reviews)"),
    ("What is the average rating of each product?",
     "SELECT products.name, avg(stars) FROM products JOIN reviews ON product_id = products.id GROUP BY products.id"),
    ("How many employees does each store have?",
     "SELECT stores.name, count(*) FROM stores JOIN employees ON store_id = stores.id GROUP BY stores.id"),
    ("What is the average salary in each store?",
     "SELECT stores.name, avg(salary) FROM stores JOIN employees ON store_id = stores.id GROUP BY stores.id"),
    ("Which employees earn more than the average?",
     "SELECT name FROM employees WHERE salary > (SELECT avg(salary) FROM employees)"),
    ("Which employees work in Hamburg?",
     "SELECT employees.name FROM employees JOIN stores ON store_id = stores.id WHERE city = 'Hamburg'"),
    ("How many orders were shipped by each carrier?",
     "SELECT carriers.name, count(*) FROM carriers JOIN shipments ON carrier_id = carriers.id GROUP BY carriers.id"),
    ("Which orders were shipped with the carrier Swift Post and not delivered yet?",
     "SELECT order_id FROM shipments JOIN carriers ON carrier_id = carriers.id "
     "WHERE carriers.name = 'Swift Post' AND delivered_on IS NULL"),
    ("How much stock of each product is there in all warehouses?",
     "SELECT products.name, sum(quantity) FROM products JOIN stock ON product_id = products.id GROUP BY products.id"),
    ("Which products are below their reorder level?",
     "SELECT DISTINCT products.name FROM products JOIN stock ON product_id = products.id "
     "WHERE quantity < reorder_level"),
    ("Which suppliers have a rating above 4?", "SELECT name FROM suppliers WHERE rating > 4"),
    ("How many purchase orders did each supplier get?",
     "SELECT suppliers.name, count(*) FROM suppliers JOIN purchase_orders ON supplier_id = suppliers.id "
     "GROUP BY suppliers.id"),
    ("Which purchase orders have not been received?", "SELECT id FROM purchase_orders WHERE received_on IS NULL"),
    ("How many tickets did customers from Austria open?",
     "SELECT count(*) FROM support_tickets JOIN customers ON customer_id = customers.id WHERE country = 'Austria'"),
    ("How many messages does each ticket have?", "SELECT ticket_id, count(*) FROM ticket_messages GROUP BY ticket_id"),
    ("Which products became cheaper?",
     "SELECT DISTINCT products.name FROM products JOIN price_changes ON product_id = products.id "
     "WHERE new_price < old_price"),
    ("Which cities have at least three customers?", "SELECT city FROM customers GROUP BY city HAVING count(*) >= 3"),
]  # fmt: skip

IN_PLACE_OF_OTHER_TABLES = [
    ("How many stores are there?", "SELECT count(*) FROM stores"),
    ("How many different countries do our customers come from?", "SELECT count(DISTINCT country) FROM customers"),
    ("Which countries do our suppliers come from?", "SELECT DISTINCT country FROM suppliers"),
    ("How many employees are there in each job?", "SELECT job_title, count(*) FROM employees GROUP BY job_title"),
    ("Which employee was hired first?", "SELECT name FROM employees ORDER BY hired_on LIMIT 1"),
    ("How many products weigh more than 5000 grams?", "SELECT count(*) FROM products WHERE weight_g > 5000"),
    ("What is the lightest product?", "SELECT name FROM products ORDER BY weight_g LIMIT 1"),
    ("How long does express shipping take?", "SELECT days FROM shipping_methods WHERE name = 'express'"),
    ("How many orders are still open?", "SELECT count(*) FROM orders WHERE status = 'open'"),
    ("How many items came back because they were damaged?", "SELECT count(*) FROM returns WHERE reason = 'damaged'"),
    ("What is the average refund?", "SELECT avg(refund) FROM returns"),
    ("What is the lowest price of a product?", "SELECT min(price) FROM products"),
    ("List the customers from Germany in alphabetical order.",
     "SELECT name FROM customers WHERE country = 'Germany' ORDER BY name"),
    ("How many products does each supplier deliver?",
     "SELECT suppliers.name, count(*) FROM suppliers JOIN products ON supplier_id = suppliers.id "
     "GROUP BY suppliers.id"),
    ("How many customers get the newsletter?", "SELECT count(*) FROM customers WHERE newsletter = 1"),
    ("How many reviews did each product get?",
     "SELECT products.name, count(*) FROM products JOIN reviews ON product_id = products.id GROUP BY products.id"),
    ("Which stores opened after 2015?", "SELECT name FROM stores WHERE opened_on > '2015-12-31'"),
    ("Which products were launched in 2025?", "SELECT name FROM products WHERE launched_on LIKE '2025%'"),
    ("What is the salary of the best paid cashier?",
     "SELECT max(salary) FROM employees WHERE job_title = 'cashier'"),
]  # fmt: skip


def make_shop(folder: Path, *, large: bool) -> tuple[Path, Path]:
    """Write the database and the questions; the same ones at each call."""
    database, questions = folder / "shop.db", folder / "questions.json"
    database.unlink(missing_ok=True)
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(SCHEMA)
        for table, row in _rows(random.Random(7)):
            connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        others = dict(connection.execute("SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view')"))
        others = {} if large else {name: kind for name, kind in others.items() if name not in SMALL}
        for name, kind in sorted(others.items(), key=lambda each: each[1], reverse=True):  # views first
            connection.execute(f"DROP {kind} {name}")
        connection.commit()
        connection.execute("VACUUM")
    chosen = QUESTIONS
    if not large:
        chosen = [each for each in QUESTIONS if not {*re.findall(r"\w+", each[1])} & {*others}]
        chosen += IN_PLACE_OF_OTHER_TABLES
    questions.write_text(json.dumps([{"question": asked, "query": query} for asked, query in chosen], indent=1))
    return database, questions


def _rows(rng: random.Random) -> Iterator[tuple[str, tuple[object, ...]]]:
    def day(first: str = "2023-01-01", days: int = 1000) -> str:
        return str(date.fromisoformat(first) + timedelta(rng.randrange(days)))

    def later(of: str, days: int = 20) -> str:
        return str(date.fromisoformat(of) + timedelta(1 + rng.randrange(days)))

    towns = [*TOWNS]
    for number, name in enumerate(CATEGORIES, 1):
        yield "categories", (number, name, None if number < 4 else rng.randint(1, 3))
    for number in range(1, 13):
        country = TOWNS[rng.choice(towns)]
        yield (
            "suppliers",
            (
                number,
                f"{rng.choice(LAST.split())} {number} Ltd",
                country,
                round(rng.uniform(2, 5), 1),
                f"s{number}@x.eu",
            ),
        )
    prices: dict[int, float] = {}
    names = rng.sample([f"{kind} {thing}" for kind in KINDS for thing in THINGS], 80)
    for number, name in enumerate(names, 1):
        prices[number] = round(rng.uniform(4, 180), 2)
        made = (
            name,
            rng.randint(1, 8),
            rng.randint(1, 12),
            prices[number],
            rng.randrange(50, 9000),
            day(),
            rng.random() < 0.1,
        )
        yield "products", (number, *made, rng.randbytes(64))
    people = rng.sample([f"{first} {last}" for first in FIRST.split() for last in LAST.split()], 150)
    for number, name in enumerate(people[:120], 1):
        town = rng.choice(towns)
        mail = f"{name.lower().replace(' ', '.')}@mail.eu"
        yield "customers", (number, name, mail, town, TOWNS[town], day(), rng.random() < 0.4)
    for number in range(1, 7):
        yield (
            "stores",
            (number, f"Shop {towns[number - 1]}", towns[number - 1], day("2015-01-01"), rng.randrange(120, 900)),
        )
    titles = ["cashier", "sales assistant", "buyer"]
    for number, name in enumerate(people[120:], 1):
        manager, store = number <= 6, number if number <= 6 else rng.randint(1, 6)
        title = "store manager" if manager else rng.choice(titles)
        pay = rng.randrange(31_000, 60_000) if manager else rng.randrange(21_000, 36_000)
        yield "employees", (number, name, store, title, day("2016-01-01", 3000), pay, None if manager else store)
    for number, (name, days, fee) in enumerate([("standard", 4, 3.9), ("express", 1, 9.9), ("pick up", 2, 0.0)], 1):
        yield "shipping_methods", (number, name, days, fee)
    for number, name in enumerate(["Swift Post", "Blue Parcel", "Alpine Freight"], 1):
        yield "carriers", (number, name, f"+43 1 {rng.randrange(10**6)}")
    for number in range(1, 5):
        town = ["Graz", "Lyon", "Ghent", "Munich"][number - 1]
        yield "warehouses", (number, f"Warehouse {town}", town, rng.randrange(2, 9) * 1000)
        for product in rng.sample(range(1, 81), 60):
            yield "stock", (number, product, rng.randrange(200), rng.randrange(10, 60))
    for number, code in enumerate(["SPRING10", "WELCOME5", "SUMMER20", "VIP25", "BACK15"], 1):
        yield "coupons", (number, code, int("".join(filter(str.isdigit, code))), day(), "2026-12-31")
    for number in range(1, 501):
        ordered = day()
        status = rng.choices(["delivered", "shipped", "open", "cancelled"], [70, 12, 10, 8])[0]
        yield (
            "orders",
            (number, rng.randint(1, 100), rng.randint(1, 6), rng.randint(1, 30), rng.randint(1, 3), ordered, status),
        )
        for product in rng.sample(range(1, 81), rng.randint(1, 4)):
            yield "order_items", (number, product, rng.randint(1, 5), prices[product], rng.choice([0, 0, 0, 0.1]))
        if status in ("delivered", "shipped"):
            yield (
                "payments",
                (number, number, later(ordered, 5), rng.choice(["card", "invoice", "cash"]), rng.randrange(10, 600)),
            )
            sent = later(ordered, 4)
            yield (
                "shipments",
                (number, number, rng.randint(1, 3), sent, later(sent, 6) if status == "delivered" else None),
            )
        if rng.random() < 0.15:
            yield "coupon_uses", (rng.randint(1, 5), number)
        if status == "delivered" and rng.random() < 0.1:
            reason = rng.choice(["damaged", "too late", "wrong item", "changed mind"])
            yield "returns", (number, number, rng.randint(1, 80), later(ordered, 40), reason, rng.randrange(5, 150))
    for number in range(1, 301):
        yield (
            "reviews",
            (
                number,
                rng.randint(1, 70),
                rng.randint(1, 100),
                rng.choices([1, 2, 3, 4, 5], [1, 1, 2, 4, 5])[0],
                day(),
                rng.choice(["Good", "As expected", "Never again", "Lovely"]),
            ),
        )
    for number in range(1, 61):
        ordered = day()
        yield (
            "purchase_orders",
            (number, rng.randint(1, 12), rng.randint(1, 4), ordered, later(ordered) if rng.random() < 0.8 else None),
        )
        for product in rng.sample(range(1, 81), 3):
            yield "purchase_items", (number, product, rng.randrange(10, 200), round(prices[product] * 0.6, 2))
    for number in range(1, 41):
        product = rng.randint(1, 80)
        yield (
            "price_changes",
            (number, product, day(), prices[product], round(prices[product] * rng.uniform(0.8, 1.3), 2)),
        )
    for number, name in enumerate(["Spring Sale", "Back to School", "Winter Lights", "Garden Days", "Black Friday"], 1):
        begun = day()
        yield (
            "campaigns",
            (
                number,
                name,
                rng.choice(["email", "posters", "radio"]),
                begun,
                later(begun, 30),
                rng.randrange(2, 40) * 500,
            ),
        )
    for number in range(1, 91):
        opened = day()
        topic = rng.choice(["delivery", "payment", "product", "account"])
        closed = later(opened) if rng.random() < 0.8 else None
        yield (
            "support_tickets",
            (number, rng.randint(1, 120), opened, closed, topic, rng.choice(["low", "normal", "high"])),
        )
        for part in range(rng.randint(1, 3)):
            yield (
                "ticket_messages",
                (number * 10 + part, number, opened, rng.choice(["customer", "agent"]), f"message {part}"),
            )
    for number in range(1, 201):
        yield (
            "audit_log",
            (
                number,
                day(),
                f"user{rng.randint(1, 9)}",
                rng.choice(["insert", "update"]),
                "orders",
                rng.randint(1, 500),
                rng.randbytes(32),
            ),
        )


def main() -> None:
    parser = described_parser("python -m sql_agent.demo_shop", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--large", action="store_true", help="26 tables and 6 views instead of eleven tables")
    args: argparse.Namespace = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    print(*make_shop(args.folder, large=args.large), sep="\n")


if __name__ == "__main__":
    main()
