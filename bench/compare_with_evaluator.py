"""Compare the judges `spider` and `bird` with the published code: `python -m bench.compare_with_evaluator FOLDER`.

FOLDER holds a copy of taoyds/test-suite-sql-eval (`exec_eval.py`) or of bird-bench/mini_dev (`evaluation_ex.py`), which
is imported and asked about the same pairs as our judge: random results, generated queries over a small database of odd
values, and with `--database` and `--questions` the references of those questions and what they are changed into, whose
verdicts `--save` writes for the tests. A pair that one of the two does not judge is counted
apart. Spider's code needs the package sqlparse. No pair writes, and the published code gets a copy of the database.
"""

from __future__ import annotations

from agentgrpo.commands import execute, starting

if __name__ == "__main__":
    starting()

import contextlib
import importlib
import io
import json
import random
import re
import shutil
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.progress import track

from agentgrpo.flags import Parser
from dbbench_adapter.datatypes import Rows
from dbbench_adapter.engines.sqlite.databases import DatabaseFiles
from sql_agent.settings.groups import AgentConfig
from sql_agent.text_to_sql.datatypes import Question
from sql_agent.text_to_sql.environment import TextToSql
from sql_agent.text_to_sql.judges import ExecutionJudge, same_result
from sql_agent.text_to_sql.load import read_questions

# Disagreements that are printed.
SHOWN = 10
_SEED = 0
_CHARACTERS = {True: "1", False: "0", None: "-"}
ODD_VALUES = """
CREATE TABLE odd (id INTEGER PRIMARY KEY, n, t TEXT, "distinct" INT, "begin" TEXT);
INSERT INTO odd (n, t, "distinct", "begin") VALUES
 (1, 'a', 1, 'x'), (1.0, 'b', 1, 'x'), (1.5, 'A', 2, 'y'), ('1', ' a ', 2, 'order by'), (NULL, NULL, 3, 'distinct'),
 (0, '', 3, 'it''s'), (2, CAST(x'41ff' AS TEXT), 4, 'a; b'), (2, CAST(x'41fe' AS TEXT), 4, '-- no'),
 (x'41', 'none', NULL, '1 > = 2'), (0.1 + 0.2, '1', 5, 'a'), (0.3, 'Null', 5, 'b'), (9007199254740993, '1.0', 6, 'c');
"""
_COLUMNS = ("id", "n", "t", '"distinct"', '"begin"', "1", "1.0", "1.5", "'it''s; no'", "count(*)", "NULL", "n + 0")
_CLAUSES = (
    "", "", " WHERE id > 3", " WHERE id >= 9", " WHERE n = 1", " WHERE 0", ' GROUP BY "distinct"', " ORDER BY id",
    " ORDER BY n", " ORDER BY 1 DESC", " LIMIT 3", " WHERE t = 'distinct'", " WHERE id > = 5", " WHERE id IN (7, 8)",
    ' WHERE "begin" <> \'order by\'', " WHERE t LIKE 'a'",
)  # fmt: skip
_CELLS = (1, 1.0, 2, 1.5, 0, "1", "a", "b", None, b"a", -1, -1.0, 10, 9.5)


class EvaluatorError(ValueError):
    """A folder holds no evaluator that can be imported."""


@dataclass(frozen=True)
class Evaluator:
    judge: ExecutionJudge
    of_queries: Callable[[Path, str, str], bool | None]
    """The verdict on a prediction and a reference; None if it has none."""
    of_results: Callable[[Rows, Rows, bool], bool]
    """The verdict on two results, and whether their order counts."""


@dataclass(frozen=True)
class Pair:
    db_id: str
    prediction: str
    reference: str


def imported(folder: Path) -> Evaluator:
    """Import the evaluator in a folder.

    Raises:
        EvaluatorError: there is none, or a package is missing that it needs.
    """
    for name, make in (("exec_eval", _spider), ("evaluation_ex", _bird)):
        found = next((place for place in (folder, folder / "evaluation") if (place / f"{name}.py").is_file()), None)
        if found is None:
            continue
        sys.path.insert(0, str(found))
        for package in ("func_timeout", "psycopg2", "pymysql", "tqdm"):  # for time limits, servers and bars alone
            with contextlib.suppress(ImportError):
                importlib.import_module(package)
                continue
            sys.modules[package] = ModuleType(package)
            sys.modules[package].__dict__.update(func_timeout=None, FunctionTimedOut=TimeoutError)
        try:
            return make(importlib.import_module(name))
        except ImportError as error:
            raise EvaluatorError(f"{found / name}.py cannot be imported ({error}); install what it needs") from None
    raise EvaluatorError(
        f"{folder} holds neither exec_eval.py nor evaluation_ex.py; give a copy of taoyds/test-suite-sql-eval or of "
        "bird-bench/mini_dev"
    )


def _spider(module: ModuleType) -> Evaluator:
    def of_queries(database: Path, prediction: str, reference: str) -> bool | None:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                return bool(module.eval_exec_match(str(database), prediction, reference, False, False, False))
        except Exception:  # the reference fails, or one of the texts cannot be parsed
            return None

    def of_results(given: Rows, expected: Rows, ordered: bool) -> bool:
        return module.result_eq(list(expected), list(given), order_matters=ordered)

    return Evaluator("spider", of_queries, of_results)


def _bird(module: ModuleType) -> Evaluator:
    def of_queries(database: Path, prediction: str, reference: str) -> bool | None:
        try:
            return bool(module.execute_sql(prediction, reference, str(database), "SQLite", module.calculate_ex))
        except Exception:  # an error of either query is a wrong answer there
            return False

    return Evaluator("bird", of_queries, lambda given, expected, ordered: bool(module.calculate_ex(given, expected)))


def generated(count: int, rng: random.Random) -> Iterator[Pair]:
    for _ in range(count):
        first = _query(rng)
        second = first if rng.random() < 0.5 else _query(rng)
        yield Pair("odd", changed(first, rng), changed(second, rng) if rng.random() < 0.3 else second)


def _query(rng: random.Random) -> str:
    columns = ", ".join(rng.choices(_COLUMNS, k=rng.randint(1, 3)))
    return f"SELECT {rng.choice(('', 'DISTINCT '))}{columns} FROM odd{rng.choice(_CLAUSES)}"


def of_questions(questions: Sequence[Question], count: int, rng: random.Random) -> Iterator[Pair]:
    """Yield references with what they, or another reference, are changed into."""
    for _ in range(count):
        question, other = rng.choices(questions, k=2)
        prediction = (question if rng.random() < 0.8 else other).query or ""
        yield Pair(question.db_id, changed(prediction, rng), question.query or "")


def changed(query: str, rng: random.Random) -> str:
    """The query after one or two changes, most of which leave a query that runs."""
    for _ in range(rng.randint(1, 2)):
        query = rng.choice(_CHANGES)(query)
    return query


def _put(pattern: str, text: str) -> Callable[[str], str]:
    return lambda query: re.sub(pattern, text, query, count=1, flags=re.IGNORECASE | re.DOTALL)


_CHANGES: tuple[Callable[[str], str], ...] = (
    lambda query: query,
    *(_put("^SELECT ", f"SELECT {text} ") for text in ("DISTINCT", "distinct", "/* it's */", "1,", "1.0,")),
    _put("^SELECT ", "SELECT -- don't\n"),
    *(_put(r" FROM ", f"{text} FROM ") for text in (", 1", ", 1.0", ", 1.5", ", 'it\\'", ", NULL", " /* distinct */")),
    _put(r"^SELECT\s+(.*?)\s*,\s*(.*?)\s+FROM ", r"SELECT \2, \1 FROM "),
    _put(r"\bDISTINCT\b", ""),
    _put(r"\bDISTINCT\b", "DISTINCT/**/"),
    _put(r">\s*=?", "> ="),
    _put(r"<>", "! ="),
    _put(r"(\d+)", r"\1.0"),
    _put(r"(\d+)", r"\g<1>1"),
    _put(r"'", '"'),
    _put(r" ORDER BY ", " ORDER/**/BY "),
    _put(r" ORDER BY .*", ""),
    _put(r"\bcount\b", "total"),
    *(lambda query, end=end: query + end for end in (
        ";", " ;", "; SELECT 1", ";SELECT 1; SELECT 2", "; -- end", "; # end", ";\n# end", " -- it's; SELECT 2", ";;",
        " ORDER BY 1", " ORDER BY 1 DESC", " LIMIT 2", " LIMIT 2 OFFSET 1", " WHERE 0", " UNION SELECT 1",
        " /* order by */", "; SELECT 'order by'", " AND", ")",
    )),
    lambda query: f"SELECT * FROM ({query.rstrip('; ')})",
    lambda query: f"{query} UNION ALL {query}",
    lambda query: f"; {query}",
    lambda query: f"-- a comment\n{query}",
    str.lower,
    lambda _: "-- nothing",
    lambda _: ";",
    lambda _: "",
)  # fmt: skip


def random_results(count: int, rng: random.Random) -> Iterator[tuple[Any, Any]]:
    for _ in range(count):
        width, pool = rng.randint(1, 4), rng.choices(_CELLS, k=4)
        rows = [tuple(rng.choices(pool, k=width)) for _ in range(rng.randint(0, 5))]
        order = rng.sample(range(width), width)
        other = [tuple(row[place] for place in order) for row in rng.sample(rows, len(rows))]
        if other and rng.random() < 0.6:
            place, column = rng.randrange(len(other)), rng.randrange(width)
            cell = other[place][column]
            as_float = float(cell) if isinstance(cell, int) else rng.choice(pool)
            other[place] = (*other[place][:column], as_float, *other[place][column + 1 :])
        yield tuple(other), tuple(rows)


def ours(environment: TextToSql, pair: Pair) -> bool | None:
    question = Question("pair", "?", pair.db_id, pair.reference)
    with closing(environment.open(question, AgentConfig())) as episode:
        episode.call_tool("submit_sql", json.dumps({"sql": pair.prediction}))
        value = environment.judge(episode).value
    return None if value is None else value == 1.0


def of_pairs(evaluator: Evaluator, place: Path, pairs: Sequence[Pair]) -> list[tuple[bool | None, bool | None]]:
    """The verdicts on pairs, the evaluator's first.

    Args:
        place: the file or the folder of the databases.
    """
    found = []
    with tempfile.TemporaryDirectory() as folder, TextToSql(place, evaluator.judge) as environment:
        copies = dict[str, Path]()
        for pair in track(pairs, f"{evaluator.judge}: pairs of queries"):
            if pair.db_id not in copies:
                copies[pair.db_id] = Path(folder, str(len(copies)), "copy.sqlite")
                copies[pair.db_id].parent.mkdir()
                shutil.copy(DatabaseFiles(place).files[pair.db_id], copies[pair.db_id])
            theirs = evaluator.of_queries(copies[pair.db_id], pair.prediction, pair.reference)
            found.append((theirs, ours(environment, pair)))
    return found


def report(name: str, verdicts: Sequence[tuple[bool | None, bool | None]], shown: Sequence[str]) -> int:
    """Print how many verdicts agree, and the first that do not; return how many do not."""
    counts = Counter(verdicts)
    judged = sum(count for pair, count in counts.items() if None not in pair)
    unlike = [i for i, (theirs, our) in enumerate(verdicts) if None not in (theirs, our) and theirs != our]
    theirs, our = counts[None, True] + counts[None, False], counts[True, None] + counts[False, None]
    print(
        f"{name}: {judged - len(unlike):,} of {judged:,} verdicts agree; right by both {counts[True, True]:,}, by the "
        f"evaluator alone {counts[True, False]:,}, by ours alone {counts[False, True]:,}; no verdict of the "
        f"evaluator {theirs:,}, of ours {our:,}, of both {counts[None, None]:,}"
    )
    for i in unlike[:SHOWN]:
        print(f"  evaluator {verdicts[i][0]}, ours {verdicts[i][1]}: {shown[i]}")
    return len(unlike)


def compare(evaluator: Evaluator, count: int, rng: random.Random) -> int:
    results = list(random_results(count, rng))
    verdicts = []
    for number, (given, expected) in enumerate(results):
        reference = f"SELECT 1{' ORDER BY 1' * (number % 2)}"
        theirs = evaluator.of_results(given, expected, number % 2 == 1)
        verdicts.append((theirs, same_result(evaluator.judge, given, expected, reference)))
    unlike = report(f"{evaluator.judge}, random results", verdicts, [f"{g} and {e}" for g, e in results])
    with tempfile.TemporaryDirectory() as folder:
        odd = Path(folder, "odd.sqlite")
        with closing(sqlite3.connect(odd)) as connection:
            connection.executescript(ODD_VALUES)
        pairs = list(generated(count, rng))
        unlike += report(
            f"{evaluator.judge}, generated queries",
            of_pairs(evaluator, odd, pairs),
            [f"{pair.prediction!r} for {pair.reference!r}" for pair in pairs],
        )
    return unlike


def compare_references(evaluator: Evaluator, place: Path, pairs: Sequence[Pair], save: Path | None) -> int:
    verdicts = of_pairs(evaluator, place, pairs)
    if save is not None:
        written = json.loads(save.read_text("utf-8")) if save.is_file() else {}
        written[evaluator.judge] = "".join(_CHARACTERS[theirs] for theirs, _ in verdicts)
        save.write_text(json.dumps(written, indent=1) + "\n", "utf-8")
    shown = [f"{pair.prediction!r} for {pair.reference!r}" for pair in pairs]
    return report(f"{evaluator.judge}, changed references", verdicts, shown)


def question_pairs(place: Path, files: Sequence[Path], count: int) -> list[Pair]:
    """The pairs of questions about the databases at a path, the same ones each time."""
    with TextToSql(place) as environment:
        read = [question for file in files for question in read_questions(file, environment.databases)]
    asked = [question for question in read if question.query is not None and not question.changes]
    return list(of_questions(asked, count, random.Random(_SEED)))


def main() -> None:
    parser = Parser(prog="python -m bench.compare_with_evaluator", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="copy of the published evaluator")
    parser.add_argument("--database", type=Path, metavar="PATH", help="SQLite file, or folder DB_ID/DB_ID.sqlite")
    parser.add_argument("--questions", type=Path, nargs="+", default=[], metavar="FILE", help="questions about it")
    parser.add_argument("--pairs", type=int, default=4_000, help="pairs of each kind (default: 4000)")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the evaluator's verdicts about the references")
    args = parser.parse_args()
    if (args.database is None) != (not args.questions):
        parser.error("--database and --questions go together: the references of the questions are run on the database")
    try:
        evaluator = imported(args.folder)
    except EvaluatorError as error:
        parser.error(str(error))
    unlike = compare(evaluator, args.pairs, random.Random(_SEED))
    if args.database is not None:
        pairs = question_pairs(args.database, args.questions, args.pairs)
        unlike += compare_references(evaluator, args.database, pairs, args.save)
    raise SystemExit(unlike > 0)


if __name__ == "__main__":
    execute(main)
