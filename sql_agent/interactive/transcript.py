"""Prints a conversation with an agent in a terminal, or to a file if standard output is not a terminal.

Thoughts appear token by token. While a call is being written, one temporary line shows it; then it is printed whole
with highlighted SQL. Text of a model or a database cannot control the terminal: control characters become visible ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.syntax import Syntax
from rich.table import Table as Grid
from rich.text import Text

from dbbench_adapter.datatypes import Cell, Table
from dbbench_adapter.protocols import Message
from sql_agent.datatypes import OWN_REWARD
from sql_agent.interactive.session import COMMANDS, OWN, Answered

# Beginnings of a call, in Hermes' form and in that of the text protocols.
MARKERS = ("<tool_call>", "```sql\n")
SHOWN_ROWS, SHOWN_TASKS = 5, 50
_FENCED = re.compile(r"```sql\n(.*?)\n```", re.DOTALL)


class Transcript:
    """
    Args:
        max_new_tokens: the limit to name when a reply was cut.
    """

    def __init__(self, console: Console, *, max_new_tokens: int) -> None:
        self._console, self._max_new_tokens = console, max_new_tokens
        # Number of characters of the current reply that are printed.
        self._written = 0
        self._in_line = False
        self._live: Live | None = None

    # a question, as it happens

    def writing(self, text: str) -> None:
        start = call_start(text)
        self._write(text, start)
        if self._console.is_terminal and start < len(text):
            self._show_passing(text[start:])

    def reply(self, message: Message) -> None:
        self._end_passing()
        text, calls = str(message["content"]), message.get("tool_calls") or []
        rest = max(call_start(text), self._written) if calls else self._written
        if not calls:
            for block in _FENCED.finditer(text, rest):
                self._write(text, block.start())
                self._end_line()
                self._print(Text("  "), sql(block[1], indent=2))
                self._written = block.end() + text.startswith("\n", block.end())
            rest = len(text)
        self._write(text, rest)
        self._end_line()
        for call in calls:
            self._print(Text("  "), *_call(call["function"]["name"], call["function"]["arguments"]))
        self._written = 0

    def answers(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if not message["content"]:
                continue  # the query was handed in to be judged, and was not run to be read
            self._print(Text("  → ", style="dim"), Text(visible(str(message["content"])), style="cyan"))

    def ended(self, answered: Answered) -> None:
        record = answered.record
        if why := self._why(answered):
            self._print(Text(visible(why), style="yellow"))
        if record.task_id == OWN:
            verdict = Text("no judge: the question is your own", style="dim")
        elif record.score.value is None:
            verdict = Text(f"not judged ({record.score.reason})", style="yellow")
        elif record.score.reason == OWN_REWARD:
            solved = "" if record.success is None else ", solved" if record.success == 1.0 else ", not solved"
            verdict = Text(f"reward {record.score.value:g}{solved}", style="bold")
        elif record.score.value == 1.0:
            verdict = Text("judge: correct", style="bold green")
        else:
            verdict = Text(f"judge: wrong ({record.score.reason})", style="bold red")
        wrong = record.score.value is not None and record.score.value != 1.0
        why = why_wrong(record.comparison) if wrong and record.comparison else ""
        replies = "1 reply" if record.num_turns == 1 else f"{record.num_turns} replies"
        self._print(verdict, Text(f"  {replies}, {record.completion_tokens} tokens, {record.seconds:.1f} s", "dim"))
        if why:
            self._print(Text(visible(why)))

    def _why(self, answered: Answered) -> str:
        stop = answered.record.stop_reason
        if answered.stopped:
            return "stopped; the reply so far stays in the conversation"
        if answered.cut:
            return f"cut off: a reply has at most {self._max_new_tokens} tokens (--max-tokens) and has to fit"
        return {
            "max_turns": "no answer: out of replies",
            "max_tokens": "the conversation is as long as the model or its protocol can read; :new begins another",
            "max_sql_time": "no answer: its statements took too long together",
            "malformed": "the reply has no form that the protocol can read",
            "db_unavailable": f"the database is gone: {answered.record.error}; :new opens another",
            "environment_error": f"the environment failed: {answered.record.error}",
            "table_error": f"the tables cannot be made: {answered.record.error}",
        }.get(stop, "")

    # what was asked for

    def note(self, text: str, style: str = "") -> None:
        self._print(Text(visible(text), style=style))

    def commands(self) -> None:
        for name, meaning in COMMANDS.items():
            self._print(Text(f"  {name:9}", style="bold"), Text(meaning))
        self._print(Text("  anything else is a question; Ctrl-C stops a reply"))

    def tables(self, tables: Sequence[Table]) -> None:
        for table in tables:
            grid = Grid(title=f"{visible(table.name)}, {_count(len(table.rows), 'row')}", title_justify="left")
            for column in table.columns:
                grid.add_column(Text(visible(column.name)))
            for row in table.rows[:SHOWN_ROWS]:
                grid.add_row(*map(_cell, row))
            if len(table.rows) > SHOWN_ROWS:
                grid.add_row("…")
            self._console.print(grid)

    def tasks(self, tasks: Sequence[tuple[str, str]]) -> None:
        if not tasks:
            self.note("no tasks at hand; they come from --tasks, or are generated where --database is not given")
        for number, (kind, question) in enumerate(tasks[:SHOWN_TASKS], 1):
            number_and_kind = Text(f"{number:4}  ").append(f"{visible(kind):16}  ", "dim")
            line = number_and_kind.append(_one_line(question))
            self._console.print(line, overflow="ellipsis", no_wrap=True)
        if len(tasks) > SHOWN_TASKS:
            self.note(f"and {len(tasks) - SHOWN_TASKS} more: :task N takes any up to {len(tasks)}")

    # on the console

    def _write(self, text: str, end: int) -> None:
        if end > self._written:
            new = Text(visible(text[self._written : end]))
            thinking = text[: self._written].rfind("<think>") > text[: self._written].rfind("</think>")
            new.stylize("dim italic" if thinking else "")
            self._console.print(new, end="", soft_wrap=True)
            self._written, self._in_line = end, text[end - 1] != "\n"

    def _end_line(self) -> None:
        if self._in_line:
            self._console.print()
        self._in_line = False

    def _show_passing(self, text: str) -> None:
        if self._live is None:
            self._end_line()
            self._live = Live(console=self._console, transient=True, refresh_per_second=12)
            self._live.start()
        room = max(self._console.width - 3, 1)
        self._live.update(Text("  " + _one_line(text)[-room:], style="dim"))

    def _end_passing(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, *parts: Text) -> None:
        self._console.print(Text.assemble(*parts), soft_wrap=True)


def why_wrong(compared: dict[str, Any]) -> str:
    """One fact a line of a `Comparison`; it holds the solution and is for a person's eyes alone."""
    whose = ("the reference alone leaves", "the agent alone leaves") if compared["state"] else ("expected", "got")
    order = ", in this order" if compared["ordered"] else ""
    lines = [
        compared["error"],
        f"{whose[0]} {_rows(compared['expected'])}{order}" if compared["expected"] else "",
        f"{whose[1]} {_rows(compared['returned'])}" if compared["returned"] else "",
        f"reference: {compared['reference']}" if compared["reference"] else "",
    ]
    return "\n".join(f"  {line}" for line in lines if line)


def _rows(shown: dict[str, Any]) -> str:
    rows = ", ".join(json.dumps(row, ensure_ascii=False) for row in shown["rows"])
    more = ", …" if shown["count"] > len(shown["rows"]) else ""
    return f"{_count(shown['count'], 'row')}{': ' if rows else ''}{rows}{more}"


def call_start(text: str) -> int:
    """Where a call begins, or may be about to begin, in an unfinished reply; its length if none does."""
    starts = [place for marker in MARKERS if (place := text.find(marker)) >= 0]
    if starts:
        return min(starts)
    longest = max(len(marker) for marker in MARKERS) - 1
    for place in range(max(0, len(text) - longest), len(text)):
        if any(marker.startswith(text[place:]) for marker in MARKERS):
            return place
    return len(text)


def sql(statement: str, *, indent: int) -> Text:
    text = Syntax("", "mysql", theme="ansi_dark").highlight(visible(statement).replace("\n", "\n" + " " * indent))
    text.rstrip()
    return text


def visible(text: str) -> str:
    """The text with control characters, except line break and tab, replaced by visible symbols."""
    return "".join(
        chr(0x2400 + ord(c)) if c < " " and c not in "\n\t" else "␡" if "\x7f" <= c <= "\x9f" else c for c in text
    )


def _call(name: str, arguments: str) -> list[Text]:
    label = Text(f"{visible(name)}  ", style="bold magenta")
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        return [label, Text(visible(arguments))]
    value = next(iter(values.values()), "") if isinstance(values, dict) else values
    if name == "execute_sql" and isinstance(value, str):
        return [label, sql(value, indent=len(label) + 2)]
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return [label, Text(visible(shown), style="bold")]


def _cell(cell: Cell) -> Text:
    return Text("NULL", style="dim") if cell is None else Text(_one_line(str(cell)))


def _one_line(text: str) -> str:
    return visible(" ".join(text.split()))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
