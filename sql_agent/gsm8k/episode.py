"""How an agent solves a word problem: its rules, its one tool, and the episode that keeps them."""

from __future__ import annotations

import json
from typing import Any

from dbbench_adapter.protocols import Message, Status
from sql_agent.gsm8k.calculator import calculate
from sql_agent.gsm8k.datatypes import Problem

MAX_ROUNDS = 10
"""Replies, the answer included."""
TOOL_NAME = "calculator"
RULES = f"""\
You solve word problems. Call {TOOL_NAME} for every calculation, with one expression such as 48/2. A reply without a \
call is your answer and ends the task: its last line is #### and the final number alone, such as #### 72."""
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": "Calculate one arithmetic expression and return its exact value.",
        "parameters": {
            "type": "object",
            "properties": {
                "expression": {"type": "string", "description": "Numbers, + - * / // % ** and parentheses."}
            },
            "required": ["expression"],
            "additionalProperties": False,
        },
    },
}


def messages(problem: Problem) -> list[Message]:
    """The first prompt: the rules, then the question. Nothing of its answer is in it."""
    return [{"role": "system", "content": RULES}, {"role": "user", "content": problem.question}]


class Gsm8kEpisode:
    """Calls of the calculator until a reply without one, which is the answer."""

    def __init__(self, problem: Problem, max_rounds: int) -> None:
        self.problem = problem
        self.max_rounds = max_rounds
        self.malformed_calls = 0
        self.status: Status = "running"
        self.answer: str | None = None
        """The reply that ended the episode."""

    @property
    def done(self) -> bool:
        return self.status != "running"

    def call_tool(self, name: str, arguments: Any) -> str:
        if name != TOOL_NAME:
            return self._malformed(f"unknown tool {name!r}; call {TOOL_NAME}")
        try:
            values = json.loads(arguments)
        except (ValueError, TypeError, RecursionError):
            return self._malformed(f"the arguments of {name} do not parse; they are a JSON object")
        expression = values.get("expression") if isinstance(values, dict) else None
        if not isinstance(expression, str):
            return self._malformed(f'{name} takes {{"expression": "48/2"}}')
        return calculate(expression)

    def without_call(self, reply: str) -> list[Message]:
        self.status, self.answer = "completed", reply
        return []

    def close(self) -> None:
        """Nothing is held."""

    def _malformed(self, reason: str) -> str:
        self.malformed_calls += 1
        return f"Error: {reason}."
