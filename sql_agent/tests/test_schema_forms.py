"""How a prompt shows a database: one line a table, or only the tables that the question's words lead to."""

import json
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from agentgrpo.tests.seconds import seconds_here
from bench.prompts import measure, used
from dbbench_adapter.engines.engine import ColumnInfo, TableInfo
from dbbench_adapter.engines.sqlite.schema import read_schema
from sql_agent.demo_shop import make_shop
from sql_agent.settings.groups import AgentConfig
from sql_agent.text_to_sql.datatypes import Question
from sql_agent.text_to_sql.environment import TextToSql
from sql_agent.text_to_sql.episode import described_name
from sql_agent.text_to_sql.linking import SchemaLinker
from sql_agent.text_to_sql.schema import render_schema

SPIDER = Path(__file__).resolve().parents[3] / "shared" / "text2sql" / "spider"
NAMES = ("audit", "badge", "cable", "depot", "event", "fence", "glove", "hotel", "invoice", "jacket")


@pytest.fixture
def company(tmp_path) -> Path:
    """Twelve tables and a view: three of a shop, and nine that no question is about."""
    file = tmp_path / "company.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript("""
            CREATE TABLE customer (id INTEGER PRIMARY KEY, full_name TEXT, home_town TEXT, photo BLOB);
            CREATE TABLE sales_order (
                id INTEGER PRIMARY KEY, customer INTEGER REFERENCES customer, ordered_on TEXT, paid TEXT);
            CREATE TABLE order_line (
                sales_order INTEGER REFERENCES sales_order, product INTEGER REFERENCES product, amount INTEGER,
                PRIMARY KEY (sales_order, product));
            CREATE TABLE product (id INTEGER PRIMARY KEY, "group" TEXT, productTitle TEXT);
            CREATE VIEW unpaid AS SELECT * FROM sales_order WHERE paid = 'no';
        """)
        for name in NAMES[:8]:
            columns = ", ".join(f"{name}_value_{number} REAL" for number in range(9))
            connection.execute(f"CREATE TABLE {name}_log (id INTEGER PRIMARY KEY, {columns})")
            connection.execute(f"INSERT INTO {name}_log (id) VALUES (1)")
        connection.execute("CREATE TABLE empty_log (id INTEGER)")
        customers = [(n, f"Ann {n}", town) for n, town in enumerate(["Ulm", "Bad Aibling", "Kiel"] * 5)]
        connection.executemany("INSERT INTO customer (id, full_name, home_town) VALUES (?, ?, ?)", customers)
        orders = [(n, n % 15, f"2026-03-{n + 1:02}", "no" if n % 2 else "yes") for n in range(20)]
        connection.executemany("INSERT INTO sales_order VALUES (?, ?, ?, ?)", orders)
        connection.executemany("INSERT INTO product VALUES (?, ?, ?)", [(n, f"g{n}", f"title {n}") for n in range(30)])
        connection.executemany("INSERT INTO order_line VALUES (?, ?, ?)", [(n, n, n) for n in range(20)])
        connection.commit()
    return file


def linked(company, question):
    with TextToSql(company, form="linked") as environment:
        return environment._link([Question("q", question, "company", "SELECT 1")])[0]


def test_compact_has_a_line_for_each_table_with_keys_references_dates_and_codes(company):
    tables = [table for table in read_schema(company).tables if not table.name.endswith("_log")]
    assert render_schema(tables).text.splitlines() == [
        "customer(id key, full_name, home_town 'Ulm' 'Bad Aibling' 'Kiel', photo)",
        "sales_order(id key, customer = customer.id, ordered_on '2026-03-01', paid 'yes' 'no')",
        "order_line(sales_order key = sales_order.id, product key = product.id, amount)",
        'product(id key, "group", productTitle)',
        "unpaid(id, customer, ordered_on, paid)",  # views stand behind tables
    ]


def test_qualified_has_each_column_behind_its_table(company):
    tables = [table for table in read_schema(company).tables if table.name in ("product", "order_line")]
    assert render_schema(tables, form="qualified").text.splitlines() == [
        "order_line(order_line.sales_order key = sales_order.id, order_line.product key = product.id, "
        "order_line.amount)",
        'product(product.id key, product."group", product.productTitle)',
    ]


def test_empty_tables_stand_last_and_the_first_to_go_are_values_then_bytes_then_tables(company):
    tables = read_schema(company).tables
    assert render_schema(tables).text.splitlines()[-1] == "empty_log(id)"
    some = [table for table in tables if table.name in ("customer", "fence_log", "empty_log")]
    kept = render_schema(some, 1)
    assert kept.text.splitlines() == [
        "customer(id key, full_name, home_town, photo)",
        "More tables, by DESCRIBE: fence_log, empty_log",
    ]
    assert kept.tables == ("fence_log", "empty_log") and not kept.values


@pytest.mark.parametrize(("question", "tables"), [
    ("How many customers are there?", ["customer"]),
    ("Who lives in bad aibling?", ["customer"]),  # no name: a value of two words, in any case
    ("Titles of all products", ["product"]),  # plural and order of words differ
    ("Which customers bought title 3?", ["customer", "product", "sales_order", "order_line"]),  # the way between
])  # fmt: skip
def test_a_linked_prompt_begins_with_the_tables_that_the_question_leads_to(company, question, tables):
    shown = [name for name, _ in linked(company, question).tables]
    assert set(shown[: len(tables)]) == set(tables) and shown[0] == tables[0]
    assert "empty_log" not in shown and len(shown) < 13


def test_a_linked_prompt_names_the_tables_that_it_leaves_out_and_describe_shows_them(company):
    asked = linked(company, "How many customers are there?")
    with TextToSql(company, form="linked") as environment:
        text = environment.messages(asked)[0]["content"]
        columns = ", ".join(f"fence_value_{number}" for number in range(9))
        assert "fence_log(" not in text
        assert text.splitlines()[-1].startswith("More tables, by DESCRIBE: ") and "fence_log" in text
        with closing(environment.open(asked, AgentConfig())) as episode:
            for sql in ("DESCRIBE fence_log", 'describe table "FENCE_LOG";', "desc `fence_log`"):
                assert next(episode.answer(call(sql)))["content"] == f"fence_log(id key, {columns})"
            assert next(episode.answer(call("DESCRIBE nowhere")))["content"].startswith("Error")


@pytest.mark.parametrize(("sql", "name"), [
    ("DESCRIBE film", "film"), (" desc  film ; ", "film"), ('describe table "a ""b"""', 'a "b"'),
    ("DESC [film]", "film"), ("DESCRIBE 'film'", "film"), ("describe main.film", "film"), ("DESCRIBE", None),
    ("SELECT 1", None),
    ("desc" + " " * 20_000 + ";;" * 5_000 + "x", ";;" * 5_000 + "x"),  # a policy's loop: no time is lost
])  # fmt: skip
def test_the_name_behind_describe(sql, name):
    began = time.thread_time()
    assert described_name(sql) == name
    assert time.thread_time() - began < seconds_here(0.5)


def test_a_table_that_is_not_there_is_said_to_be_missing_and_a_wide_one_is_cut(tmp_path):
    with closing(sqlite3.connect(tmp_path / "wide.db")) as connection:
        connection.execute(f"CREATE TABLE station ({', '.join(f'measure_{number}' for number in range(500))})")
    with TextToSql(tmp_path / "wide.db") as environment:
        asked = Question("q", "?", "wide", "SELECT 1")
        with closing(environment.open(asked, AgentConfig())) as episode:
            said = next(episode.answer(call("DESCRIBE statoin")))["content"]
            assert said.startswith("Error: there is no table statoin") and "station" in said
            assert len(next(episode.answer(call("DESCRIBE station")))["content"]) < 1_100


def test_of_a_thousand_tables_a_prompt_stays_short_and_a_common_beginning_chooses_none():
    columns = (ColumnInfo("id", "INT"), ColumnInfo("note", "TEXT"))
    names = [f"wp_{first}_{second}" for first in ("tax", "order", "user") for second in range(333)]
    linker = SchemaLinker([TableInfo(name, columns) for name in names], {})
    began = time.thread_time()
    shown = linker.link("How many wp tax notes are there?")
    assert time.thread_time() - began < seconds_here(2.0)
    assert len(shown) < 40 and all(name.startswith("wp_tax") for name, _ in shown[:12])
    text = render_schema([TableInfo(name, columns) for name in names], linked=shown).text
    assert len(text) < 3_000 and text.endswith(" more")


def test_views_stand_behind_tables_wherever_the_database_lists_them():
    x = ColumnInfo("x", "INT", ("1",))
    assert render_schema([TableInfo("seen", (x,), is_view=True), TableInfo("kept", (x,))]).text == "kept(x)\nseen(x)"


def test_what_every_table_begins_with_leads_to_none():
    columns = tuple(ColumnInfo(f"measure_of_something_{number}", "INT") for number in range(20))  # no room for others
    linker = SchemaLinker([TableInfo(f"wp_{name}", columns) for name in ("posts", "tags", "terms", "users")], {})
    assert [name for name, _ in linker.link("How many wp users are there?")] == ["wp_users"]


@pytest.mark.parametrize(("question", "first"), [
    ("Who was born in the U.S.?", "person"),  # the value is `u.s.`
    ("订单的总金额是多少", "订单"),
    ("Wie hoch sind die Gebäude?", "Gebäude"),
])  # fmt: skip
def test_words_of_other_scripts_and_values_with_points_are_found(question, first):
    name = ColumnInfo("name", "TEXT")
    tables = [TableInfo(each, (name,)) for each in ("客户", "订单", "Gebäude", "person")]
    values = {"u.s": {("person", "name")}}
    assert SchemaLinker(tables, values).link(question)[0][0] == first


def call(sql):
    function = {"name": "execute_sql", "arguments": json.dumps({"sql": sql})}
    calls = [{"id": "call00001", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def test_a_question_keeps_what_its_prompt_shows_so_that_a_runner_builds_no_index(company, monkeypatch):
    asked = linked(company, "Titles of all products")
    monkeypatch.setattr(SchemaLinker, "link", None)
    with TextToSql(company, form="linked") as environment:
        again = environment.task(json.loads(json.dumps(asked.to_dict())))
        assert again == asked and environment.messages(again) == environment.messages(asked)


def test_of_a_wide_table_a_linked_prompt_shows_keys_and_the_columns_that_are_asked_for(tmp_path):
    file = tmp_path / "wide.db"
    with closing(sqlite3.connect(file)) as connection:
        columns = ", ".join(f"measure_{number} REAL" for number in range(60))
        connection.execute(f"CREATE TABLE station (id INTEGER PRIMARY KEY, {columns}, wind_speed REAL)")
    tables = read_schema(file).tables
    ((name, shown),) = SchemaLinker(tables, {}).link("What is the highest wind speed?")
    assert name == "station" and len(shown) == 12 and {"id", "wind_speed"} <= set(shown)
    assert render_schema(tables, linked=((name, shown),)).text.endswith(", wind_speed, ...)")


def test_a_reference_that_uses_what_linking_leaves_out_is_told(company, tmp_path):
    rows = [{"question": "How many customers are there?", "query": "SELECT count(glove_value_3) FROM glove_log"}] * 2
    (tmp_path / "q.json").write_text(json.dumps(rows))
    with TextToSql(company, form="linked") as environment:
        asked = environment.read_tasks(tmp_path / "q.json")[0]
        assert environment.missed(asked) == ("glove_log.glove_value_3",)
        assert environment.left_out(asked) is None  # nothing was cut for its length


def test_used_tables_and_columns_of_a_reference():
    x, y, z = (ColumnInfo(name, "") for name in "xyz")
    schema = [TableInfo("a", (x, y)), TableInfo("b", (x, z))]
    assert used("SELECT T1.x FROM a AS T1 JOIN b AS T2 ON T1.x = T2.x WHERE z = 1", schema) == (
        {"a", "b"}, {("a", "x"), ("b", "x"), ("b", "z")},
    )  # fmt: skip
    assert used("SELECT FROM WHERE", schema) is None


@pytest.mark.skipif(not SPIDER.is_dir(), reason="../shared/text2sql/spider is not there")
def test_on_spider_linked_prompts_show_what_references_use(random_policy_folder):
    found = {each.form: each for each in measure(SPIDER, [SPIDER / "dev.json"], random_policy_folder)}
    assert found["linked"].tables > 0.99 and found["linked"].columns > 0.99
    assert found["compact"].tables == found["compact"].columns == 1
    middle = {form: sorted(each.schema_tokens)[len(each.schema_tokens) // 2] for form, each in found.items()}
    assert middle["linked"] < middle["compact"] < 0.3 * middle["ddl"]


@pytest.fixture(scope="module")
def large_shop(tmp_path_factory):
    return make_shop(tmp_path_factory.mktemp("shop"), large=True)


@pytest.mark.parametrize(("large", "tables"), [(True, 32), (False, 11)])
def test_the_shop_has_60_questions_whose_answers_say_something(tmp_path, large, tables):
    database, questions = make_shop(tmp_path, large=large)
    with TextToSql(database) as environment:
        assert len(environment.databases.schema("shop")) == tables
        asked = environment.read_tasks(questions)
        assert len(asked) == len({task.query for task in asked}) == 60
        assert [task.question for task in asked if environment.finds_nothing(task)] == []
    with closing(sqlite3.connect(database)) as connection:  # none asks for the first of ties
        for task in asked:
            if first := re.fullmatch(r"SELECT .*? (FROM .* ORDER BY (.*?)(?: DESC)?) LIMIT 1", task.query):
                two = connection.execute(f"SELECT {first[2]} {first[1]} LIMIT 2").fetchall()
                assert len({*two}) == 2, task.question


def test_of_a_large_schema_a_tenth_holds_what_references_use(large_shop, random_policy_folder):
    database, questions = large_shop
    found = {each.form: each for each in measure(database, [questions], random_policy_folder)}
    assert found["linked"].tables > 0.98 and found["linked"].columns > 0.98
    whole = {form: sum(each.schema_tokens) for form, each in found.items()}
    assert whole["linked"] < 0.12 * whole["ddl"] and whole["compact"] < 0.36 * whole["ddl"]
