"""Task files: the three forms, and messages that name file, row and field."""

import json

import pytest

from dbbench_adapter.load import TaskFileError, load_tasks, split_by_table, write_tasks
from dbbench_adapter.types import Column, Gold, Table, Task

HASH = "0123456789abcdef0123456789abcdef"
UPDATE = {
    "description": "Set the price of Plum to 7.",
    "label": ["UPDATE `Fruit List` SET `Price` = '7' WHERE `Fruit` = 'Plum'"],
    "type": ["UPDATE"],
    "table": {
        "table_name": "Fruit List",
        "table_info": {
            "columns": [{"name": "Fruit", "type": "TEXT"}, {"name": "Price", "type": "INT"}],
            "rows": [["Plum", "5"], ["Pear", 4]],
        },
    },
    "add_description": "The table is called Fruit List.",
    "answer_md5": f"[('{HASH}',)]",
}
SELECT = {**UPDATE, "label": ["Pear"], "type": ["other"], "sql": {"query": "SELECT 1", "length": 8}, "answer_md5": None}
LIFELONG = {
    "sample_index": 0,
    "instruction": "List cheap fruit.",
    "answer_info": {"direct": [["Pear", 4]], "md5": None, "sql": "SELECT name, price FROM fruit ORDER BY price;"},
    "table_info": {
        "name": "fruit",
        "column_info_list": [{"name": "name", "type": "TEXT"}, {"name": "price", "type": "INT"}],
        "row_list": [["Pear", 4], ["Plum", 5]],
    },
    "skill_list": ["select"],
}


@pytest.fixture
def load(tmp_path):
    def load(*rows, name="file.jsonl"):
        path = tmp_path / name
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return load_tasks(path)

    return load


# AgentBench ---------------------------------------------------------------------------------------------------------


def test_an_agentbench_change_holds_its_reference_and_the_bare_hash(load):
    (task,) = load(UPDATE)
    assert task == Task(
        id="file-0",
        question="Set the price of Plum to 7.",
        kind="UPDATE",
        tables=(Table("Fruit List", (Column("Fruit"), Column("Price", "INT")), (("Plum", "5"), ("Pear", 4))),),
        gold=Gold(sql=UPDATE["label"][0], table_hash=HASH),
        table_note="The table is called Fruit List.",
    )


def test_an_agentbench_answer_holds_its_labels(load):
    (task,) = load(SELECT)
    assert (task.kind, task.gold) == ("other", Gold(answers=("Pear",), sql="SELECT 1"))


@pytest.mark.parametrize("stored", ["", [], None])
def test_a_change_without_a_hash_has_its_reference(load, stored):
    (task,) = load({**UPDATE, "label": [], "sql": {"query": "DELETE FROM x"}, "answer_md5": stored})
    assert task.gold == Gold(sql="DELETE FROM x")


def test_the_training_form_has_a_printed_result_and_several_tables(load):
    record = {**SELECT, "type": ["SELECT"], "label": "[('Pear', Decimal('4.5'))]", "table": [UPDATE["table"]] * 2}
    (task,) = load({**record, "sql": {"query": "SELECT a, b FROM t ORDER BY b"}, "evidence": "Cheap is under 5."})
    assert task.gold.label_text == "[('Pear', Decimal('4.5'))]"
    assert (task.gold.rows, task.ordered, len(task.tables)) == ((("Pear", 4.5),), True, 2)
    assert task.evidence == "Cheap is under 5."


# LifelongAgentBench -------------------------------------------------------------------------------------------------


def test_a_lifelong_task_is_typed_and_ordered_like_its_reference(load):
    (task,) = load(json.dumps({"7": LIFELONG}), name="entry_dict.json")
    assert (task.id, task.kind, task.typed, task.ordered) == ("entry_dict-7", "SELECT", True, True)
    assert task.gold == Gold(rows=(("Pear", 4),), sql=LIFELONG["answer_info"]["sql"])
    assert task.table_note == "The table is called fruit and has these headers: name, price."


def test_an_order_inside_a_subquery_orders_nothing(load):
    answer = {**LIFELONG["answer_info"], "sql": "SELECT * FROM (SELECT name FROM fruit ORDER BY price LIMIT 2) AS f"}
    (task,) = load(json.dumps({"0": {**LIFELONG, "answer_info": answer}}))
    assert not task.ordered


# our own ------------------------------------------------------------------------------------------------------------


def test_what_is_written_loads_again_exactly(tmp_path, load):
    tasks = load(UPDATE, {**SELECT, "description": "Which\u2028fruit?"})
    write_tasks(tmp_path / "new" / "tasks.jsonl", tasks)
    assert load_tasks(tmp_path / "new" / "tasks.jsonl") == tasks


# bad files ----------------------------------------------------------------------------------------------------------


def without(record, key):
    return {k: v for k, v in record.items() if k != key}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        pytest.param([], "no rows; expected one task per line", id="empty"),
        pytest.param([UPDATE, '{"description": '], r"file\.jsonl, line 2: not JSON", id="cut_off"),
        pytest.param([{"text": "hello"}], r"line 1: has \['text'\]; expected an AgentBench record", id="another_form"),
        pytest.param(["[1, 2]"], "record 0: has int", id="numbers"),
        pytest.param([without(UPDATE, "label")], "line 1, field label: Field required", id="a_field_is_missing"),
        pytest.param([{**UPDATE, "type": ["A", "B"]}], "field type: .*at most 1 item", id="two_types"),
        pytest.param(
            [{**UPDATE, "answer_md5": "abc"}], "field answer_md5: expected 32 hex digits.*'abc'", id="no_hash"
        ),
        pytest.param([{**UPDATE, "user_sqlite": True}], "field user_sqlite: records over SQLite", id="sqlite_file"),
        pytest.param([{"id": "x", "question": "?", "kynd": "other"}], "line 1, field ", id="a_misspelt_key"),
        pytest.param(
            [{"0": {**LIFELONG, "answer_info": {"sql": "SELECT 1", "md5": HASH}}}],
            "record '0', field answer_info: a SELECT has direct set and md5 null",
            id="gold_of_the_wrong_kind",
        ),
    ],
)
def test_a_bad_file_is_refused_with_row_and_field(load, rows, words):
    with pytest.raises(TaskFileError, match=words):
        load(*rows)


def test_a_missing_file_is_named_with_the_forms_known(tmp_path):
    with pytest.raises(TaskFileError, match=r"nowhere\.jsonl: no such file; give an AgentBench \.jsonl"):
        load_tasks(tmp_path / "nowhere.jsonl")


def test_a_parquet_file_is_no_text(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"PAR1\xff\xfe")
    with pytest.raises(TaskFileError, match=r"not UTF-8 text .*the parquet form of LifelongAgentBench is not read"):
        load_tasks(tmp_path / "x.parquet")


def test_an_id_may_not_occur_twice(tmp_path, load):
    (task,) = load(UPDATE)
    write_tasks(tmp_path / "twice.jsonl", [task, task])
    with pytest.raises(TaskFileError, match="id 'file-0' occurs twice"):
        load_tasks(tmp_path / "twice.jsonl")


# splits -------------------------------------------------------------------------------------------------------------


def over(index, *names):
    tables = tuple(Table(name, (Column("a"),), ()) for name in names)
    return Task(id=f"t-{index}", question="?", kind="other", tables=tables, gold=Gold(answers=("1",)))


def test_no_table_is_on_both_sides_of_a_split():
    # A-B-C hang together (t-1 joins A and b, t-2 joins B and C), D and E stand alone: three groups, a third held out
    tasks = [over(0, "A"), over(1, "A", "b"), over(2, "B", "C"), over(3, "D"), over(4, "E")]
    splits = [split_by_table(tasks, 1 / 3, seed=seed) for seed in range(20)]
    assert {tuple(task.id for task in held_out) for _, held_out in splits} == {
        ("t-0", "t-1", "t-2"),
        ("t-3",),
        ("t-4",),
    }
    assert all(train == [task for task in tasks if task not in held_out] for train, held_out in splits)
    assert split_by_table(tasks, 1 / 3, seed=7) == splits[7]


def test_a_split_that_is_none_is_refused():
    with pytest.raises(ValueError, match="cannot be split by table; give a held-out file"):
        split_by_table([over(0, "A"), over(1, "a")], 0.5, seed=0)
    with pytest.raises(ValueError, match="held_out_fraction is 1, expected a number between 0 and 1"):
        split_by_table([over(0, "A"), over(1, "B")], 1, seed=0)


# the benchmark's own files ------------------------------------------------------------------------------------------


def test_standard_has_its_300_tasks(data_file):
    kinds = [task.kind for task in load_tasks(data_file("agentbench/standard.jsonl"))]
    singles = {"other": 17, "counting": 17, "comparison": 17, "ranking": 17, "INSERT": 100, "UPDATE": 100}
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        **singles,
        **{f"aggregation-{name}": 8 for name in ("SUM", "MIN", "MAX", "AVG")},
    }


def test_lifelong_has_its_500_tasks_over_360_tables(data_file):
    tasks = load_tasks(data_file("lifelong/entry_dict.json"))
    kinds = [task.kind for task in tasks]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"SELECT": 350, "DELETE": 56, "UPDATE": 52, "INSERT": 42}
    train, held_out = split_by_table(tasks, 0.2, seed=0)
    tables_of = [{task.tables[0].name.casefold() for task in part} for part in (train, held_out)]
    assert (len(tables_of[0]) + len(tables_of[1]), tables_of[0] & tables_of[1]) == (360, set())
