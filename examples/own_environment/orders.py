"""Answers questions about a shop's orders in SQL, as an environment in TRL's form. Imports nothing of this project.

Every public method is a tool; its schema comes from type hints and docstring. `reset` starts an episode with a row of
the task file, and `get_reward` ends it. `done` and `solved` are attributes that TRL ignores: after the tool that sets
`done` the episode ends, and `solved` is what counts as success. In TRL: GRPOTrainer(environment_factory=Orders, ...).
"""

import sqlite3

TABLES = """
CREATE TABLE orders (id INTEGER, customer TEXT, fruit TEXT, amount INTEGER, city TEXT);
INSERT INTO orders VALUES (1, 'Ada', 'pear', 12, 'Bern'), (2, 'Bo', 'plum', 5, 'Rome'), (3, 'Cy', 'fig', 30, 'Bern'),
    (4, 'Ada', 'plum', 7, 'Oslo'), (5, 'Dee', 'pear', 2, 'Rome'), (6, 'Eve', 'lime', 18, 'Oslo'),
    (7, 'Bo', 'fig', 9, 'Bern'), (8, 'Flo', 'lime', 4, 'Kyiv'), (9, 'Cy', 'pear', 21, 'Kyiv'),
    (10, 'Gil', 'plum', 16, 'Rome');
"""
MAY = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}
MOST_STEPS, MOST_BYTES, MOST_ROWS, MOST_CHARS = 1_000_000, 100_000, 50, 800


class Orders:
    done = False
    solved = False

    def reset(self, answer, **row):
        self._answer, self._has_read = answer, False
        self.done = self.solved = False
        self._db = sqlite3.connect(":memory:")
        self._db.executescript(TABLES)
        # A policy writes any SQL. It may read, but not attach files, run forever or fill the memory.
        self._db.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in MAY else sqlite3.SQLITE_DENY)
        self._db.set_progress_handler(lambda: 1, MOST_STEPS)
        self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)

    def execute_sql(self, query: str) -> str:
        """Run one SQL statement on the database and return its rows.

        Args:
            query: The SQL statement.
        """
        rows = self._db.execute(query).fetchmany(MOST_ROWS)  # the policy reads SQLite's errors
        self._has_read = self._has_read or bool(rows)
        return str(rows)[:MOST_CHARS]

    def commit_final_answer(self, answers: list[str]) -> str:
        """Commit the final answer and end the task.

        Args:
            answers: The answer values.
        """
        self.solved, self.done = answers == self._answer, True
        return "Committed."

    def get_reward(self) -> float:
        return 1.0 if self.solved else 0.1 if self._has_read else 0.0
