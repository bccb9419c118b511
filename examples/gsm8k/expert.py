"""Turns a problem's solution into the conversation of an agent that calls the calculator, for warm starts and tests."""

from __future__ import annotations

import re
from decimal import Decimal

from dbbench_adapter.protocols import Message
from examples.gsm8k.calculator import calculate
from examples.gsm8k.datatypes import WordProblem, final_number
from examples.gsm8k.episode import TOOL_NAME, messages
from sql_agent.oracle import call

_ANNOTATION = re.compile(r"<<([^<>]*)=([^<>=]*)>>")


def expert_messages(problem: WordProblem) -> list[Message]:
    """Return the whole conversation: the first prompt, then the solution in turns.

    Each annotation becomes a call: `16-3 = <<16-3=13>>13 eggs` ends an assistant's text at `=`, calls the calculator
    with `16-3`, has its result as the tool's message, and continues with `13 eggs`. The last text ends with `#### n`.
    Raises:
        ValueError: the problem has no solution, an annotation cannot be read or differs from the calculator's result
            (a rounded number differs), or the solution does not end with the answer.
    """
    if problem.solution is None:
        raise ValueError(f"problem {problem.id!r} has no solution to show")
    if re.search("<<|>>", _ANNOTATION.sub("", problem.solution)):
        raise ValueError(f"problem {problem.id!r}: an annotation cannot be read, expected such as <<48/2=24>>")
    conversation, position = messages(problem), 0
    for number, annotation in enumerate(_ANNOTATION.finditer(problem.solution)):
        expression, said = (part.strip() for part in annotation.groups())
        result = calculate(expression)
        if result.startswith("Error") or result != calculate(said):
            raise ValueError(
                f"problem {problem.id!r}: {annotation[0]} is not what the calculator says, {result}; correct it"
            )
        text = problem.solution[position : annotation.start()].strip()
        tool_call = call(TOOL_NAME, {"expression": expression}, f"call_{number}")
        conversation.append({"role": "assistant", "content": text, "tool_calls": [tool_call]})
        conversation.append({"role": "tool", "tool_call_id": tool_call["id"], "content": result})
        position = annotation.end()
    last = problem.solution[position:].strip()
    if final_number(last) != Decimal(problem.answer):
        raise ValueError(f"problem {problem.id!r}: its solution does not end with #### {problem.answer}; end it so")
    return [*conversation, {"role": "assistant", "content": last}]
