"""Defines two agents of openai-agents that answer questions about a shop's orders. Imports nothing of this project.

`agent` hands a question to a clerk, who has a tool; `reward` scores a rollout. One policy plays both agents and is
trained on both: whatever model an `Agent` names, its calls go to the policy.
"""

import sqlite3

from agents import Agent, function_tool

TABLES = """
CREATE TABLE orders (id INTEGER, customer TEXT, fruit TEXT, amount INTEGER, city TEXT);
INSERT INTO orders VALUES (1, 'Ada', 'pear', 12, 'Bern'), (2, 'Bo', 'plum', 5, 'Rome'), (3, 'Cy', 'fig', 30, 'Bern'),
    (4, 'Ada', 'plum', 7, 'Oslo'), (5, 'Dee', 'pear', 2, 'Rome'), (6, 'Eve', 'lime', 18, 'Oslo'),
    (7, 'Bo', 'fig', 9, 'Bern'), (8, 'Flo', 'lime', 4, 'Kyiv'), (9, 'Cy', 'pear', 21, 'Kyiv'),
    (10, 'Gil', 'plum', 16, 'Rome');
"""
MAY = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}
MOST_STEPS, MOST_BYTES, MOST_ROWS, MOST_CHARS = 1_000_000, 100_000, 50, 800


@function_tool
def execute_sql(query: str) -> str:
    """Run one SQL statement on the table orders (id, customer, fruit, amount, city) and return its rows.

    Args:
        query: The SQL statement.
    """
    db = sqlite3.connect(":memory:")
    db.executescript(TABLES)
    # A policy writes any SQL. It may read, but not attach files, run forever or fill the memory.
    db.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in MAY else sqlite3.SQLITE_DENY)
    db.set_progress_handler(lambda: 1, MOST_STEPS)
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
    return str(db.execute(query).fetchmany(MOST_ROWS))[:MOST_CHARS]  # the policy reads SQLite's errors


clerk = Agent(
    name="clerk",
    instructions="Answer with the value alone. Read it with execute_sql.",
    tools=[execute_sql],
    handoff_description="Reads the table of orders.",
)
agent = Agent(
    name="desk",
    instructions="You stand at the desk of a shop. Hand questions about orders to the clerk.",
    handoffs=[clerk],
)


def reward(record) -> float:
    """Return 1 for the right value and a tenth for an answer that read the table."""
    if record.output is None:  # a call of a tool that the agent does not have ends so, whatever its name
        return 0.0
    if str(record.output).strip() == record.task["row"]["answer"]:
        return 1.0
    return 0.1 if any(name == "execute_sql" for name, _ in record.calls) else 0.0
