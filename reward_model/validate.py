"""Describes a converted file and lists everything that is wrong with it: `agentgrpo reward validate FILE`.

`read_preferences` stops at the first bad row; this command names all of them, and finds pairs that teach nothing. The
exit status is 1 if anything is wrong. Pairs that occur twice, or in both orders, are named but are not a fault, because
several people's judgements contain them. It cannot tell whether a preference is right.
"""

from __future__ import annotations

if __name__ == "__main__":
    from agentgrpo.commands import run_module

    run_module("reward_model.validate")

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from agentgrpo.chat.conversations import RowError, normalize_tool_call_ids
from agentgrpo.commands import failed
from agentgrpo.flags import Parser
from agentgrpo.hub_rows import named_rows
from reward_model.datatypes import Preference
from reward_model.measures import PairSummary
from reward_model.preferences import PreferenceFileError, describe_row_faults, numbered_lines

MAX_LISTED = 50


@dataclass
class ValidationReport:
    path: Path
    rows: int = 0
    faulty_rows: int = 0
    faults: int = 0
    listed: list[str] = field(default_factory=list)
    summary: PairSummary = field(default_factory=PairSummary)

    def lines(self) -> list[str]:
        verdict = f"{self.faults} faults in {self.faulty_rows} of them" if self.faults else "nothing wrong"
        more = [f"... and {self.faults - len(self.listed)} more"] if self.faults > len(self.listed) else []
        return [f"{self.path}: {self.rows} rows, {verdict}", *self.summary.lines(), *self.listed, *more]


def check_preference_file(path: Path) -> ValidationReport:
    """Raises PreferenceFileError: the file is missing, or holds no row."""
    report = ValidationReport(path)
    for number, line in numbered_lines(path):
        report.rows += 1
        faults = list(_faults(line, number, report.summary))
        report.faulty_rows += bool(faults)
        report.faults += len(faults)
        report.listed += [f"{path}, row {number}, {fault}" for fault in faults[: MAX_LISTED - len(report.listed)]]
    return report


def _faults(line: bytes, number: int, summary: PairSummary) -> Iterator[str]:
    try:
        preference = Preference.model_validate_json(line)
    except ValidationError as error:
        yield from describe_row_faults(error)
        return
    # a fault of the prompt is found on both sides and counts once
    problems = list(dict.fromkeys(f for side in ("chosen", "rejected") for f in _side_faults(preference, side)))
    if preference.chosen == preference.rejected:
        problems.append("rejected: says the same as chosen; leave the row out")
    if (fault := preference.rendered_part) is not None:
        problems.append(": ".join(fault))
    if not any(message.role == "user" for message in preference.prompt):
        problems.append("prompt: holds no user message")
    if not problems:
        summary.add(preference, number)
    yield from problems


def _side_faults(preference: Preference, name: str) -> Iterator[str]:
    side = getattr(preference, name)
    if side[-1].is_empty:
        yield f"{name}: ends with an empty reply"
    try:
        normalize_tool_call_ids([*preference.prompt, *side], name, num_prompt=len(preference.prompt))
    except RowError as problem:
        yield str(problem)


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(
        prog="agentgrpo reward validate", description="Check converted files; exit status 1 when one is wrong."
    )
    parser.add_argument("files", type=named_rows, nargs="+", metavar="FILE", help="files of agentgrpo reward convert")
    args = parser.parse_args(argv)
    wrong = 0
    for path in args.files:
        try:
            report = check_preference_file(path)
        except PreferenceFileError as error:
            wrong |= failed(error)
            continue
        print("\n".join(report.lines()))
        wrong |= report.faults > 0
    return int(wrong)
