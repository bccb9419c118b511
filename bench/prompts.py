"""Say how many tokens a first prompt has in each form of a schema, and what it leaves out: `python -m bench.prompts`.

Recall is the share of the tables and columns of all references that the prompt shows. Tokens are those of the model's
own tokenizer and chat template.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

from sqlglot import exp

from agentgrpo.flags import described_parser
from dbbench_adapter.engines.engine import TableInfo
from sql_agent.model_check import template_of_run
from sql_agent.prompts.tokenizer import PromptTokenizer
from sql_agent.settings.groups import SchemaForm
from sql_agent.text_to_sql.datatypes import Question
from sql_agent.text_to_sql.environment import TextToSql
from sql_agent.text_to_sql.load import parsed


class Used(NamedTuple):
    """What a reference reads of a database, in lower case."""

    tables: frozenset[str]
    columns: frozenset[tuple[str, str]]


def used(query: str, schema: Sequence[TableInfo]) -> Used | None:
    """None if the query does not parse. A column without a table in front is the first one of its name that is read."""
    tree = parsed(query)
    if tree is None:
        return None
    known = {table.name.lower(): {column.name.lower() for column in table.columns} for table in schema}
    read = [table for table in tree.find_all(exp.Table) if table.name.lower() in known]
    aliases = {table.alias_or_name.lower(): table.name.lower() for table in read}
    columns = set[tuple[str, str]]()
    for column in tree.find_all(exp.Column):
        name = column.name.lower()
        of = [aliases.get(column.table.lower(), "")] if column.table else [*aliases.values()]
        columns.update([(table, name) for table in of if name in known.get(table, ())][:1])
    return Used(frozenset(aliases.values()), frozenset(columns))


class Measured(NamedTuple):
    form: str
    prompt_tokens: list[int]
    schema_tokens: list[int]
    tables: float
    """Share of the tables that references read."""
    columns: float


def measure(place: Path, files: Sequence[Path], model: Path) -> Iterator[Measured]:
    for form in get_args(SchemaForm):
        with TextToSql(place, form=form) as environment:
            tokenizer = PromptTokenizer(model, environment, template_of_run(model, "fc")[0])
            tasks = [task for file in files for task in environment.read_tasks(file)]
            found = [each for task in tasks if (each := _recall(environment, task)) is not None]
            tables, columns = (_share([each[part] for each in found]) for part in (0, 1))
            prompts = [tokenizer.prompt_tokens(task) for task in tasks]
            schemas = [tokenizer.text_tokens(environment.schema_text(task)) for task in tasks]
            yield Measured(form, prompts, schemas, tables, columns)


def _share(counts: Sequence[tuple[int, int]]) -> float:
    shown, needed = (sum(side) for side in zip(*counts, strict=True))
    return shown / needed


def _recall(environment: TextToSql, task: Question) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Tables, then columns: how many of the reference's the prompt shows, and how many there are."""
    schema = environment.databases.schema(task.db_id)
    needed = used(task.query or "", schema)
    if needed is None:
        return None
    linked = [(table.name, [column.name for column in table.columns]) for table in schema]
    shown = {name.lower(): {each.lower() for each in columns} for name, columns in task.tables or linked}
    columns = sum(column in shown.get(table, ()) for table, column in needed.columns)
    return (len(needed.tables & shown.keys()), len(needed.tables)), (columns, len(needed.columns))


def main() -> None:
    parser = described_parser("python -m bench.prompts", __doc__)
    parser.add_argument("database", type=Path)
    parser.add_argument("questions", type=Path, nargs="+")
    parser.add_argument("--model", type=Path, default=Path("models/smollm2-135m-instruct"))
    args: argparse.Namespace = parser.parse_args()
    print("| form | first prompt: median, mean, longest | schema: median, mean | tables, columns of references |")
    print("| --- | ---: | ---: | ---: |")
    for each in measure(args.database, args.questions, args.model):
        prompt, schema = each.prompt_tokens, each.schema_tokens
        print(
            f"| {each.form} | {statistics.median(prompt):,.0f}, {statistics.mean(prompt):,.0f}, {max(prompt):,} "
            f"| {statistics.median(schema):,.0f}, {statistics.mean(schema):,.0f} "
            f"| {100 * each.tables:.1f} %, {100 * each.columns:.1f} % |",
            flush=True,
        )


if __name__ == "__main__":
    main()
