"""Task files: the three forms, and messages that name file, row and field."""

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentgrpo.row_files import iter_rows
from dbbench_adapter.datatypes import Column, Gold, Table, Task
from dbbench_adapter.tasks.load import TaskFileError, load_tasks, write_tasks
from dbbench_adapter.tests.example_records import HASH, LIFELONG, SELECT, UPDATE


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


def test_statements_of_the_training_form_keep_their_line_breaks_and_dotted_table_names(load):
    table = {**UPDATE["table"], "table_name": "shop.fruit"}
    sql = "UPDATE `shop.fruit`\nSET `Price` = '7'\nWHERE `Fruit` = 'Plum'"
    change = {**UPDATE, "label": [], "sql": {"query": sql}, "answer_md5": [HASH], "table": table}
    select = {**SELECT, "type": ["SELECT"], "label": "[('Pear', 'a\\nb')]", "answer_md5": [], "table": table}
    tasks = load(change, select)
    assert [task.tables[0].name for task in tasks] == ["shop.fruit", "shop.fruit"]
    assert (tasks[0].gold, tasks[1].gold.rows) == (Gold(sql=sql, table_hash=HASH), (("Pear", "a\nb"),))


def test_a_pretty_printed_list_is_read_and_a_misspelt_key_in_it_is_named(load):
    misspelt = {"table_name": "t", "tabel_info": UPDATE["table"]["table_info"]}
    assert [task.id for task in load(json.dumps([UPDATE, SELECT], indent=2), name="list.json")] == ["list-0", "list-1"]
    with pytest.raises(TaskFileError, match=r"list\.json, record 1, field table\.table_info: Field required"):
        load(json.dumps([UPDATE, {**UPDATE, "table": misspelt}], indent=2), name="list.json")


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


def test_lifelong_records_may_also_come_one_per_line(load):
    tasks = load(LIFELONG, {**LIFELONG, "instruction": "List fruit."})
    assert [(task.id, task.question) for task in tasks] == [
        ("file-0", "List cheap fruit."),
        ("file-1", "List fruit."),
    ]


@pytest.fixture
def parquet(tmp_path):
    """The form of the hub: nested fields as Python-literal text."""

    def parquet(*records, name="train.parquet"):
        nested = ("answer_info", "table_info", "skill_list")
        rows = [{key: str(value) if key in nested else value for key, value in record.items()} for record in records]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
        return tmp_path / name

    return parquet


def test_a_parquet_row_is_the_same_task_as_its_json(parquet, load):
    (from_json,) = load(LIFELONG)
    assert load_tasks(parquet(LIFELONG)) == [replace(from_json, id="train-0")]


def test_a_folder_stands_for_the_parquet_file_it_holds(parquet, tmp_path):
    file = parquet(LIFELONG)
    assert load_tasks(tmp_path) == load_tasks(file)
    parquet(LIFELONG, name="more.parquet")
    with pytest.raises(TaskFileError, match=r"expected one \.parquet file in it, found more\.parquet, train\.parquet"):
        load_tasks(tmp_path)


@pytest.mark.parametrize("answer", ["open('ran', 'w')", "[open]", "{'sql': ", ""])
def test_the_text_of_a_parquet_field_is_read_and_never_run(parquet, tmp_path, monkeypatch, answer):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TaskFileError, match=r"train\.parquet, row 1, field answer_info: expected a Python literal"):
        load_tasks(parquet(LIFELONG, {**LIFELONG, "answer_info": answer}))
    assert not (tmp_path / "ran").exists()


# our own ------------------------------------------------------------------------------------------------------------


def test_what_is_written_loads_again_exactly(tmp_path, load):
    tasks = load(UPDATE, {**SELECT, "description": "Which\u2028fruit?"})
    write_tasks(tmp_path / "new" / "tasks.jsonl", tasks)
    assert load_tasks(tmp_path / "new" / "tasks.jsonl") == tasks


# bad files ----------------------------------------------------------------------------------------------------------


def without(record, key):
    return {k: v for k, v in record.items() if k != key}


def with_rows(rows):
    return {"0": {**LIFELONG, "answer_info": {**LIFELONG["answer_info"], "direct": rows}}}


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
        pytest.param(
            [with_rows([["Pear", float("nan")]])], "field answer_info.direct: row 0 holds nan; expected a", id="nan"
        ),
        pytest.param([with_rows([[]])], r"row 0 has no cells; expected rows of a query, or \[\]", id="no_cells"),
        pytest.param([with_rows([["a", 1], ["b"]])], "row 1 has 1 cells and row 0 has 2", id="ragged"),
        pytest.param([{**SELECT, "label": "[('a', 1), ('b',)]"}], "field label: row 1 has 1 cells", id="ragged_label"),
    ],
)
def test_a_bad_file_is_refused_with_row_and_field(load, rows, words):
    with pytest.raises(TaskFileError, match=words):
        load(*rows)


def test_the_first_row_that_is_no_task_ends_the_reading(tmp_path, monkeypatch):
    """A file of two million numbers took 13 s to be refused for its first."""
    file, taken = tmp_path / "tasks.json", []
    file.write_text(json.dumps([0] * 1000))
    monkeypatch.setattr(
        "dbbench_adapter.tasks.load.iter_rows", lambda path: (taken.append(row) or row for row in iter_rows(path))
    )
    with pytest.raises(TaskFileError, match="record 0: has int"):
        load_tasks(file)
    assert len(taken) == 2


def test_a_missing_file_is_named_with_the_forms_known(tmp_path):
    with pytest.raises(TaskFileError, match=r"nowhere\.jsonl: no such file; give an AgentBench \.jsonl"):
        load_tasks(tmp_path / "nowhere.jsonl")


def test_a_file_that_only_calls_itself_parquet_is_refused(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"PAR1\xff\xfe")
    with pytest.raises(TaskFileError, match=r"x\.parquet: the parquet file cannot be read after row 0"):
        load_tasks(tmp_path / "x.parquet")


def test_a_file_of_bytes_is_refused(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"\xff\xe0")
    with pytest.raises(TaskFileError, match=r"x\.bin, line 1: not UTF-8: invalid start byte at byte 1"):
        load_tasks(tmp_path / "x.bin")


def test_an_id_may_not_occur_twice(tmp_path, load):
    (task,) = load(UPDATE)
    write_tasks(tmp_path / "twice.jsonl", [task, task])
    with pytest.raises(TaskFileError, match="id 'file-0' occurs twice"):
        load_tasks(tmp_path / "twice.jsonl")


# the benchmark's own files ------------------------------------------------------------------------------------------


def test_standard_has_its_300_tasks(data_file):
    kinds = [task.kind for task in load_tasks(data_file("agentbench/standard.jsonl"))]
    singles = {"other": 17, "counting": 17, "comparison": 17, "ranking": 17, "INSERT": 100, "UPDATE": 100}
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        **singles,
        **{f"aggregation-{name}": 8 for name in ("SUM", "MIN", "MAX", "AVG")},
    }


def test_lifelong_has_its_500_tasks(data_file):
    kinds = [task.kind for task in load_tasks(data_file("lifelong/entry_dict.json"))]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"SELECT": 350, "DELETE": 56, "UPDATE": 52, "INSERT": 42}


def test_the_parquet_form_of_lifelong_holds_the_same_500_tasks(data_file):
    as_json = load_tasks(data_file("lifelong/entry_dict.json"))
    as_parquet = load_tasks(data_file("lifelong/train-00000-of-00001.parquet"))
    assert [task.id for task in as_parquet] == [f"train-00000-of-00001-{index}" for index in range(500)]
    assert [replace(task, id="") for task in as_parquet] == [replace(task, id="") for task in as_json]
