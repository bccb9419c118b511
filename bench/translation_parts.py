"""What each part of the translation of MySQL to SQLite is worth: `python -m bench.translation_parts FILE...`.

One part after the other is switched off; the references of the task files that no longer give the gold and the
statements of `dbbench_adapter/tests/agent_sql.py` that get another answer are counted.
"""

from __future__ import annotations

from agentgrpo.commands import execute, starting

if __name__ == "__main__":
    starting()

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

from agentgrpo.flags import Parser
from dbbench_adapter.dialect import translate
from dbbench_adapter.dialect.functions import FUNCTIONS, dates, numeric, patterns, text
from dbbench_adapter.engines import open_backend
from dbbench_adapter.tasks.load import load_tasks
from dbbench_adapter.tests import agent_sql
from sql_agent.commands.replay import misses, reads_rows


def _nothing(*_: object) -> None:
    return None


def left_out_parts() -> dict[str, dict[str, object]]:
    """The parts of the translation, each with names below `dbbench_adapter` and their replacements."""
    translate, rewrites = "dialect.translate.", "dialect.rewrites."
    checks = ("refuse", "refuse_reserved", "refuse_row_ids")
    parts: dict[str, dict[str, object]] = {
        "dialect/allowed_sql": {translate + name: _nothing for name in checks},
        "dialect/queries: collation": {rewrites + "collate_computed": _nothing},
        "dialect/sql_types": {
            "dialect.type_inference.TypeInference.kind": _nothing,
            "dialect.type_inference.TypeInference.kinds_of": lambda *_: (),
        },
        "dialect/comparisons": {rewrites + "compare_as_mysql": _nothing, rewrites + "take_arguments": _nothing},
        "dialect/rewrites": {translate + "rewritten": lambda tree, *_: tree},
        "dialect/stored_values": {rewrites + "store": _nothing},
        "dialect/queries: groups": {rewrites + "order_groups": _nothing},
        "engines/sqlite/catalogue": {
            "engines.sqlite.backend.catalogue_answer": _nothing,
            "engines.sqlite.backend.make_views": _nothing,
        },
        "dialect/functions/aggregates": {"engines.sqlite.sandbox.AGGREGATES": {}},
    }
    for module in (dates, numeric, patterns, text):
        gone = {*module.STRICT, *module.NULLS_MATTER}
        kept = {name: function for name, function in FUNCTIONS.items() if name not in gone}
        parts[f"dialect/functions/{module.__name__.rpartition('.')[2]}"] = {"engines.sqlite.sandbox.FUNCTIONS": kept}
    return parts


def print_parts(paths: Sequence[Path]) -> None:
    """Print one row for each part of the translation: its lines, and what changes on SQLite without it."""
    folder = Path(translate.__file__).parents[1]
    tasks = [load_tasks(path) for path in paths]
    complete: tuple[int, list[object]] | None = None
    print("| left out | lines | references lost | statements of agents that change |")
    print("| --- | --- | --- | --- |")
    for part, patches in {"nothing": {}, **left_out_parts()}.items():
        with ExitStack() as stack, open_backend("sqlite") as backend:
            for name, replacement in patches.items():
                stack.enter_context(patch(f"dbbench_adapter.{name}", replacement))
            translate.translated_often.cache_clear()
            missed = [misses(some, backend, "lab" if some[0].typed else "fc", reads_rows(backend))[0] for some in tasks]
            answers: list[object] = [agent_sql.answer(backend, sql) for sql in agent_sql.STATEMENTS]
        lost = sum(map(len, missed))
        complete = complete or (lost, answers)
        changed = sum(one != other for one, other in zip(answers, complete[1], strict=True))
        lines = len((folder / f"{part.partition(':')[0]}.py").read_text("utf-8").splitlines()) if patches else 0
        print(f"| `{part}` | {lines} | {lost - complete[0]} | {changed} |", flush=True)
    translate.translated_often.cache_clear()
    print(f"of {sum(map(len, tasks))} references and {len(agent_sql.STATEMENTS)} statements")


def main() -> None:
    parser = Parser(prog="python -m bench.translation_parts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", help="task files of any form")
    print_parts(parser.parse_args().files)


if __name__ == "__main__":
    execute(main)
