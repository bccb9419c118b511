"""Defines rules, tool and episode of an agent that solves a word problem. Leaves out the judge (`environments`)."""

from __future__ import annotations

from dbbench_adapter.protocols import Message
from examples.gsm8k.calculator import calculate
from examples.gsm8k.datatypes import WordProblem
from sql_agent.environments.episode import OneToolEpisode, tool

MAX_ROUNDS = 10
"""Number of replies, the answer included."""
TOOL_NAME = "calculator"
RULES = f"""\
You solve word problems. Call {TOOL_NAME} for every calculation, with one expression such as 48/2. A reply without a \
call is your answer and ends the task: its last line is #### and the final number alone, such as #### 72."""
TOOL = tool(
    TOOL_NAME,
    "Calculate one arithmetic expression and return its exact value.",
    {"expression": "Numbers, + - * / // % ** and parentheses."},
)


def messages(problem: WordProblem) -> list[Message]:
    """Return the first prompt: the rules, then the question, without anything of its answer."""
    return [{"role": "system", "content": RULES}, {"role": "user", "content": problem.question}]


class Gsm8kEpisode(OneToolEpisode):
    tool_name, argument, example = TOOL_NAME, "expression", "48/2"

    def __init__(self, problem: WordProblem, max_rounds: int) -> None:
        super().__init__(max_rounds)
        self.problem = problem

    def use_tool(self, value: str) -> str:
        return calculate(value)
