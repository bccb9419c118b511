"""Answers the same questions with an agent-lightning agent: a function of task and model, which returns its reward.

Any framework will do, as long as it calls `llm.endpoint`. This agent is OpenAI's client and a loop.
"""

import json
import sqlite3

import agentlightning as agl
from openai import OpenAI
from orders_agent import MAY, MOST_BYTES, MOST_CHARS, MOST_ROWS, MOST_STEPS, TABLES

TOOL = {
    "type": "function",
    "function": {
        "name": "execute_sql",
        "description": "Run one SQL statement on the table orders (id, customer, fruit, amount, city).",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}
MOST_TURNS = 4


def execute_sql(query: str) -> str:
    db = sqlite3.connect(":memory:")
    db.executescript(TABLES)
    db.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in MAY else sqlite3.SQLITE_DENY)
    db.set_progress_handler(lambda: 1, MOST_STEPS)
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
    return str(db.execute(query).fetchmany(MOST_ROWS))[:MOST_CHARS]


@agl.rollout
def clerk(task, llm: agl.LLM) -> float:
    client = OpenAI(base_url=llm.endpoint, api_key=llm.api_key)
    messages = [
        {"role": "system", "content": "Answer with the value alone. Read it with execute_sql."},
        {"role": "user", "content": task["prompt"]},
    ]
    for _ in range(MOST_TURNS):
        reply = client.chat.completions.create(model=llm.model, messages=messages, tools=[TOOL]).choices[0].message
        messages.append(reply.model_dump(exclude_none=True))
        if not reply.tool_calls:
            return float((reply.content or "").strip() == task["answer"])
        for call in reply.tool_calls:
            try:
                result = execute_sql(**json.loads(call.function.arguments))
            except Exception as error:  # the policy reads it
                result = f"{type(error).__name__}: {error}"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return 0.0
