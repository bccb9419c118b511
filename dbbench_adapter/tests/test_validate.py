"""Validation: every bad row by file, row and field, where loading stops at the first."""

import json

import pytest

from dbbench_adapter.datatypes import Column, Gold, Table, Task
from dbbench_adapter.engines import TableError
from dbbench_adapter.engines.base import check_tables
from dbbench_adapter.tasks.load import write_tasks
from dbbench_adapter.tests.example_records import HASH, LIFELONG, SELECT, UPDATE
from dbbench_adapter.validate import FIELDS, ReadRow, check_task_file, main, table_faults


@pytest.fixture
def write(tmp_path):
    def write(*rows, name="file.jsonl"):
        path = tmp_path / name
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return path

    return write


def with_table(columns, rows):
    columns = [{"name": name, "type": "TEXT"} for name in columns]
    return {**UPDATE, "table": {"table_name": "t", "table_info": {"columns": columns, "rows": rows}}}


def faults(path):
    return [(fault.where, fault.field, fault.problem) for fault in check_task_file(path).faults]


def test_a_good_file_is_counted_and_nothing_is_wrong(write, capsys):
    assert main([str(write(UPDATE, SELECT))]) == 0
    out = capsys.readouterr().out
    assert "file.jsonl: 2 rows (agentbench 2), nothing wrong" in out
    assert "kinds: UPDATE 1, other 1" in out
    assert "sources: agentbench 2" in out


def test_every_bad_row_is_named_with_every_bad_field(write):
    two_faults = {**UPDATE, "description": 5, "type": []}
    ragged = with_table(["a", "b"], [["1", "2"], ["3"], []])
    names = with_table(["a", "A", ""], [])
    assert faults(write(two_faults, '{"cut": ', {"text": "?"}, ragged, {**names, "description": "?"}, SELECT)) == [
        ("line 1", "description", "Input should be a valid string; found 5"),
        ("line 1", "type", "List should have at least 1 item after validation, not 0; found []"),
        (
            "line 2",
            "",
            "not JSON: Expecting value at character 8",
        ),
        (
            "line 3",
            "",
            "has ['text']; expected an AgentBench record (description, label, type, table), a LifelongAgentBench "
            "record (instruction, answer_info, table_info) or a generated task (id, question, kind, tables, gold)",
        ),
        ("line 4", "table.table_info.rows.1", "expected 2 cells, one per column, found 1"),
        ("line 4", "table.table_info.rows.2", "expected 2 cells, one per column, found 0"),
        ("line 5", "table.table_info.columns", "expected named columns, found ['a', 'A', '']"),
        ("line 5", "table.table_info.columns", "expected each column name once, found 'a', 'A' more than once"),
    ]


def test_a_cell_of_no_type_is_one_fault_at_its_place(write):
    (fault,) = faults(write(with_table(["a"], [["1"], [["x"]]])))
    assert fault[:2] == ("line 1", "table.table_info.rows.1.0")
    assert fault[2].endswith("; found ['x']")


@pytest.mark.parametrize(
    ("row", "field", "words"),
    [
        pytest.param({**SELECT, "label": []}, "label", "expected at least one answer, found none", id="no_label"),
        pytest.param({**SELECT, "label": "Pear"}, "label", "expected a list of values or a printed", id="no_rows"),
        pytest.param({**UPDATE, "label": [], "answer_md5": ""}, "label", "found neither", id="no_reference"),
        pytest.param({**UPDATE, "answer_md5": "abc"}, "answer_md5", "expected 32 hex digits", id="no_hash"),
        pytest.param({**UPDATE, "user_sqlite": True}, "user_sqlite", "remove the record", id="sqlite_file"),
        pytest.param(
            {**LIFELONG, "answer_info": {"sql": "SELECT 1", "md5": HASH}}, "answer_info", "direct set", id="lifelong"
        ),
        pytest.param(
            {"id": "x", "question": "?", "kind": "DELETE", "tables": [], "gold": {}},
            "gold.sql",
            "expected the reference statement of a change",
            id="own",
        ),
    ],
)
def test_a_gold_that_no_judge_can_use_is_named(write, row, field, words):
    ((where, found, problem),) = faults(write(row))
    assert (where, found) == ("line 1", field)
    assert words in problem


def test_a_prompt_that_occurs_twice_is_named(write):
    assert faults(write(UPDATE, {**SELECT, "description": UPDATE["description"]}, SELECT)) == [
        ("line 2", "", "asks the same of the same table as line 1; expected each prompt once")
    ]


def test_an_id_that_occurs_twice_is_named(tmp_path):
    table = Table("t", (Column("a"),), ())
    tasks = [Task("x", question, "other", (table,), Gold(answers=("1",))) for question in ("One?", "Two?")]
    write_tasks(tmp_path / "own.jsonl", tasks)
    assert faults(tmp_path / "own.jsonl") == [("line 2", "id", "'x' is also the id of line 1; expected one row per id")]


@pytest.mark.parametrize(
    "tables",
    [
        (Table("t", (Column("a"), Column("b")), (("1", "2"),)),),
        (Table("t", (Column("a"), Column("A")), ()),),
        (Table("t", (Column(""),), ()),),
        (Table("t", (), ()),),
        (Table("t", (Column("a"),), (("1", "2"),)),),
        (Table("", (Column("a"),), ()),),
        (Table("t", (Column("a"),), ()), Table("T", (Column("a"),), ())),
    ],
)
def test_tables_are_at_fault_exactly_where_no_backend_makes_them(tables):
    row = ReadRow("line 1", FIELDS["own"], Task("x", "?", "other", tables, Gold(answers=("1",))))
    try:
        check_tables(tables)
    except TableError:
        assert list(table_faults(row))
    else:
        assert not list(table_faults(row))


# replay -------------------------------------------------------------------------------------------------------------


def own(sql, kind="UPDATE", **gold):
    table = Table("fruit", (Column("name"), Column("price", "INT")), (("Plum", 5), ("Pear", 4)))
    return Task("x", "?", kind, (table,), Gold(sql=sql, **gold), typed=True)


def replayed(tmp_path, task):
    write_tasks(tmp_path / "own.jsonl", [task])
    return main([str(tmp_path / "own.jsonl"), "--replay", "sqlite"])


@pytest.mark.parametrize(
    ("task", "words"),
    [
        pytest.param(own("UPDATE fruit SET price = 7"), None, id="a_change_without_a_stored_hash_has_to_run"),
        pytest.param(own("SELECT name FROM fruit", "SELECT", rows=(("Pear",), ("Plum",))), None, id="any_order"),
        pytest.param(
            own("UPDATE pears SET price = 7"),
            "field gold.table_hash: replay: the reference does not run",
            id="no_such_table",
        ),
        pytest.param(
            own("UPDATE fruit SET price = 7", table_hash=HASH), f"replay: expected table hash {HASH}, found", id="hash"
        ),
        pytest.param(
            own("SELECT name FROM fruit", "SELECT", rows=(("Pear",),)),
            "field gold.answers: replay: expected 1 row(s) [('Pear',)], found 2 [('Plum',), ('Pear',)]",
            id="rows",
        ),
    ],
)
def test_replay_names_the_references_that_do_not_give_their_gold(tmp_path, capsys, task, words):
    assert replayed(tmp_path, task) == (words is not None)
    out = capsys.readouterr().out
    assert "replayed: 1 references, 0 rows without one to replay" in out
    assert words is None or words in out


def test_replay_counts_the_references_that_sqlite_refuses(tmp_path, capsys):
    assert replayed(tmp_path, own("SELECT STDDEV(price) FROM fruit", "SELECT", rows=((0.5,),))) == 1
    assert "refused: 1 references; SQLite does not run them, --replay mariadb does" in capsys.readouterr().out


def test_the_queries_of_agentbench_answers_are_no_references(write, capsys):
    assert main([str(write(SELECT)), "--replay", "sqlite"]) == 0
    assert "replayed: 0 references, 1 rows without one to replay" in capsys.readouterr().out


def test_an_unknown_backend_is_no_verdict_about_the_file(write, capsys):
    assert main([str(write(SELECT)), "--replay", "oracle"]) == 2
    assert "unknown backend 'oracle'" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_does_not_hide_the_others(write, tmp_path, capsys):
    assert main([str(tmp_path / "nowhere.jsonl"), str(write(SELECT))]) == 1
    out = capsys.readouterr().out
    assert "nowhere.jsonl: no such file" in out
    assert "file.jsonl: 1 rows (agentbench 1), nothing wrong" in out


# the benchmark's own files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # no server reproduces the stored hash of index 225
        ("agentbench/standard.jsonl", {("line 226", "answer_md5")}),
        # an empty column name
        ("agentbench/dev.jsonl", {("line 6", "table.table_info.columns")}),
        # double column names (13, 14) and ragged rows (17, 77)
        (
            "agentbench/standard_v0.2.jsonl",
            {
                ("line 14", "table.table_info.columns"),
                ("line 15", "table.table_info.columns"),
                ("line 18", "table.table_info.rows.25"),
                ("line 78", "table.table_info.rows.12"),
                ("line 226", "answer_md5"),
            },
        ),
    ],
)
def test_the_known_faults_of_agentbench_are_found_and_no_others(data_file, name, expected, capsys):
    path = data_file(name)
    assert main([str(path), "--replay", "sqlite"]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{path}, ")]
    assert len(lines) == len(expected)
    for where, field in expected:
        assert any(line.startswith(f"{path}, {where}, field {field}: ") for line in lines)


def test_lifelong_has_no_faults_but_what_ties_leave_open(data_file):
    path = data_file("lifelong/entry_dict.json")
    assert check_task_file(path).faults == []
