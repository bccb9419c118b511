"""A file means the same to every command that reads rows: containers times readers."""

import bz2
import gzip
import io
import json
import lzma
import pickle
import sqlite3
import tarfile
import zipfile
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dbbench_adapter.engines.sqlite.databases import DatabaseFiles
from dbbench_adapter.generator import generate_tasks
from dbbench_adapter.tasks.load import load_tasks
from dbbench_adapter.tasks.single_skill import read_each_once
from reward_model.pairs_from_rollouts import read_rollouts
from reward_model.preferences import read_any_form, read_preferences
from sql_agent.environments.rows import read_placed_tasks as read_environment_rows
from sql_agent.gsm8k.problems import read_problems
from sql_agent.sft.data import read_messages
from sql_agent.text_to_sql.load import read_questions

MARK = b"\xef\xbb\xbf"
SAID = "How many\u2028 é"  # a line break to Python, and none in JSON


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    path = tmp_path_factory.mktemp("database") / "ferries.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE ferry (name TEXT)")
    return DatabaseFiles(path)


def of_folder(path):
    """A folder of rollouts is read by its *.jsonl."""
    return read_rollouts(path.rename(path.with_suffix(".jsonl")).parent)


RECORD = {
    "task": {"id": "t"},
    "verdict": {"value": 1.0, "reason": "match"},
    "messages": [{"role": "user", "content": SAID}, {"role": "assistant", "content": "3"}],
}
MESSAGES = [{"role": "user", "content": SAID}, {"role": "assistant", "content": "3"}]
PAIR = {"prompt": SAID, "chosen": "It is 3.", "rejected": "No idea."}
READERS = {
    "questions": (
        lambda path, database: [task.question for task in read_questions(path, database)],
        [{"question": f"{SAID} {i}", "query": "SELECT COUNT(*) FROM ferry"} for i in range(3)],
    ),
    "tasks": (
        lambda path, _: [task.question for task in load_tasks(path)],
        [task.to_dict() for task in generate_tasks(3, seed=0)],
    ),
    "single skill": (
        lambda path, _: [task.question for task in read_each_once(path)],
        [task.to_dict() for task in generate_tasks(3, seed=0)],
    ),
    "own environment": (
        lambda path, _: [placed.task.row for placed in read_environment_rows(path, "own")],
        [{"prompt": SAID, "answer": i} for i in range(3)],
    ),
    "gsm8k": (
        lambda path, _: [row["question"] for row in read_problems(path)],
        [{"question": f"{SAID} {i}", "answer": "#### 3"} for i in range(3)],
    ),
    "fine-tuning": (
        lambda path, _: [one.messages for one in read_messages(path).kept],
        [{"messages": MESSAGES} for _ in range(3)],
    ),
    "pairs": (lambda path, _: read_any_form(path)[0], [PAIR for _ in range(3)]),
}
"""What reads a file, with a database of its own, and rows for it."""


def lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def array(rows):
    return json.dumps(rows, ensure_ascii=False, indent=1).encode()


def parquet(rows):
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


READ = {
    "mark": lambda rows: MARK + lines(rows),
    "mark_before_each_line": lambda rows: MARK + lines(rows).replace(b"\n", b"\n" + MARK),
    "mark_before_a_list": lambda rows: MARK + array(rows),
    "line_ends_of_windows": lambda rows: lines(rows).replace(b"\n", b"\r\n"),
    "end_mark_of_dos": lambda rows: lines(rows) + "\u00a0\n\x1a".encode(),
    "list": array,
    "printed": lambda rows: b"\n".join(json.dumps(row, indent=2).encode() for row in rows),
    "list_in_an_object": lambda rows: json.dumps({"version": 1, "data": rows}).encode(),
    "list_in_an_object_then_end_mark": lambda rows: json.dumps({"data": rows}).encode() + b"\n\x1a",
}


@pytest.mark.parametrize("container", READ)
@pytest.mark.parametrize("reader", READERS)
def test_rows_are_the_same_in_every_container(tmp_path, database, reader, container):
    read, rows = READERS[reader]
    plain, held = tmp_path / "plain.jsonl", tmp_path / "rows.data"
    plain.write_bytes(lines(rows))
    held.write_bytes(READ[container](rows))
    assert len(read(plain, database)) == 3
    assert read(held, database) == read(plain, database)


@pytest.mark.parametrize("reader", ["questions", "own environment", "gsm8k", "fine-tuning", "pairs"])
def test_parquet_is_known_by_its_content(tmp_path, database, reader):
    read, rows = READERS[reader]
    plain, held = tmp_path / "plain.jsonl", tmp_path / "rows.data"
    plain.write_bytes(lines(rows))
    held.write_bytes(parquet(rows))
    assert read(held, database) == read(plain, database)


def archive(rows, pack):
    buffer = io.BytesIO()
    pack(buffer, lines(rows))
    return buffer.getvalue()


def zipped(buffer, content):
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("rows.jsonl", content)


def tarred(buffer, content):
    with tarfile.open(fileobj=buffer, mode="w") as file:
        entry = tarfile.TarInfo("rows.jsonl")
        entry.size = len(content)
        file.addfile(entry, io.BytesIO(content))


def arrow(rows):
    table, buffer = pa.Table.from_pylist(rows), io.BytesIO()
    with pa.ipc.new_file(buffer, table.schema) as file:
        file.write_table(table)
    return buffer.getvalue()


def arrow_stream(rows):
    table, buffer = pa.Table.from_pylist(rows), io.BytesIO()
    with pa.ipc.new_stream(buffer, table.schema) as file:
        file.write_table(table)
    return buffer.getvalue()


TABLE = [{"a": 1}]
REFUSED = {
    "gzip": (gzip.compress(lines(TABLE)), "is compressed with gzip; unpack it with gunzip"),
    "bzip2": (bz2.compress(lines(TABLE)), "is compressed with bzip2; unpack it with bunzip2"),
    "xz": (lzma.compress(lines(TABLE)), "is compressed with xz; unpack it with unxz"),
    "zstd": (b"\x28\xb5\x2f\xfd\x04", "is compressed with zstd; unpack it with unzstd"),
    "zip": (archive(TABLE, zipped), "is a zip archive or a spreadsheet; unpack it"),
    "tar": (archive(TABLE, tarred), "is a tar archive; unpack it"),
    "arrow": (arrow(TABLE), "is an Arrow file; write it as parquet"),
    "arrow_stream": (arrow_stream(TABLE), "is an Arrow stream; write it as parquet"),
    "pickle": (pickle.dumps(TABLE), "is a pickle, which may run a program"),
    "utf_16": ("[]".encode("utf-16"), "is UTF-16 text; turn it into UTF-8 with `iconv -f UTF-16"),
    "utf_16_big": (b"\xfe\xff" + "[]".encode("utf-16-be"), "is UTF-16 text; turn it into UTF-8 with `iconv -f UTF-16"),
    "utf_16_without_mark": ("[]".encode("utf-16-le"), "is UTF-16 text; turn it into UTF-8 with `iconv -f UTF-16"),
    "utf_32": ("[]".encode("utf-32"), "is UTF-32 text; turn it into UTF-8 with `iconv -f UTF-32"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid", "is a pointer of git-lfs.*git lfs pull"),
    "page": (MARK + b"\n<!DOCTYPE html><html>", "is a web page or XML"),
    "database": (b"SQLite format 3\0", "is a SQLite database; give it as --database"),
}
ALL_READERS = {
    **{name: read for name, (read, _) in READERS.items()},
    "converted pairs": lambda path, _: read_preferences(path),
    "rollouts": lambda path, _: of_folder(path),
}


@pytest.mark.parametrize("container", REFUSED)
@pytest.mark.parametrize("reader", ALL_READERS)
def test_a_file_of_another_kind_says_what_it_is(tmp_path, database, reader, container):
    content, words = REFUSED[container]
    path = tmp_path / "rows.data"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        ALL_READERS[reader](path, database)


@pytest.mark.parametrize("reader", sorted(ALL_READERS.keys() - {"rollouts"}))  # of a folder only *.jsonl is read
def test_a_table_of_commas_says_how_it_becomes_rows(tmp_path, database, reader):
    (tmp_path / "rows.csv").write_text("question,query\na,b\n")
    with pytest.raises(ValueError, match=r"a table of values between commas or tabs; write it as JSON Lines, e\.g\."):
        ALL_READERS[reader](tmp_path / "rows.csv", database)


STRICT = [name for name in READERS if name != "pairs"]
COMMAS = {
    "behind_the_last_row": lambda rows: array(rows)[:-2] + b",\n]",
    "behind_a_row_of_a_line": lambda rows: lines(rows).replace(b"\n", b",\n"),
    "inside_a_row": lambda rows: lines(rows)[:-2] + b", }\n",
    "inside_a_printed_row": lambda rows: array(rows)[:-3].rstrip() + b",\n }\n]",
}


@pytest.mark.parametrize("comma", COMMAS)
@pytest.mark.parametrize("reader", STRICT)
def test_a_comma_too_many_is_named_with_its_line(tmp_path, database, reader, comma):
    read, rows = READERS[reader]
    content = COMMAS[comma](rows)
    path = tmp_path / "rows.data"
    path.write_bytes(content)
    number = {"behind_a_row_of_a_line": 1, "inside_a_row": 3}.get(comma)
    if number is None:  # the last comma of the file
        number = content[: content.rindex(b",")].count(b"\n") + 1
    with pytest.raises(ValueError, match=rf"(?=.*\bline {number}\b)(?=.*\ba comma ).*; delete it"):
        read(path, database)


def test_pairs_are_read_without_the_commas_which_are_counted(tmp_path):
    path = tmp_path / "rows.data"
    path.write_bytes(COMMAS["behind_the_last_row"]([PAIR]))
    assert (len(read_any_form(path)[0]), read_any_form(path)[1]) == (1, {"comma after a row ignored": 1})


def test_converted_pairs_may_begin_with_a_mark(tmp_path):
    turns = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
    pair = {name: [{"role": role, "content": name}] for name, role in turns.items()}
    (tmp_path / "pairs.jsonl").write_bytes(MARK + lines([pair]))
    assert len(read_preferences(tmp_path / "pairs.jsonl")) == 1


def test_a_torn_list_is_an_error_where_nobody_counts_it(tmp_path, database):
    path = tmp_path / "rows.data"
    path.write_bytes(array(READERS["questions"][1])[:-1])
    with pytest.raises(
        ValueError, match=r"row 4: end of the list missing: the file may be torn; fetch or write it again"
    ):
        read_questions(path, database)


def test_an_object_with_a_list_of_objects_is_a_row_unless_the_list_is_called_data(tmp_path):
    row = {"prompt": MESSAGES}
    path = tmp_path / "rows.data"
    path.write_text(json.dumps(row))
    assert [placed.task.row for placed in read_environment_rows(path, "own")] == [row]


QUESTION = [{"role": "user", "content": SAID}]
BETTER, WORSE = ([{"role": "assistant", "content": text}] for text in ("3", "No idea."))


@pytest.mark.parametrize("text", [
    json.dumps,  # of the whole conversation, as an exported table has it
    lambda messages: [json.dumps(message) for message in messages],  # of each, as `datasets` writes parquet
    lambda messages: json.dumps([json.dumps(message) for message in messages]),
], ids=["conversation", "messages", "both"])  # fmt: skip
@pytest.mark.parametrize(
    ("read", "row"),
    [
        (lambda path: [one.messages for one in read_messages(path).kept], {"messages": QUESTION + BETTER}),
        (lambda path: [one.messages for one in read_messages(path).kept], {"prompt": QUESTION, "completion": BETTER}),
        (lambda path: read_any_form(path)[0], {"prompt": QUESTION, "chosen": BETTER, "rejected": WORSE}),
        (lambda path: read_any_form(path)[0], {"messages": QUESTION + BETTER, "rejected_messages": QUESTION + WORSE}),
        (lambda path: [one.task.row for one in read_environment_rows(path, "row")], {"prompt": QUESTION}),
    ],
    ids=["sft", "sft_completion", "pairs", "pairs_of_agents", "environment"],
)
def test_a_conversation_that_is_json_in_a_text_is_a_conversation_to_every_reader(tmp_path, read, row, text):
    """TRL's prompts and completions were learnt as texts of JSON, those of an environment were asked so."""
    plain, packed = tmp_path / "rows.jsonl", tmp_path / "rows.parquet"
    plain.write_bytes(lines([row]))
    packed.write_bytes(parquet([{name: text(messages) for name, messages in row.items()}]))
    assert read(packed) == read(plain)
    assert str(read(plain)).count("assistant") == str(row).count("assistant")
