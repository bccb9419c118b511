"""Say what is in a converted file and everything that is wrong with it: `python -m reward_model.validate FILE`.

Where `read_preferences` stops at the first bad row this names all of them, and finds pairs that teach nothing. Exit
status 1 when anything is wrong. Pairs that occur twice, or also the other way round, are named but are no fault: files
of several people's judgements hold such. Leaves out whether a preference is right.
"""

from __future__ import annotations

from core.commands import execute, starting

if __name__ == "__main__":
    starting()

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from core.conversations import Problem, legal
from reward_model.data.preferences import PreferenceFileError
from reward_model.data.summary import Summary
from reward_model.datatypes import Preference

MAX_SHOWN = 50


@dataclass
class Report:
    path: Path
    rows: int = 0
    faulty_rows: int = 0
    faults: int = 0
    shown: list[str] = field(default_factory=list)
    """The first faults, with row and field."""
    summary: Summary = field(default_factory=Summary)
    """Of the rows without a fault."""

    def lines(self) -> list[str]:
        """The report for a terminal."""
        verdict = f"{self.faults} faults in {self.faulty_rows} of them" if self.faults else "nothing wrong"
        more = [f"... and {self.faults - len(self.shown)} more"] if self.faults > len(self.shown) else []
        return [f"{self.path}: {self.rows} rows, {verdict}", *self.summary.lines(), *self.shown, *more]


def check_file(path: Path) -> Report:
    """Read a file to its end and collect its faults; row 1 is the first line.

    Raises:
        PreferenceFileError: there is no such file, or it holds no row.
    """
    if not path.is_file():
        raise PreferenceFileError(f"{path} does not exist; reward_model/convert_dpo_format.py makes such files")
    report = Report(path)
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            report.rows += 1
            faults = list(_faults(line, number, report.summary))
            report.faulty_rows += bool(faults)
            report.faults += len(faults)
            report.shown += [f"{path}, row {number}, {fault}" for fault in faults[: MAX_SHOWN - len(report.shown)]]
    if not report.rows:
        raise PreferenceFileError(f"{path} holds no row")
    return report


def _faults(line: bytes, number: int, summary: Summary) -> Iterator[str]:
    """Everything wrong with a row as `field: reason`; a row without a fault is added to the summary."""
    try:
        preference = Preference.model_validate_json(line)
    except ValidationError as error:
        for problem in error.errors():
            yield f"{'.'.join(map(str, problem['loc'])) or 'row'}: {problem['msg']}"
        return
    # a fault of the prompt shows on both sides and counts once
    problems = list(dict.fromkeys(f for side in ("chosen", "rejected") for f in _side_faults(preference, side)))
    if preference.chosen == preference.rejected:
        problems.append("rejected: says the same as chosen")
    if not any(message.role == "user" for message in preference.prompt):
        problems.append("prompt: holds no user message")
    if not problems:
        summary.add(preference, number)
    yield from problems


def _side_faults(preference: Preference, name: str) -> Iterator[str]:
    side = getattr(preference, name)
    if not side[-1].content.strip() and not side[-1].tool_calls:
        yield f"{name}: ends with an empty reply"
    try:
        legal([*preference.prompt, *side], name, num_prompt=len(preference.prompt))
    except Problem as problem:
        yield str(problem)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m reward_model.validate", description="Check converted files; exit status 1 when one is wrong."
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    args = parser.parse_args(argv)
    wrong = False
    for path in args.files:
        try:
            report = check_file(path)
        except PreferenceFileError as error:
            print(f"error: {error}", file=sys.stderr)
            wrong = True
            continue
        print("\n".join(report.lines()))
        wrong |= report.faults > 0
    return int(wrong)


if __name__ == "__main__":
    execute(main)
