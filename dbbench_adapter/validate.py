"""Check task files: name what they hold, and everything that is wrong with them, by file, row and field.

    agentgrpo tasks validate FILE [FILE...] [--replay sqlite|mariadb]

`load_tasks` stops at the first bad row; this command names all of them. It also finds tables that no database accepts,
golds that no judge can use, and prompts that occur twice. `--replay` runs every reference statement and compares its
result with the stored gold. The exit status is 1 if anything is wrong. The queries of AgentBench's SELECT kinds are not
run, since their labels come from the source question sets, not from these queries.
"""

from __future__ import annotations

if __name__ == "__main__":
    from agentgrpo.commands import run_module

    run_module("dbbench_adapter.validate")

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentgrpo.commands import failed
from agentgrpo.flags import Parser
from dbbench_adapter.datatypes import Rows, Task
from dbbench_adapter.dialect.sql_types import to_cell
from dbbench_adapter.engines import Backend, BackendUnavailable, TableError, known_backends, open_backend
from dbbench_adapter.judges.strict import same_rows
from dbbench_adapter.statement_clock import LEFT_OUT
from dbbench_adapter.tasks.load import TaskFileError, raw_records, task_file
from dbbench_adapter.tasks.records import RecordError, RowFault, read_task, record_form

MAX_SHOWN_CHARS = 200


@dataclass(frozen=True)
class FieldNames:
    table: str
    columns: str
    """The name below `table`."""
    rows: str
    """The name below `table`."""
    sql: str
    answers: str
    table_hash: str


FIELDS = {
    "agentbench": FieldNames("table", "table_info.columns", "table_info.rows", "label", "label", "answer_md5"),
    "lifelong": FieldNames(
        "table_info", "column_info_list", "row_list", "answer_info.sql", "answer_info.direct", "answer_info.md5"
    ),
    "own": FieldNames("tables", "columns", "rows", "gold.sql", "gold.answers", "gold.table_hash"),
}


@dataclass(frozen=True)
class ReadRow:
    where: str
    fields: FieldNames
    task: Task


@dataclass
class FileReport:
    path: Path
    num_rows: int = 0
    forms: Counter[str] = field(default_factory=Counter)
    rows: list[ReadRow] = field(default_factory=list)
    """Every row that could be read."""
    faults: list[RowFault] = field(default_factory=list)
    replayed: int | None = None
    """The number of references that were run; None without `--replay`."""
    refused: int = 0
    """Those of them that SQLite refuses and MariaDB runs."""


def check_task_file(path: Path) -> FileReport:
    """Raises TaskFileError: the file cannot be read at all."""
    path = task_file(path)
    report = FileReport(path)
    for record in raw_records(path):
        report.num_rows += 1
        try:
            if isinstance(record, RowFault):
                raise RecordError([record])
            form = record_form(record)
            report.forms[form] += 1
            report.rows.append(ReadRow(record.where, FIELDS[form], read_task(record)))
        except RecordError as error:
            report.faults += error.faults
    for row in report.rows:
        report.faults += table_faults(row)
        report.faults += gold_faults(row)
    report.faults += _repeated(report.rows)
    return report


def table_faults(row: ReadRow) -> Iterator[RowFault]:
    # `check_tables` stops at the first fault.
    tables = row.task.tables
    names = [table.name.casefold() for table in tables]
    for index, table in enumerate(tables):
        path = row.fields.table if len(tables) == 1 else f"{row.fields.table}.{index}"
        if not table.name or names.count(table.name.casefold()) > 1:
            yield RowFault(row.where, path, f"expected a table name of its own, found {table.name!r}")
        for problem in _header_problems([column.name for column in table.columns]):
            yield RowFault(row.where, f"{path}.{row.fields.columns}", problem)
        for number, cells in enumerate(table.rows):
            if len(cells) != len(table.columns):
                problem = f"expected {len(table.columns)} cells, one per column, found {len(cells)}"
                yield RowFault(row.where, f"{path}.{row.fields.rows}.{number}", problem)


def _header_problems(columns: Sequence[str]) -> Iterator[str]:
    folded = [column.casefold() for column in columns]
    if not columns or "" in columns:
        yield f"expected named columns, found {columns}"
    twice = list(dict.fromkeys(column for column in columns if column and folded.count(column.casefold()) > 1))
    if twice:
        yield f"expected each column name once, found {', '.join(map(repr, twice))} more than once"


def gold_faults(row: ReadRow) -> Iterator[RowFault]:
    gold = row.task.gold
    if row.task.changes_state:
        if gold.sql is None and gold.table_hash is None:
            yield RowFault(row.where, row.fields.sql, "expected the reference statement of a change, found none")
    elif gold.label_text is not None:
        if gold.rows is None:
            found = gold.label_text[:MAX_SHOWN_CHARS]
            problem = f"expected a list of values or a printed list of rows, found {found!r}"
            yield RowFault(row.where, row.fields.answers, problem)
    elif not gold.answers and gold.rows is None:
        yield RowFault(row.where, row.fields.answers, "expected at least one answer, found none")


def _repeated(rows: Sequence[ReadRow]) -> Iterator[RowFault]:
    ids: dict[str, str] = {}
    prompts: dict[tuple[str, str, str], str] = {}
    for row in rows:
        task = row.task
        if (first := ids.setdefault(task.id, row.where)) != row.where:
            yield RowFault(row.where, "id", f"{task.id!r} is also the id of {first}; expected one row per id")
        prompt = (task.question, task.table_note, task.evidence)
        if (first := prompts.setdefault(prompt, row.where)) != row.where:
            yield RowFault(row.where, "", f"asks the same of the same table as {first}; expected each prompt once")


# Replaying references -------------------------------------------------------------------------------------------------


def replay_faults(report: FileReport, backend: Backend) -> Iterator[RowFault]:
    """Run each reference on a fresh database and compare with the stored hash or rows; `report.replayed` counts them.

    Rows are compared as the `strict` judge does. A task whose table has a fault is left out.

    Raises:
        BackendUnavailable: the server is gone.
    """
    report.replayed = 0
    for row in report.rows:
        if has_reference(row.task) and not any(table_faults(row)):
            report.replayed += 1
            fields = row.fields
            if (problem := replay_reference(row.task, backend)) is not None:
                report.refused += LEFT_OUT in problem
                yield RowFault(row.where, fields.table_hash if row.task.changes_state else fields.answers, problem)


def has_reference(task: Task) -> bool:
    """Whether the file has a statement and its result; a change needs only the statement."""
    return task.gold.sql is not None and (task.changes_state or task.gold.rows is not None)


def replay_reference(task: Task, backend: Backend) -> str | None:
    """None if the reference runs and gives the stored gold, else the difference in words.

    Args:
        task: a task that `has_reference`.
    """
    gold = task.gold
    assert gold.sql is not None
    try:
        with backend.open(task.tables, typed=task.typed) as database:
            result = database.run(gold.sql)
            found_hash = database.table_hash(task.tables) if task.changes_state else None
    except TableError as error:
        return f"replay: the table cannot be made ({error})"
    if result.error is not None:
        return f"replay: the reference does not run ({result.error})"
    if task.changes_state:
        same = gold.table_hash in (None, found_hash)
        return None if same else f"replay: expected table hash {gold.table_hash}, found {found_hash}"
    rows = tuple(tuple(to_cell(cell) for cell in row) for row in result.rows or ())
    return _difference(rows, gold.rows or (), ordered=task.ordered)


def _difference(found: Rows, expected: Rows, *, ordered: bool) -> str | None:
    if same_rows(found, expected, ordered=ordered):
        return None
    if same_rows(found, expected, ordered=False):
        return "replay: the expected rows in another order; where ORDER BY ties, the server chooses"
    return (
        f"replay: expected {len(expected)} row(s) {str(list(expected))[:MAX_SHOWN_CHARS]}, "
        f"found {len(found)} {str(list(found))[:MAX_SHOWN_CHARS]}"
    )


# The command ----------------------------------------------------------------------------------------------------------


def report_lines(report: FileReport) -> Iterator[str]:
    faulty = {fault.where for fault in report.faults}
    verdict = f"{len(faulty)} with faults" if faulty else "nothing wrong"
    yield f"{report.path}: {report.num_rows} rows ({_counts(report.forms)}), {verdict}"
    tasks = [row.task for row in report.rows]
    for name, counts in (
        ("kinds", Counter(task.kind for task in tasks)),
        ("sources", Counter(task.source for task in tasks)),
        ("skills", Counter(skill for task in tasks for skill in task.skills)),
    ):
        if counts:
            yield f"  {name}: {_counts(counts)}"
    if report.replayed is not None:
        yield f"  replayed: {report.replayed} references, {len(tasks) - report.replayed} rows without one to replay"
        if report.refused:
            yield f"  refused: {report.refused} references; SQLite does not run them, --replay mariadb does"
    for fault in report.faults:
        yield f"{report.path}, {fault}"


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counter.items())) or "none readable"


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="agentgrpo tasks validate", description="Check task files; exit status 1 when one is wrong.")
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="task files of any form")
    parser.add_argument("--replay", metavar="BACKEND", help=f"run every reference on {known_backends()}")
    args = parser.parse_args(argv)
    reports: list[FileReport] = []
    wrong = False
    for file in args.files:
        try:
            reports.append(check_task_file(file))
        except TaskFileError as error:
            print(error)
            wrong = True
    try:
        if args.replay:
            with open_backend(args.replay) as backend:
                for report in reports:
                    report.faults += replay_faults(report, backend)
    except (BackendUnavailable, ValueError) as error:
        return failed(error, 2)
    for report in reports:
        print("\n".join(report_lines(report)))
    return int(wrong or any(report.faults for report in reports))
