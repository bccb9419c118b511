"""An MCP server with one tool, a query over a shop's orders. Imports nothing of this project."""

import sqlite3
from contextlib import closing

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

TABLES = """
CREATE TABLE orders (id INTEGER, customer TEXT, fruit TEXT, amount INTEGER, city TEXT);
INSERT INTO orders VALUES (1, 'Ada', 'pear', 12, 'Bern'), (2, 'Bo', 'plum', 5, 'Rome'), (3, 'Cy', 'fig', 30, 'Bern'),
    (4, 'Ada', 'plum', 7, 'Oslo'), (5, 'Dee', 'pear', 2, 'Rome'), (6, 'Eve', 'lime', 18, 'Oslo');
"""
MAY = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}
MOST_STEPS, MOST_BYTES, MOST_ROWS, MOST_CHARS = 1_000_000, 100_000, 50, 800

server = MCPServer("orders")


@server.tool()
def execute_sql(query: str) -> str:
    """Run one SQL statement on the table orders (id, customer, fruit, amount, city) and return its rows."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(TABLES)
        # A policy writes any SQL. It may read, but not attach files, run forever or fill the memory.
        db.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in MAY else sqlite3.SQLITE_DENY)
        db.set_progress_handler(lambda: 1, MOST_STEPS)
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
        try:
            return str(db.execute(query).fetchmany(MOST_ROWS))[:MOST_CHARS]
        except sqlite3.Error as error:
            raise ToolError(str(error)) from None  # another exception would not say what it was


if __name__ == "__main__":
    server.run()
