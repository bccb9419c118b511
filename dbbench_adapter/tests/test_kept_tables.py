"""The tables of a task are made once for all its episodes, and only what is equal to the last cell is the same."""

import pytest

from dbbench_adapter.datatypes import Column, Table
from dbbench_adapter.engines import TableError
from dbbench_adapter.engines.base import KeptTables, _key
from dbbench_adapter.engines.sqlite.backend import SqliteBackend


def table(*cells, name="t", kind="INT"):
    return [Table(name, (Column("a", kind),), tuple((cell,) for cell in cells))]


def kept(**more):
    """What keeps texts, and the names of what was made."""
    made = []

    def of(tables, text="x" * 100, typed=True):
        def make():
            made.append(tables[0].name)
            return text

        return keeping.of(tables, make, typed=typed)

    keeping = KeptTables(len, **more)
    return of, made, keeping


def test_equal_tables_are_made_once():
    of, made, _ = kept()
    assert of(table(1)) is of(table(1))
    assert made == ["t"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(table(1), table(1.0), id="a_double"),
        pytest.param(table(1), table(True), id="a_truth"),
        pytest.param(table(0.0), table(-0.0), id="the_sign_of_zero"),
        pytest.param(table("1"), table(1), id="a_text"),
        pytest.param(table(1), table(1, kind="BIGINT"), id="a_type"),
        pytest.param(table(1), table(1, name="T"), id="a_name_in_capitals"),
        pytest.param(table(1, 2), table(2, 1), id="the_order_of_rows"),
        pytest.param(table(1), [*table(1), *table(1, name="u")], id="one_table_more"),
    ],
)
def test_tables_that_differ_in_anything_are_made_apart(one, other):
    of, made, _ = kept()
    of(one)
    of(other)
    assert len(made) == 2


def test_typed_and_untyped_tables_are_made_apart():
    of, made, _ = kept()
    of(table(1), typed=True)
    of(table(1), typed=False)
    assert len(made) == 2


def test_what_is_larger_than_all_that_may_be_kept_pushes_nothing_out():
    of, made, keeping = kept(max_bytes=500)
    of(table(1))
    of(table(2, name="large"), text="x" * 500)
    of(table(1))
    assert made == ["t", "large"]
    assert keeping.size_bytes == len(_key(table(1), typed=True)) + 100


def test_what_was_not_used_for_longest_goes_first():
    tables = [table(number, name=f"t{number}") for number in range(4)]
    size = len(_key(tables[0], typed=True)) + 100
    of, made, keeping = kept(max_bytes=3 * size)
    for place in (0, 1, 2, 0, 3):  # the fourth has no room beside three: t1 goes
        of(tables[place])
    of(tables[0])
    assert (made, keeping.size_bytes) == (["t0", "t1", "t2", "t3"], 3 * size)
    of(tables[1])
    assert (made[4:], keeping.size_bytes) == (["t1"], 3 * size)


def test_what_is_larger_than_all_the_room_is_not_kept():
    of, made, keeping = kept(max_bytes=50)
    of(table(1))
    of(table(1))
    assert (made, keeping.size_bytes) == (["t", "t"], 0)


def test_of_sqlite_the_image_counts():
    backend = SqliteBackend()
    with backend.open(table(1), typed=True) as database:
        assert database.run("SELECT a FROM t").rows == ((1,),)
    pages = 2 * 4096  # SQLite's own table of tables, and this one
    assert backend._images.size_bytes == len(_key(table(1), typed=True)) + pages
    backend.close()


def test_tables_that_cannot_be_made_are_refused_each_time(backend):
    for _ in range(2):
        with pytest.raises(TableError, match="table 't'"):
            backend.open(table("abc"), typed=True)


def test_nothing_of_an_episode_is_in_the_next_over_the_same_tables(backend):
    tables = [Table("t", (Column("a"), Column("b", "INT")), (("x", 1), ("y", 2)))]
    with backend.open(tables, typed=True) as database, backend.open(tables, typed=True) as beside:
        begin, digest = database.snapshot(), database.table_hash(tables)
        for sql in (
            "UPDATE t SET b = 5",
            "ALTER TABLE t ADD COLUMN c TEXT",
            "CREATE TABLE u (a INT)",
            "CREATE TEMPORARY TABLE t2 (a INT)",
            "CREATE INDEX i ON t (b)",
            "BEGIN",
            "INSERT INTO t (a, b) VALUES ('z', 3)",
        ):
            assert database.run(sql).error is None, sql
        assert beside.snapshot() == begin
    with backend.open(tables, typed=True) as database:
        assert (database.snapshot(), database.table_hash(tables)) == (begin, digest)
        assert database.run("SHOW TABLES").rows == (("t",),)
        assert database.run("SHOW INDEX FROM t").rows == ()
        assert database.run("SELECT a, b FROM t ORDER BY b").rows == (("x", 1), ("y", 2))
        for sql in ("SELECT c FROM t", "SELECT 1 FROM u", "SELECT 1 FROM t2"):
            assert database.run(sql).error is not None, sql
