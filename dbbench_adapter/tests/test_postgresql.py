"""A person's own database on PostgreSQL: which account may be used, what is sent, and what comes back.

`test_engines.py` has what every engine promises, `test_servers.py` what servers do.
"""

from contextlib import closing
from urllib.parse import urlsplit

import pytest

pytest.importorskip("psycopg", reason="the extra postgresql of pyproject.toml is not installed")

from dbbench_adapter.datatypes import DatabaseError
from dbbench_adapter.engines import BackendUnavailable, open_databases
from dbbench_adapter.engines.address import parse_address
from dbbench_adapter.engines.postgresql import FORM, exchange, read_only, tokens
from dbbench_adapter.engines.postgresql.account import check_account
from dbbench_adapter.engines.postgresql.read_only import PostgresReader
from dbbench_adapter.engines.server import AccountError
from dbbench_adapter.tests.engine_worlds import PASSWORD, WRITTEN, as_postgres_admin, postgres_contents
from dbbench_adapter.tests.hostile_postgres import HOSTILE_POSTGRES

pytestmark = pytest.mark.usefixtures("few_objects")


@pytest.fixture
def reader(postgres_address):
    with closing(PostgresReader(postgres_address)) as opened:
        yield opened


def run(reader, sql, timeout_s=1.0, max_rows=100, max_chars=10_000):
    return reader.run(sql, timeout_s=timeout_s, max_rows=max_rows, max_chars=max_chars)


# the account ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("statements", "said"), [
    (["ALTER ROLE {name} SUPERUSER"], "SUPERUSER;"),
    (["ALTER ROLE {name} CREATEROLE CREATEDB"], "CREATEROLE and CREATEDB;"),
    (["ALTER ROLE {name} REPLICATION BYPASSRLS"], "REPLICATION and BYPASSRLS;"),
    (["GRANT pg_read_server_files TO {name}"], "a member of pg_read_server_files;"),
    (["GRANT pg_write_all_data, pg_monitor TO {name}"], "a member of pg_write_all_data"),
    (["CREATE ROLE clerk_{name} CREATEDB", "GRANT clerk_{name} TO {name}"], "CREATEDB by the role clerk_"),
    (["CREATE ROLE boss_{name}", "GRANT DELETE ON t TO boss_{name}", "ALTER ROLE {name} NOINHERIT",
      "GRANT boss_{name} TO {name}"], "DELETE on t;"),
    (["GRANT INSERT, TRUNCATE ON customer TO {name}"], "INSERT, TRUNCATE on customer;"),
    (["GRANT UPDATE (name) ON customer TO {name}"], "UPDATE on customer.name;"),
    (["GRANT TRIGGER, REFERENCES ON t TO {name}"], "REFERENCES, TRIGGER on t;"),
    (["GRANT SELECT ON t TO {name} WITH GRANT OPTION"], "SELECT WITH GRANT OPTION on t;"),
    (["GRANT CREATE ON SCHEMA public TO {name}"], "CREATE on schema public;"),
    (["GRANT CREATE ON DATABASE my_shop TO {name}"], "CREATE on database my_shop;"),
    (["GRANT USAGE ON SEQUENCE other.numbers TO {name}"], "USAGE on sequence other.numbers;"),
    (["GRANT UPDATE ON LARGE OBJECT 4711 TO {name}"], "UPDATE on large object 4711;"),
    (["CREATE TABLE of_{name} (a int)", "ALTER TABLE of_{name} OWNER TO {name}"], "owner of table of_reader"),
    (["CREATE FUNCTION of_{name}() RETURNS int LANGUAGE sql AS 'SELECT 1'", "ALTER FUNCTION of_{name} OWNER TO {name}"],
     "owner of function of_reader"),
])  # fmt: skip
def test_an_account_that_may_do_more_than_read_is_refused_with_what_to_type(
    postgres_server, postgres_account, statements, said
):
    address = postgres_account(*statements)
    with closing(open_databases(address)) as databases:
        with pytest.raises(DatabaseError) as caught:
            databases.check()
        with pytest.raises(AccountError):
            databases.open("my_shop", statement_timeout_s=1.0).run("SELECT 1")
    assert f"the account may do more than read this database: {said}" in str(caught.value)
    assert str(caught.value).endswith(
        "CREATE ROLE agent_reader LOGIN PASSWORD '...'; "
        'GRANT CONNECT ON DATABASE "my_shop" TO agent_reader; GRANT USAGE ON SCHEMA public TO agent_reader; '
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO agent_reader;"
    )
    as_postgres_admin(postgres_server, f"DROP OWNED BY {urlsplit(address).username} CASCADE", database="my_shop")


def test_rights_of_everybody_count_and_the_message_says_how_to_take_them_back(postgres_server, postgres_account):
    # what every database before version 15 has
    as_postgres_admin(postgres_server, "GRANT CREATE ON SCHEMA public TO PUBLIC", database="my_shop")
    try:
        with pytest.raises(DatabaseError, match=r"CREATE on schema public as everybody \(PUBLIC\).*FROM PUBLIC;$"):
            open_databases(postgres_account()).check()
    finally:
        as_postgres_admin(postgres_server, "REVOKE CREATE ON SCHEMA public FROM PUBLIC", database="my_shop")


def test_a_message_shows_the_first_of_many_excesses():
    address = parse_address("postgresql://reader:x@host/d", form=FORM, port=5432)
    with pytest.raises(AccountError, match=r"database: a and b and c and d and e and 2 more; make one"):
        check_account([*"abcdefg"], address, ["public"])
    check_account([], address, ["public"])


def test_a_member_of_a_group_of_readers_is_taken(postgres_account):
    address = postgres_account(
        "CREATE ROLE readers_of_{name}", "GRANT SELECT ON t TO readers_of_{name}", "GRANT readers_of_{name} TO {name}",
        "GRANT pg_read_all_data TO {name}",
    )  # fmt: skip
    with closing(open_databases(address)) as databases:
        databases.check()


def test_a_package_that_is_missing_is_refused_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(DatabaseError, match=r"needs the package psycopg, .*--extra postgresql"):
        open_databases("postgresql://a:b@host/d")


# the schema -----------------------------------------------------------------------------------------------------------


def test_tables_of_the_search_path_stand_in_quotes_where_the_server_needs_them(postgres_server):
    as_postgres_admin(postgres_server, "CREATE DATABASE odd")
    as_postgres_admin(
        postgres_server,
        "CREATE SCHEMA sales",
        'CREATE TABLE "Boat" (id int PRIMARY KEY, "user" text, "Size" numeric, secret text)',
        "CREATE TABLE sales.trip (boat int REFERENCES public.\"Boat\", tags text[], state text DEFAULT 'x')",
        "INSERT INTO \"Boat\" VALUES (1, 'ann', 2.5)",
        "INSERT INTO sales.trip VALUES (1, '{a,b}')",
        "CREATE TABLE log (day date) PARTITION BY RANGE (day)",
        "CREATE TABLE log_2020 PARTITION OF log FOR VALUES FROM ('2020-01-01') TO ('2021-01-01')",
        "CREATE TABLE hidden (a int)",
        "CREATE VIEW broken AS SELECT a FROM hidden",
        "CREATE ROLE nobody_here",
        "ALTER VIEW broken OWNER TO nobody_here",
        f"CREATE ROLE of_odd LOGIN PASSWORD '{PASSWORD}'",
        "GRANT USAGE ON SCHEMA public, sales TO of_odd",
        "GRANT SELECT ON sales.trip, log, log_2020, broken TO of_odd",
        'GRANT SELECT (id, "user", "Size") ON "Boat" TO of_odd',
        "ALTER ROLE of_odd SET search_path = sales, public",
        database="odd",
    )
    with closing(
        open_databases(f"postgresql://of_odd:{WRITTEN}@127.0.0.1:{urlsplit(postgres_server).port}/odd")
    ) as databases:
        boat, log, trip = databases.schema("odd")
        assert ([c.name for c in boat.columns], boat.primary_key) == (["id", "user", "Size"], ("id",))
        assert {"Boat", "user", "Size"} & boat.plain == set() and {"id", "trip", "log"} <= boat.plain
        assert (trip.foreign_keys, [c.samples for c in trip.columns]) == (
            (("boat", "Boat", "id"),), [("1",), ("'{a,b}'",), ("'x'",)],
        )  # fmt: skip
        assert log.name == "log"
        assert databases.unreadable("odd") == {"broken": "permission denied for table hidden"}
        assert "(search_path sales, public), 3 tables" in databases.summary()
    as_postgres_admin(postgres_server, "DROP DATABASE odd", "DROP ROLE of_odd, nobody_here")


# statements -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sql", "parts"), [
    ("a/* x /* y */ z */b", ["a", "/* x /* y */ z */", "b"]),
    ("'a\\' 'b'", ["'a\\'", " ", "'b'"]),
    ("E'a\\'b' e'\\\\'", ["E'a\\'b'", " ", "e'\\\\'"]),
    ("$$a'$$b$x$ $$ $x$", ["$$a'$$", "b$x$", " ", "$$ $x$"]),
    ("$x$ $$ $y$ $x$1", ["$x$ $$ $y$ $x$", "1"]),
    ("1--2\r3", ["1", "--2", "\r", "3"]),
    ("a<=-1/*", ["a", "<=-", "1", "/*"]),
    ('u&"a""b"', ['u&"a""b"']),
    ("1..2.5e3$1", ["1", ".", ".2", ".5e3", "$1"]),
])  # fmt: skip
def test_a_text_is_split_as_the_server_splits_it(sql, parts):
    assert [part.text for part in tokens(sql)] == parts


@pytest.mark.parametrize(("sql", "row"), [
    ("SELECT true, 7::bigint, 2::numeric, 2.50, 0.1::real, 1e300::float8", (True, 7, 2, 2.5, 0.1, 1e300)),
    ("SELECT 'NaN'::numeric, 'NaN'::float8, '-Infinity'::float8", ("NaN", "NaN", "-Infinity")),
    ("SELECT DATE '1990-02-03', TIME '09:05', TIMESTAMP '2020-01-02 03:04:05.5'",
     ("1990-02-03", "09:05:00", "2020-01-02 03:04:05.5")),
    ("SELECT TIMESTAMPTZ '2020-01-02 03:04:05+00', INTERVAL '1 day 90 minutes', DATE '0044-03-15 BC'",
     ("2020-01-02 03:04:05+00", "1 day 01:30:00", "0044-03-15 BC")),
    ("""SELECT '{"b": 1, "a": [2]}'::json, '{"b":1}'::jsonb, ARRAY[1, NULL], '\\x00ff'::bytea""",
     ('{"b": 1, "a": [2]}', '{"b": 1}', "{1,NULL}", b"\0\xff")),
    ("SELECT 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'::uuid, ROW(1, 'x'), NULL::int",
     ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "(1,x)", None)),
    ("SELECT lpad('7', 3, '0'), random() < 2, (10::numeric ^ 400) > 0", ("007", True, True)),
    ("SELECT 1 AS q, 2 AS q -- ;", (1, 2)),
    ("SELECT ' into; update ', $a$;$a$ /* ; */ ;;", (" into; update ", ";")),
])  # fmt: skip
def test_values_are_those_that_the_server_writes(reader, sql, row):
    found = run(reader, sql)
    assert (found.error, found.rows) == (None, (row,))
    assert [type(cell) for cell in found.rows[0]] == [type(cell) for cell in row]


def test_a_number_that_python_does_not_write_stays_a_text(reader):
    ((cell,),) = run(reader, "SELECT 10::numeric ^ 5000").rows
    assert isinstance(cell, str) and cell.startswith("1" + "0" * 5000)


@pytest.mark.parametrize("sql", [
    sql for name in ("programs", "texts_run_as_sql", "other_sessions", "hidden") for sql in HOSTILE_POSTGRES[name]
])  # fmt: skip
def test_what_only_computes_is_sent_and_nothing_else(reader, sql):
    found = run(reader, sql)
    # the one that is a query, and those that the server does not know
    known = found.rows == ((1,),) or "does not exist" in found.error or "syntax error" in found.error
    assert known or found.error.startswith(("not allowed", "bind message", "the statement is no valid text"))


@pytest.mark.parametrize(("sql", "error"), [
    ("DELETE FROM t RETURNING *", "cannot execute SELECT in a read-only transaction"),
    ("DELETE FROM t", 'WITH query "q" does not have a RETURNING clause'),
    ("CREATE TEMP TABLE x (a int)", 'syntax error at or near "CREATE"'),
    ("SELECT 1; SELECT 2", "cannot insert multiple commands into a prepared statement"),
    ("SELECT count_up()", "cannot execute nextval() in a read-only transaction"),
    ("SELECT * FROM t FOR UPDATE", "cannot execute SELECT FOR UPDATE in a read-only transaction"),
    ("SELECT pg_read_file('/etc/passwd')", "permission denied for function pg_read_file"),
    ("SELECT set_config('transaction_read_only', 'off', true)", "read-write mode must be set before any query"),
])  # fmt: skip
def test_behind_the_list_of_functions_stand_the_server_and_the_account(
    postgres_server, reader, monkeypatch, sql, error
):
    before = postgres_contents(postgres_server)
    monkeypatch.setattr(read_only, "why_refused", lambda *_: None)
    assert error in run(reader, sql).error
    assert postgres_contents(postgres_server) == before


def test_each_statement_has_its_limits_and_a_session_as_after_connecting(reader, monkeypatch):
    monkeypatch.setattr(read_only, "why_refused", lambda *_: None)
    asked = ("transaction_read_only", "statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout",
             "search_path", "jit")  # fmt: skip
    shown = "SELECT " + ", ".join(f"current_setting('{name}')" for name in asked)
    assert run(reader, shown, 0.5).rows == (("on", "500ms", "250ms", "10500ms", "public, pg_temp", "off"),)
    run(reader, "SELECT set_config('jit', 'on', false), set_config('my.x', 'seen', false), pg_advisory_lock(7)")
    assert run(reader, "SELECT current_setting('my.x', true), count(*) FROM pg_locks WHERE locktype = 'advisory'").rows
    assert run(reader, shown, 2.0).rows == (("on", "2s", "1s", "12s", "public, pg_temp", "off"),)
    assert run(reader, "SELECT coalesce(current_setting('my.x', true), '')").rows == (("",),)


@pytest.mark.parametrize("cell", [
    "(SELECT string_agg(md5(g::text), '') FROM generate_series(1, 300000) g)",  # 10 million characters
    "decode((SELECT string_agg(md5(g::text), '') FROM generate_series(1, 300000) g), 'hex')",
    "(SELECT array_agg(g) FROM generate_series(1, 1000000) g)",
    "'x'::char(10000000)",
])  # fmt: skip
def test_a_cell_that_is_too_long_is_not_sent(reader, monkeypatch, cell):
    received = []
    plain = exchange._plain
    monkeypatch.setattr(exchange, "_plain", lambda value, kind: received.append(len(value)) or plain(value, kind))
    assert run(reader, f"SELECT {cell}", 30.0).error == "the result is too long; ask for less"
    assert [size for size in received if size > 1_000] == []
    assert run(reader, "SELECT 'x'::char(9000)").rows == (("x" + " " * 8999,),)


def test_an_error_is_the_servers_own_with_its_hint_and_without_the_account(reader):
    assert run(reader, "SELECT nam FROM customer").error == (
        'column "nam" does not exist\nPerhaps you meant to reference the column "customer.name".'
    )
    assert run(reader, "SELECT current_user::int").error == 'invalid input syntax for type integer: "agent"'


def test_a_table_that_somebody_locks_is_no_fault_of_the_statement(postgres_server, reader):
    import psycopg

    with psycopg.connect(f"{postgres_server}my_shop") as other:
        other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(BackendUnavailable, match="canceling statement due to lock timeout"):
            run(reader, "SELECT a FROM t", 0.4)
    assert len(run(reader, "SELECT a FROM t").rows) == 4


def test_a_function_that_hides_one_of_the_servers_is_refused(postgres_server, postgres_account):
    as_postgres_admin(
        postgres_server,
        "CREATE FUNCTION upper(varchar) RETURNS text VOLATILE LANGUAGE sql AS 'SELECT pg_sleep(9)::text'",
        database="my_shop",
    )
    try:
        with closing(PostgresReader(postgres_account())) as reader:
            assert run(reader, "SELECT upper(name) FROM customer").error == "not allowed: the function upper"
            assert run(reader, "SELECT lower(name) FROM customer WHERE id = 2").rows == (("bo",),)
    finally:
        as_postgres_admin(postgres_server, "DROP FUNCTION upper(varchar)", database="my_shop")
