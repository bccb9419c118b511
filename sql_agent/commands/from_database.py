"""Make questions with SQL from your database: `agentgrpo tasks from-database --database FILE --output made.jsonl`.

The command needs no model and no question of yours. It writes rows with `question`, `query`, `db_id`, `skill` and
`difficulty`, which every command that takes `--database` reads by `--train-file`. Questions call tables and columns by
the words of their names. Each query was run, and its answer is neither empty nor 0. Each database of a folder gets as
many questions as the others.
"""

import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from itertools import islice, zip_longest
from pathlib import Path

from tqdm import tqdm

from agentgrpo.flags import described_parser
from agentgrpo.outputs import check_output, written
from dbbench_adapter.engines import BackendUnavailable, DatabaseError, named_database, open_databases
from dbbench_adapter.engines.engine import Databases
from sql_agent.text_to_sql.made_questions import SKILLS, Made, made_questions
from sql_agent.text_to_sql.question_tables import read_tables

STATEMENT_S = 5.0
# Questions that are made for each that is kept.
DRAWN = 4
MOST_ALIKE = 10
"""Questions whose queries differ in values alone."""
_VALUE = re.compile(r"'(?:[^']|'')*'|\b\d+(?:\.\d+)?\b")


def questions_of(databases: Databases, db_id: str, count: int, seed: int) -> list[Made]:
    """At most `count` questions, in a drawn order, of every skill its share as far as the database gives them."""
    rng = random.Random(f"{db_id} {seed}")
    with closing(databases.open(db_id, statement_timeout_s=STATEMENT_S)) as session:
        tables = read_tables(databases.schema(db_id), session)
        found = list(islice(made_questions(tables, session, rng), DRAWN * count))
    rng.shuffle(found)
    places, alike = Counter[str](), Counter[str]()
    numbered = []
    for made in found:
        alike[shape := _VALUE.sub("?", made.query)] += 1
        if alike[shape] > MOST_ALIKE:
            continue
        places[made.skill] += 1
        numbered.append((places[made.skill] / SKILLS[made.skill].share, made))
    chosen = [made for _, made in sorted(numbered, key=lambda each: each[0])][:count]
    rng.shuffle(chosen)
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    parser = described_parser("agentgrpo tasks from-database", __doc__)
    parser.add_argument(
        "--database",
        type=named_database,
        required=True,
        help="your own SQLite or DuckDB file, a folder with DB_ID/DB_ID.sqlite, or mysql:// or "
        "postgresql://user:password@host:port/database",
    )
    parser.add_argument(
        "--num-questions", type=int, default=500, help="number of questions over all databases; default 500"
    )
    parser.add_argument("--output", type=Path, required=True, help="the JSONL file to write")
    parser.add_argument("--seed", type=int, default=0, help="the same seed makes the same questions; default 0")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    args = parser.parse_args(argv)
    if args.num_questions < 1:
        parser.error(f"--num-questions is {args.num_questions}; it has to be 1 or more")
    began = time.monotonic()
    try:
        check_output(args.output, "--output", overwrite=args.overwrite)
        databases = open_databases(args.database)
        each = -(-args.num_questions // len(databases.ids))
        made: list[list[dict[str, str]]] = []
        for db_id in tqdm(databases.ids, unit="database", disable=None if len(databases.ids) > 1 else True):
            try:
                found = questions_of(databases, db_id, each, args.seed)
            except DatabaseError as fault:  # an empty one among others
                print(f"{db_id}: {fault}", file=sys.stderr)
                continue
            made.append([{**one._asdict(), "db_id": db_id} for one in found])
        # a database after the other, so that none is cut off at the end
        rows = [row for part in zip_longest(*made) for row in part if row is not None][: args.num_questions]
    except (BackendUnavailable, DatabaseError, ValueError) as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    if not rows:
        print(f"error: {args.database} has no table with rows that a question could be about", file=sys.stderr)
        return 1
    with written(args.output) as part:
        part.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    for name in ("difficulty", "skill"):
        print("  ".join(f"{key} {count}" for key, count in Counter(row[name] for row in rows).most_common()))
    print(f"{len(rows)} questions in {time.monotonic() - began:.1f} s: {args.output}")
    if len(rows) < args.num_questions:
        print(f"the database yields no more questions; {args.num_questions} were requested")
    return 0
