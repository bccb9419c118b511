import json
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentgrpo.chat.conversations import RowError
from reward_model.preferences import PreferenceFileError, raw_rows

ROW = {"prompt": "q", "chosen": "é", "rejected": "b"}
LINE = json.dumps(ROW, ensure_ascii=False).encode()


def rows_of(path, content):
    """Rows, with problems as texts, and what was ignored."""
    path.write_bytes(content)
    changes = Counter()
    rows = [(number, str(row) if isinstance(row, RowError) else row) for number, row in raw_rows(path, changes)]
    return rows, changes


@pytest.fixture
def path(tmp_path):
    return tmp_path / "raw.data"


@pytest.mark.parametrize(
    ("content", "numbers"),
    [
        pytest.param(LINE + b"\n" + LINE, [1, 2], id="lines_without_a_last_break"),
        pytest.param(LINE + b"\r\n\r\n  \r\n" + LINE + b"\r\n", [1, 4], id="crlf_and_blank_lines"),
        pytest.param(b"[" + LINE + b"," + LINE + b"]", [1, 2], id="list"),
        pytest.param(b"\n[\n" + LINE + b",\n" + LINE + b"\n]\n", [1, 2], id="list_over_lines"),
        pytest.param(b'{"version": 1, "data": [' + LINE + b"]}", [1], id="list_in_an_object"),
        pytest.param(json.dumps({"data": [ROW, ROW]}, indent=2).encode(), [1, 2], id="list_in_a_printed_object"),
        pytest.param(b'{"data": [\n' + LINE + b"\n]}", [1], id="list_of_one_line_in_an_object"),
        pytest.param(json.dumps(ROW, indent=2).encode(), [1], id="one_printed_row"),
        pytest.param(LINE, [1], id="one_row"),
    ],
)
def test_rows_come_out_of_every_kind_of_json(path, content, numbers):
    assert rows_of(path, content) == ([(number, ROW) for number in numbers], {})


def test_one_row_whose_sides_are_lists_is_a_row_and_no_list_of_rows(path):
    row = {"chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "rejected": "x"}
    assert rows_of(path, json.dumps(row).encode()) == ([(1, row)], {})
    assert rows_of(path, json.dumps(row).encode() + b",") == ([(1, row)], {"comma after a row ignored": 1})


@pytest.mark.parametrize(
    ("content", "change"),
    [
        pytest.param(b"\xef\xbb\xbf" + LINE, "byte-order mark at the start of the file left out", id="bom"),
        pytest.param(
            b"\xef\xbb\xbf[" + LINE + b"]", "byte-order mark at the start of the file left out", id="bom_list"
        ),
        pytest.param(LINE + b",\n", "comma after a row ignored", id="comma"),
        pytest.param(b"[" + LINE + b" , ]", "comma after a row ignored", id="comma_in_a_list"),
        pytest.param(b"[" + LINE, "end of the list missing: the file may be torn", id="list_without_end"),
    ],
)
def test_what_had_to_be_ignored_is_counted(path, content, change):
    assert rows_of(path, content) == ([(1, ROW)], {change: 1})


def test_nan_is_null(path):
    rows, changes = rows_of(path, b'{"a": NaN, "b": [-Infinity]}')
    assert rows == [(1, {"a": None, "b": [None]})] and changes == {"NaN or Infinity read as null": 2}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param(LINE[:-3], "row: not JSON: Unterminated string", id="torn"),
        pytest.param(b'{"a": 1,}', "row: not JSON: ", id="comma_inside"),
        pytest.param(LINE + LINE, 'row: a line with more than one value, from \'{"prompt"', id="two_in_a_line"),
        pytest.param(b'{"a": "\xff"}', "row: not UTF-8: invalid start byte at byte 8; convert by iconv", id="latin_1"),
        pytest.param(b'{"b": {"a": 1, "a": 2}}', "a: an object has this field twice; keep one", id="name_twice"),
        pytest.param(b"[" * 100_000, "row: not JSON", id="too_deep"),
        pytest.param(b'{"a": ' + b"9" * 5000 + b"}", "row: not JSON", id="number_of_5000_digits"),
    ],
)
def test_a_bad_line_costs_that_row_alone(path, line, words):
    rows, _ = rows_of(path, LINE + b"\n" + line + b"\n" + LINE)
    assert [rows[0], rows[2]] == [(1, ROW), (3, ROW)]
    assert rows[1][0] == 2 and rows[1][1].startswith(words)


def test_a_bad_first_line_does_not_make_the_file_one_value(path):
    rows, _ = rows_of(path, LINE[:-3] + b"\n" + LINE[:-4] + b"\n" + LINE)
    assert [number for number, _ in rows] == [1, 2, 3] and rows[2] == (3, ROW)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        pytest.param(b'{"a": 1, "a": {"b": NaN}}', "a: an object has this field twice; keep one", id="name_twice"),
        pytest.param(b'{"a": ' + b"9" * 5000 + b"}", "row: not JSON", id="number_of_5000_digits"),
    ],
)
def test_a_bad_row_of_a_list_costs_that_row_alone(path, bad, words):
    rows, _ = rows_of(path, b"[" + LINE + b"," + bad + b"," + LINE + b"]")
    assert [rows[0], rows[2]] == [(1, ROW), (3, ROW)] and len(rows) == 3
    assert rows[1][0] == 2 and rows[1][1].startswith(words) and "nothing was read" not in rows[1][1]


def test_printed_objects_one_after_the_other_are_rows(path):
    printed = json.dumps(ROW, indent=2).encode()
    twice = b'{\n  "a": 1,\n  "a": 2\n}'
    rows, changes = rows_of(path, b"\n".join([printed, twice, printed + b",", printed]))
    assert rows == [(1, ROW), (2, "a: an object has this field twice; keep one"), (3, ROW), (4, ROW)]
    assert changes == {"comma after a row ignored": 1}
    rows, _ = rows_of(path, printed + b'\n{"prompt":\n' + printed)
    assert rows[0] == (1, ROW) and len(rows) == 2
    assert rows[1][0] == 2 and "nothing after it was read" in rows[1][1]


def test_a_torn_list_gives_the_rows_before_and_says_that_it_is_torn(path):
    rows, _ = rows_of(path, b"[" + LINE + b", " + LINE[:-5])
    assert rows[0] == (1, ROW) and len(rows) == 2
    assert rows[1][0] == 2 and "nothing after it was read" in rows[1][1]


def test_text_after_the_end_is_a_problem(path):
    rows, _ = rows_of(path, b"[" + LINE + b"] oops")
    assert rows == [(1, ROW), (2, "row: text after the end of the list: 'oops'; nothing after it was read")]


def test_an_empty_file_has_no_rows(path):
    assert rows_of(path, b"\n \n") == ([], {})


def test_a_parquet_map_is_an_object(path):
    table = pa.table({"arguments": pa.array([[("q", "1")]], pa.map_(pa.string(), pa.string()))})
    pq.write_table(table, path)
    assert list(raw_rows(path, Counter())) == [(1, {"arguments": {"q": "1"}})]
    table = pa.table({"arguments": pa.array([[("q", "1"), ("q", "2")]], pa.map_(pa.string(), pa.string()))})
    pq.write_table(table, path)
    with pytest.raises(PreferenceFileError, match=r"cannot be read after row 0 \(.*\); fetch or write it again"):
        list(raw_rows(path, Counter()))


def test_parquet_rows_have_only_the_fields_that_are_theirs(path):
    """Parquet gives every struct of a column the fields of all of them; the others are null."""
    messages = [{"role": "user", "content": "q"}, {"role": "tool", "content": "r", "tool_call_id": "a"}]
    rows = [
        {"chosen": messages, "rejected": None, "score": float("nan")},
        {"chosen": [], "rejected": "b", "score": 1.0},
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    changes = Counter()
    expected = [(1, rows[0] | {"score": None}), (2, rows[1])]
    assert list(raw_rows(path, changes)) == expected and changes == {"NaN or Infinity read as null": 1}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"\x1f\x8b\x08", "is compressed with gzip; unpack it with gunzip", id="gzip"),
        pytest.param("{}".encode("utf-16"), "UTF-16 text; turn it into UTF-8", id="utf_16"),
        pytest.param(b"PAR1 and no more", "the parquet file cannot be read", id="torn_parquet"),
        pytest.param(b'{"data": [\n  {"a": 1},\n  {"a"', "neither JSON nor JSON Lines", id="torn_object"),
    ],
)
def test_a_file_that_is_none_of_the_kinds_is_refused(path, content, words):
    with pytest.raises(PreferenceFileError, match=words):
        rows_of(path, content)


def test_a_missing_file_is_refused(path):
    with pytest.raises(PreferenceFileError, match=r"is not a file; give a \.jsonl, \.json or \.parquet file$"):
        raw_rows(path, Counter())
    path.with_name("pairs.jsonl").touch()
    with pytest.raises(PreferenceFileError, match=r"parquet file; did you mean .*pairs\.jsonl\?$"):
        raw_rows(path.with_name("pair.jsonl"), Counter())
