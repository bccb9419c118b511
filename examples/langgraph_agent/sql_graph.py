"""Defines the SQL agent of LangGraph's tutorial over a small garden shop. Imports nothing of this project.

Five nodes stand in a row: the tables are listed, the policy asks for the schemas that it needs, writes a query, has it
checked, and the query is run; its rows go back to the writer, who answers or writes another one. `graph` is the
compiled graph, `reward` scores a rollout. Whatever model the graph names, its calls go to the policy.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Literal

from langchain.chat_models import init_chat_model
from langchain_community.agent_toolkits import SQLDatabaseToolkit
from langchain_community.utilities import SQLDatabase
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from sqlalchemy import NullPool, event

DATABASE = Path(__file__).resolve().parents[2] / "data" / "garden.sqlite"
TABLES = """
CREATE TABLE plants (id INTEGER PRIMARY KEY, name TEXT, height_cm INTEGER, price REAL);
CREATE TABLE sales (plant INTEGER REFERENCES plants(id), town TEXT, pieces INTEGER);
INSERT INTO plants VALUES (1, 'rose', 80, 12.5), (2, 'fern', 45, 7.0), (3, 'ivy', 200, 4.5), (4, 'lily', 60, 9.0),
    (5, 'moss', 3, 2.5);
INSERT INTO sales VALUES (1, 'Ulm', 4), (2, 'Graz', 10), (3, 'Ulm', 6), (1, 'Lyon', 5), (5, 'Graz', 30), (4, 'Ulm', 2),
    (2, 'Lyon', 1), (3, 'Graz', 3);
"""
MAY = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}
READ_PRAGMAS = {"table_list", "table_info", "table_xinfo", "foreign_key_list", "index_list", "index_info"}
MOST_STEPS, MOST_BYTES, MOST_CHARS = 1_000_000, 100_000, 800


def make_database(file: Path) -> None:
    """Write the file whole or not at all, because several commands may start at once."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}")
    with closing(sqlite3.connect(unfinished)) as db:
        db.executescript(TABLES)
    unfinished.replace(file)


if not DATABASE.exists():
    make_database(DATABASE)

# The tutorial's connection may write, and a policy that learns writes any SQL. Here it may read, but not attach files,
# run forever or fill the memory. Without a pool, no connection is shared by the processes that play.
db = SQLDatabase.from_uri(
    f"sqlite:///{DATABASE.as_uri()}?mode=ro&uri=true", engine_args={"poolclass": NullPool}, max_string_length=MOST_CHARS
)


@event.listens_for(db._engine, "connect")
def limit(connection: sqlite3.Connection, _: object) -> None:
    connection.set_authorizer(may)
    connection.set_progress_handler(lambda: 1, MOST_STEPS)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)


def may(action: int, name: str | None, *_: object) -> int:
    read = action in MAY or action == sqlite3.SQLITE_TRANSACTION
    return (
        sqlite3.SQLITE_OK if read or (action == sqlite3.SQLITE_PRAGMA and name in READ_PRAGMAS) else sqlite3.SQLITE_DENY
    )


model = init_chat_model("openai:gpt-4.1")
tools = {tool.name: tool for tool in SQLDatabaseToolkit(db=db, llm=model).get_tools()}
list_tables_tool, get_schema_tool, run_query_tool = (
    tools[f"sql_db_{name}"] for name in ("list_tables", "schema", "query")
)
WRITE = f"Answer a question about a {db.dialect} database with the value alone. Read it with one query, then reply."
CHECK = f"Check this {db.dialect} query for mistakes in names, joins and NULLs. Run it, corrected if need be."


def list_tables(state: MessagesState) -> dict:
    """Show the tables without asking the model."""
    call = {"name": list_tables_tool.name, "args": {}, "id": "tables", "type": "tool_call"}
    shown = list_tables_tool.invoke(call)
    return {"messages": [AIMessage("", tool_calls=[call]), shown, AIMessage(f"The tables are {shown.content}.")]}


def call_get_schema(state: MessagesState) -> dict:
    return {"messages": [model.bind_tools([get_schema_tool], tool_choice="any").invoke(state["messages"])]}


def generate_query(state: MessagesState) -> dict:
    messages = [{"role": "system", "content": WRITE}, *state["messages"]]
    return {"messages": [model.bind_tools([run_query_tool]).invoke(messages)]}


def check_query(state: MessagesState) -> dict:
    last = state["messages"][-1]
    messages = [{"role": "system", "content": CHECK}, {"role": "user", "content": last.tool_calls[0]["args"]["query"]}]
    checked = model.bind_tools([run_query_tool], tool_choice="any").invoke(messages)
    checked.id = last.id  # it takes the place of the query that was written
    return {"messages": [checked]}


def go_on(state: MessagesState) -> Literal["check_query", "__end__"]:
    return "check_query" if state["messages"][-1].tool_calls else END


builder = StateGraph(MessagesState)
for node in (list_tables, call_get_schema, generate_query, check_query):
    builder.add_node(node.__name__, node)
builder.add_node("get_schema", ToolNode([get_schema_tool]))
builder.add_node("run_query", ToolNode([run_query_tool]))
builder.add_edge(START, "list_tables")
builder.add_edge("list_tables", "call_get_schema")
builder.add_edge("call_get_schema", "get_schema")
builder.add_edge("get_schema", "generate_query")
builder.add_conditional_edges("generate_query", go_on)
builder.add_edge("check_query", "run_query")
builder.add_edge("run_query", "generate_query")
graph = builder.compile()


def reward(record) -> float:
    """Return 1 for the right reply, and a tenth for a wrong one for which the database was read."""
    if record.output is None:  # a reply whose tool call cannot be read ends so
        return 0.0
    if str(record.output).strip() == record.task["row"]["answer"]:
        return 1.0
    return 0.1 if any(name == "sql_db_query" for name, _ in record.calls) else 0.0
