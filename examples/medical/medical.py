"""Questions about drugs and diseases, answered from a SQLite database, which nobody but a reward model can judge.

The class has neither `judge` nor `get_reward`, so a run needs a reward from elsewhere: a reward model
(`--reward-model-url`), an LLM (`--reward judge`), or a function (`--reward FILE.py:NAME`). A row names its database
itself, in the column `database`; without one it is the invented database, which is made if it is not there.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from medical_data import NAMES, make_database, make_questions

from agentgrpo.machine import HOME
from dbbench_adapter.engines import BackendUnavailable, open_databases
from dbbench_adapter.engines.base import json_cell
from dbbench_adapter.engines.engine import Databases
from sql_agent.environments.tools import Lost, ToolEnvironment
from sql_agent.settings.groups import DataConfig

INVENTED = HOME / "data" / "medical" / "medical.db"
STATEMENT_TIMEOUT_S = 5.0
# Longest result that the policy reads; a field of a label fits, a whole table does not.
MAX_RESULT_CHARS = 2_000
RULES = """\
You answer questions about drugs and diseases from a read-only SQLite database. Call query_database_by_sql with one \
SELECT statement; it returns columns and rows as JSON. A reply without a call is your answer and ends the task: say \
what the database says, in the language of the question, and no more than that.
Tables:
"""


@lru_cache
def databases(path: str | None) -> Databases:
    # Once a process; every episode opens the file anew, for reading only, with limits of time and memory.
    return open_databases(Path(path) if path else invented())


def invented() -> Path:
    if not INVENTED.exists():
        print(f"making a database of invented entries, {INVENTED}", flush=True)
        make_database(INVENTED)
    return INVENTED


class Medical(ToolEnvironment):
    max_turns = 8
    strict_tools = True

    @classmethod
    def load_split(cls, data: DataConfig, seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]] | None:
        """Questions about the invented database; no entry is in both halves."""
        if data.train_file is not None:
            return None
        database, share = invented(), data.held_out_fraction
        train = make_questions(database, data.generate, held_out=False, held_out_fraction=share, seed=seed)
        return train, make_questions(database, data.val_limit, held_out=True, held_out_fraction=share, seed=seed)

    @classmethod
    def prompt(cls, row: dict[str, Any]) -> list[dict[str, Any]]:
        """The rules, the tables with their columns, and the question; nothing of its answer."""
        found = databases(row.get("database"))
        tables = [table for table in found.schema(found.ids[0]) if table.name.lower() in NAMES]
        shown = "\n".join(f"{table.name}({', '.join(column.name for column in table.columns)})" for table in tables)
        return [{"role": "system", "content": RULES + shown}, {"role": "user", "content": row["question"]}]

    def reset(self, database: str | None = None, **row: Any) -> None:
        found = databases(database)
        self._session = found.open(found.ids[0], statement_timeout_s=STATEMENT_TIMEOUT_S)

    def query_database_by_sql(self, sql: str) -> str:
        """Run one SELECT statement and return its rows.

        Args:
            sql: The SELECT statement.
        """
        try:
            result = self._session.run(str(sql))  # a policy may write a number
        except BackendUnavailable as error:  # nobody's fault, so that no reward is given
            raise Lost("database_unavailable", str(error)) from error
        if result.error is not None:
            return f"Error: {result.error}"
        rows = [[json_cell(cell) for cell in row] for row in result.rows or ()]
        text = json.dumps({"columns": result.columns, "rows": rows}, ensure_ascii=False)
        text = text.encode("utf-8", "replace").decode()  # a lone surrogate would break the next request
        return text if len(text) <= MAX_RESULT_CHARS else f"{text[:MAX_RESULT_CHARS]}[TRUNCATED]"

    def close(self) -> None:
        self._session.close()
