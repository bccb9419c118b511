"""GSM8K's word problems with a calculator; the final number of the answer is judged.

A row has `question` and `answer`, as GSM8K has them: the answer is a solution with `<<48/2=24>>` at each calculation,
and a last line `#### 24`.
"""

from __future__ import annotations

import re
from typing import Any

from sql_agent.environments.tools import ToolEnvironment
from sql_agent.gsm8k.calculator import calculate
from sql_agent.gsm8k.problems import final_number, gold_answer, load_problems, read_problems
from sql_agent.settings.groups import DataConfig

RULES = """\
You solve word problems. Call calculator for every calculation, with one expression such as 48/2. A reply without a \
call is your answer and ends the task: its last line is #### and the final number alone, such as #### 72."""
# Seed of the held-out problems and their order, so that runs with different seeds measure the same ones.
HELD_OUT_SEED = 1
_ANNOTATION = re.compile(r"<<([^<>]*)=([^<>=]*)>>")


class Gsm8k(ToolEnvironment):
    max_turns = 10
    strict_tools = True

    @classmethod
    def prompt(cls, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Raises ValueError: the row is no problem."""
        gold_answer(row)
        return [{"role": "system", "content": RULES}, {"role": "user", "content": row["question"].strip()}]

    def calculator(self, expression: str) -> str:
        """Calculate one arithmetic expression and return its exact value.

        Args:
            expression: Numbers, + - * / // % ** and parentheses.
        """
        return calculate(str(expression))  # a policy may write the number 24 for "24"

    def judge(self) -> tuple[float, str]:
        """Compare the final numbers by value (72, 72.0 and $72 are equal); every ended episode gets a verdict.

        Returns:
            1.0 with the reason `match`, or 0.0 with `wrong_answer`, `no_final_number` (no single number follows the
            last `####`) or `no_answer` (out of replies or tokens, or an empty reply).
        """
        if not (self.reply or "").strip():
            return 0.0, "no_answer"
        number = final_number(self.reply or "")
        if number is None:
            return 0.0, "no_final_number"
        return (1.0, "match") if number == gold_answer(self.row) else (0.0, "wrong_answer")

    @classmethod
    def load_split(cls, data: DataConfig, seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The problems; `data.train_file` is a file, or `gsm8k` for the hub's, or None for generated ones."""
        if data.train_file is not None and data.val_file is not None:
            return read_problems(data.train_file), read_problems(data.val_file)
        source, made = str(data.train_file or "generated"), data.train_file is None
        fraction = data.held_out_fraction
        train = load_problems(source, limit=data.generate if made else None, seed=seed, held_out_fraction=fraction)
        if data.val_file is not None:
            return train, read_problems(data.val_file)
        if not fraction and source not in ("generated", "gsm8k"):
            return train, []
        limit = data.val_limit if made else None
        return train, load_problems(source, split="test", limit=limit, seed=HELD_OUT_SEED, held_out_fraction=fraction)

    @classmethod
    def reference(cls, row: dict[str, Any]) -> list[Any]:
        """The solution in turns; [] if it has an annotation that the calculator does not confirm.

        Each annotation becomes a call: `16-3 = <<16-3=13>>13 eggs` ends a text at `=`, calls the calculator with
        `16-3`, and the next text begins with `13 eggs`. The last text ends with `#### n`.
        """
        solution, replies, position = row["answer"].strip(), [], 0
        for annotation in _ANNOTATION.finditer(solution):
            expression, said = (part.strip() for part in annotation.groups())
            result = calculate(expression)
            if result.startswith("Error") or result != calculate(said):  # a rounded number differs too
                return []
            text = solution[position : annotation.start()].strip()
            replies.append({"content": text, "name": "calculator", "arguments": {"expression": expression}})
            position = annotation.end()
        last = solution[position:].strip()
        unread = re.search("<<|>>", _ANNOTATION.sub("", solution))
        return [] if unread or final_number(last) != gold_answer(row) else [*replies, last]

    @classmethod
    def typed(cls, question: str) -> dict[str, Any]:
        return {"question": question, "answer": "#### 0"}  # its verdict is not shown
