"""Converts preference data of common forms: `agentgrpo reward convert --input=raw.jsonl --output=X`.

It writes TRL's conversational form, one `Preference` per line. A row that cannot be converted goes to a side file with
the reason; each kind of change or omission is counted by name. JSON Lines and parquet are streamed, and the output
appears once it is complete. `reward_model.pair_forms` holds the forms, and doc/guides/reward_model.md shows them.
"""

if __name__ == "__main__":
    from agentgrpo.commands import run_module

    run_module("reward_model.convert_dpo_format")

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tqdm import tqdm

from agentgrpo.chat.conversations import RowError
from agentgrpo.columns import parse_columns
from agentgrpo.commands import failed
from agentgrpo.disk_errors import OutputError, format_disk_error
from agentgrpo.flags import Parser
from agentgrpo.hub_rows import named_rows
from agentgrpo.outputs import check_output, written
from agentgrpo.row_files import NotReadOn
from reward_model.datatypes import Preference
from reward_model.measures import PairSummary
from reward_model.pair_forms import FORMS, Converter
from reward_model.preferences import Numbered, PreferenceFileError, raw_rows, write_preferences

MAX_REJECTS_LISTED = 5


@dataclass
class Conversion:
    # `preferences` does the work, and the fields count it.

    file: str
    converter: Converter
    rejects: IO[str]
    summary: PairSummary = field(default_factory=PairSummary)
    rows: int = 0
    read_to_its_end: bool = True
    rejected: Counter[str] = field(default_factory=Counter)
    """Rejected rows by the field at fault, with numbers in its name as `*`."""
    first_rejects: list[str] = field(default_factory=list)

    def preferences(self, rows: Iterable[Numbered]) -> Iterator[Preference]:
        for number, value in rows:
            self.rows += 1
            try:
                if isinstance(value, RowError):
                    raise value
                preference = self.converter(value, self._metadata(value, number))
            except RowError as problem:
                self.read_to_its_end &= not isinstance(problem, NotReadOn)
                self._reject(number, problem)
                continue
            self.summary.add(preference, number)
            yield preference

    def _metadata(self, row: object, number: int) -> dict[str, object]:
        given = row.get("metadata") if isinstance(row, dict) else None
        if isinstance(given, dict) and given.keys() == {"source", "original"} and {*map(type, given.values())} == {str}:
            return given
        try:
            original = "" if given is None else json.dumps(given, default=str)
        except RecursionError:
            raise RowError("metadata", "nested too deeply") from None
        return {"source": f"{self.file}:{number}", "original": original}

    def _reject(self, number: int, problem: RowError) -> None:
        reject = {"file": self.file, "row": number, "field": problem.field, "reason": problem.reason}
        self.rejects.write(json.dumps(reject | {"format": problem.form}) + "\n")
        self.rejected[re.sub(r"\d+", "*", problem.field)] += 1
        if len(self.first_rejects) < MAX_REJECTS_LISTED:
            self.first_rejects.append(f"row {number}, {problem}")

    def lines(self) -> list[str]:
        forms = ", ".join(f"{name} {count}" for name, count in self.converter.forms.most_common())
        counts = f"{self.summary.pairs} converted ({forms or 'none'}), {self.rejected.total()} rejected"
        return [
            f"{self.rows} rows read, {counts}",
            *self.summary.lines(),
            *(f"changed: {name}: {count}" for name, count in sorted(self.converter.changes.items()) if count),
            *(f"rejected for {name}: {count}" for name, count in self.rejected.most_common(20)),
            *(f"  {text}" for text in self.first_rejects),
        ]


def convert_pairs(
    source: Path,
    output: Path,
    rejects: Path,
    *,
    form: str | None = None,
    drop_tools: bool = False,
    columns: str | None = None,
) -> Conversion:
    """A file that would hold no row is not written.

    Args:
        form: one of `FORMS` for all rows; None detects the form of each row.
        columns: the user's names of the columns (`parse_columns`).
    Raises:
        PreferenceFileError: the input cannot be read at all.
    """
    converter = Converter(form, drop_tools, parse_columns(columns))
    rows = raw_rows(source, converter.changes)
    name = source.name.encode(errors="replace").decode()
    with written(rejects) as unfinished:
        with unfinished.open("w", encoding="utf-8") as side_file:
            conversion = Conversion(name, converter, side_file)
            bar = tqdm(rows, unit=" rows", disable=None)  # None shows a bar only on a terminal
            write_preferences(conversion.preferences(bar), output)
        rejects.unlink(missing_ok=True)
        if not conversion.rejected:
            unfinished.unlink()
    return conversion


def is_ours(rejects: Path) -> bool:
    # The next conversion may replace the rejects of an earlier one.
    try:
        with rejects.open(encoding="utf-8") as file:
            first = json.loads(file.readline(1 << 20))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(first, dict) and first.keys() == {"file", "row", "field", "reason", "format"}


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(
        description="Convert preference data (.jsonl, .json, .parquet) to TRL's conversational form.",
        epilog="forms: " + "; ".join(f"{name}: {form.needs}" for name, form in FORMS.items()),
    )
    parser.add_argument(
        "--input", type=named_rows, required=True, help="the file to read; its kind is detected from its content"
    )
    parser.add_argument("--output", type=Path, required=True, help="the .jsonl to write")
    parser.add_argument(
        "--format", choices=list(FORMS), help="the form of all rows; by default it is detected for each row"
    )
    parser.add_argument("--columns", metavar="prompt=COLUMN,...", help="your column names; other columns are ignored")
    parser.add_argument("--drop-tools", action="store_true", help="leave out tool calls, their results and schemas")
    parser.add_argument(
        "--rejects", type=Path, help="file for rows that are not a pair; default OUTPUT with .rejects.jsonl"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the output and the rejects if they exist")
    args = parser.parse_args(argv)
    rejects = args.rejects or args.output.parent / f"{args.output.stem}.rejects.jsonl"
    try:
        for flag, path in (("--output", args.output), ("--rejects", rejects)):
            if path.resolve() == args.input.resolve():
                raise PreferenceFileError(f"{flag} {path} is the --input; name another {flag}")
        if rejects.resolve() == args.output.resolve():
            raise PreferenceFileError(f"--rejects and --output are both {rejects}; name another --rejects")
        check_output(args.output, "--output", overwrite=args.overwrite)
        check_output(rejects, "--rejects", overwrite=args.overwrite or is_ours(rejects))
        conversion = convert_pairs(
            args.input, args.output, rejects, form=args.format, drop_tools=args.drop_tools, columns=args.columns
        )
    except (ValueError, OutputError, OSError) as error:
        return failed(format_disk_error(error))
    print("\n".join(conversion.lines()))
    if conversion.rejected:
        print(f"rejects: {rejects}")
    if not conversion.summary.pairs:
        why = f"all {conversion.rows} rows were rejected, see {rejects}" if conversion.rows else "it holds no row"
        return failed(f"nothing of {args.input} could be converted: {why}; {args.output} was not written")
    print(f"written: {args.output}")
    if conversion.read_to_its_end:
        return 0
    return failed(f"{args.input} was not read to its end, see {rejects}; repair it and convert with --overwrite")
