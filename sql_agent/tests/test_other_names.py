"""A conversation under other names says the same: a query finds in a renamed database what it found before.

SmolLM2-135M, fine-tuned on Spider's training databases, wrote names of other databases into its queries, and SQLite
refused 620 of 972.
"""

import json
import random
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from dbbench_adapter.engines.engine import ColumnInfo, TableInfo
from dbbench_adapter.engines.sqlite import SQLITE
from sql_agent.settings.tuning import SftConfig
from sql_agent.sft.data import reference_demonstrations
from sql_agent.sft.run import demonstrations
from sql_agent.text_to_sql.environment import TextToSql
from sql_agent.text_to_sql.other_names import (
    _can_be_renamed,
    draw_names,
    query_with_names,
    renamed_copies,
    with_names,
)
from sql_agent.text_to_sql.schema import render_schema

SPIDER = Path(__file__).parents[3] / "shared/text2sql/spider"
NAMES = {"shop": "store_list", "name": "nm", "count": "quantity", "shop id": "shop id", "id": "ID_x"}
TABLES = [
    TableInfo("shop", tuple(ColumnInfo(name, "TEXT") for name in ("id", "name", "count", "shop id")), ("id",)),
    TableInfo("sale", (ColumnInfo("id", "INT"), ColumnInfo("shop", "INT")), foreign_keys=(("shop", "shop", "id"),)),
]


@pytest.mark.parametrize(("query", "expected"), [
    ("SELECT Name FROM shop", "SELECT nm FROM store_list"),
    ("SELECT count(*), count FROM shop", "SELECT count(*), quantity FROM store_list"),
    ("SELECT T1.name FROM shop AS T1 WHERE id = 'name'", "SELECT T1.nm FROM store_list AS T1 WHERE ID_x = 'name'"),
    ('SELECT "name", [shop id] FROM shop', 'SELECT "name", [shop id] FROM store_list'),
    ("INSERT INTO shop (name) VALUES ('a')", "INSERT INTO store_list (nm) VALUES ('a')"),
])  # fmt: skip
def test_a_query_by_hand(query, expected):
    assert query_with_names(query, NAMES, SQLITE) == expected


def test_every_name_has_one_of_its_own_and_what_needs_quotes_stays():
    for seed in range(200):
        names = draw_names(TABLES, {"sale"}, random.Random(seed))
        assert names.keys() == {"shop", "sale", "id", "name", "count", "shop id"}
        assert len({name.lower() for name in names.values()}) == 6
        assert (names["sale"], names["shop id"]) == ("sale", "shop id")
    drawn = {draw_names(TABLES, (), random.Random(seed))["name"] for seed in range(200)}
    assert len(drawn) > 20


def test_a_new_name_is_no_word_of_sql_nor_of_the_queries_and_a_word_of_sql_stays():
    """UPDATE for `updates`, and `nm`, by which a query groups, for `name`: seen in one draw of ten."""
    tables = [
        TableInfo("score", tuple(ColumnInfo(name, "") for name in ("updates", "tables", "name", "text", "index")))
    ]
    for seed in range(300):
        names = draw_names(tables, (), random.Random(seed), taken={"nm", "sc"})
        assert (names["text"], names["index"]) == ("text", "index")
        assert not {name.lower() for name in names.values()} & {"update", "table", "nm", "sc", "rowid"}


def test_tables_keep_their_keys_and_their_first_column():
    shop, sale = sorted(with_names(TABLES, NAMES, random.Random(0)), key=lambda table: -len(table.columns))
    assert (shop.name, shop.columns[0].name, shop.primary_key) == ("store_list", "ID_x", ("ID_x",))
    assert {column.name for column in shop.columns} == {"ID_x", "nm", "quantity", "shop id"}
    assert sale.foreign_keys == (("store_list", "store_list", "ID_x"),)


def conversation(schema, sql, question="Names?"):
    call = {"id": "1", "type": "function", "function": {"name": "submit_sql", "arguments": json.dumps({"sql": sql})}}
    first = [{"role": "system", "content": f"Rules.\n\n{schema}"}, {"role": "user", "content": question}]
    return [*first, {"role": "assistant", "tool_calls": [call]}]


SCHEMA = 'shop(id key, name, count, "shop id")\nsale(id, shop = shop.id)'


def test_conversations_of_a_batch_share_their_names():
    given = [("a", conversation(SCHEMA, "SELECT name FROM shop"))] * 5
    copies = renamed_copies(given, lambda _: TABLES, SQLITE, form="compact", together=2, draw=random.Random(1))
    prompts = [messages[0]["content"] for messages in copies]
    assert len(copies) == 5 and len(set(prompts)) == 3
    assert (prompts[0], prompts[2]) == (prompts[1], prompts[3])
    for messages in copies:
        sql = json.loads(messages[-1]["tool_calls"][0]["function"]["arguments"])["sql"]
        column, table = sql.removeprefix("SELECT ").split(" FROM ")
        assert f"{table}(" in messages[0]["content"] and column in messages[0]["content"]
    assert given[0][1][0]["content"].endswith(SCHEMA)  # the conversations themselves stay


@pytest.mark.parametrize(("schema", "question", "sql"), [
    pytest.param("shop(id, ...)", "Names?", "SELECT name FROM shop", id="part_of_the_schema"),
    pytest.param(SCHEMA, "Say shop_id.", "SELECT name FROM shop", id="a_column_in_the_question"),
    pytest.param(SCHEMA, "All?", "SELECT * FROM shop", id="columns_in_their_order"),
    pytest.param(SCHEMA, "Add one.", "INSERT INTO shop VALUES (1, 'a', 2, 3)", id="values_in_their_order"),
    pytest.param(SCHEMA, "Names?", "WITH shop(name) AS (SELECT 1) SELECT name FROM shop", id="names_of_its_own"),
    pytest.param(SCHEMA, "Names?", "SELECT T1.'name' FROM 'shop' AS T1", id="names_in_single_quotes"),
    pytest.param(SCHEMA, "Names?", 'SELECT "name", "count", "id" FROM "shop" JOIN "sale"', id="nothing_to_rename"),
])  # fmt: skip
def test_a_conversation_without_a_copy(schema, question, sql):
    tables = [TABLES[0], TABLES[1], TableInfo("log", (ColumnInfo("shop_id", ""),))] if "_id" in question else TABLES
    schema += "\nlog(shop_id)" if "_id" in question else ""
    given = [("a", conversation(schema, sql, question))]
    assert renamed_copies(given, lambda _: tables, SQLITE, form="compact", together=2, draw=random.Random(1)) == []


def test_fine_tuning_learns_each_question_under_its_own_names_and_under_others(tmp_path):
    with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as database:
        database.executescript("CREATE TABLE item (item_id INTEGER, price INTEGER); INSERT INTO item VALUES (1, 3);")
    rows = [
        {"question": f"Which item costs {n}?", "query": f"SELECT item_id FROM item WHERE price < {n}"} for n in (4, 5)
    ]
    (tmp_path / "questions.json").write_text(json.dumps(rows))
    cfg = SftConfig(
        database=tmp_path / "shop.sqlite", train_file=tmp_path / "questions.json", held_out_fraction=0, renamed_copies=2
    )
    kept = demonstrations(cfg, lambda tasks, _: [*tasks]).kept
    prompts = [each.messages[0]["content"].partition("\n\n")[2] for each in kept]
    assert prompts[:2] == ["item(item_id, price)"] * 2
    assert prompts[2] == prompts[3] != prompts[4] == prompts[5] != prompts[0]
    assert {each.where for each in kept[4:]} == {"copy 2 under other names"}


@pytest.mark.skipif(not SPIDER.is_dir(), reason="needs Spider's files beside the repository")
@pytest.mark.parametrize("seed", range(2))
def test_queries_of_spider_find_in_renamed_databases_what_they_found_before(tmp_path, seed):
    """Five databases, whose tables are made anew as the copies' prompts show them."""
    rows = json.loads((SPIDER / "train.json").read_text())
    compared = 0
    for database in sorted({row["db_id"] for row in rows})[:40:8]:
        train = tmp_path / f"{database}.json"
        train.write_text(json.dumps([row for row in rows if row["db_id"] == database]))
        with TextToSql(SPIDER / "database") as environment:
            kept = reference_demonstrations(environment.read_tasks(train), environment).kept
            tables = environment.databases.schema(database)
        draw = random.Random(seed)
        whole = [each.messages for each in kept if _can_be_renamed(each.messages, render_schema(tables).text, tables)]
        queries = [json.loads(each[-1]["tool_calls"][0]["function"]["arguments"])["sql"] for each in whole]
        words = {part.text for query in queries for part in SQLITE.tokens(query)}
        quoted = {word.strip('`"[]').lower() for word in words if word[:1] in ('"', "`", "[")}
        names = draw_names(tables, quoted, draw, taken={word.lower() for word in words})
        shown = with_names(tables, names, draw)
        with closing(sqlite3.connect(":memory:")) as made:
            made.text_factory = bytes
            made.execute("ATTACH ? AS own", [str(SPIDER / "database" / database / f"{database}.sqlite")])
            expected = [(query, made.execute(query).fetchall()) for query in queries]  # tables are in `own` alone yet
            make_as_shown(made, tables, shown, names)
            for query, before in expected:
                if "limit" not in query.lower():  # without the tables' indexes other rows come first
                    found = made.execute(query_with_names(query, names, SQLITE)).fetchall()
                    assert Counter(found) == Counter(before), query
                    compared += 1
    assert compared > 80


def make_as_shown(made, tables, shown, names):
    """Copy each table under its new name, with its columns in the prompt's order."""
    for table in tables:
        new = next(each for each in shown if each.name == names[table.name.lower()])
        old = {names[column.name.lower()]: column.name for column in table.columns}
        columns = ", ".join(f'"{old[column.name]}" AS "{column.name}"' for column in new.columns)
        made.execute(f'CREATE TABLE main."{new.name}" AS SELECT {columns} FROM own."{table.name}"')
