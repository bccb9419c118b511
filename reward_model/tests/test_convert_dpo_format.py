import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_model.convert_dpo_format import convert_pairs, main
from reward_model.pair_forms import FORMS
from reward_model.preferences import read_preferences
from reward_model.validate import check_preference_file

ROOT = Path(__file__).parents[2]
GOOD = {"prompt": "2+2?", "chosen": "4", "rejected": "5"}
AGENT = {
    "messages": [
        {"role": "user", "content": "one?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": {}}}]},
        {"role": "tool", "tool_call_id": "x", "content": "[(1,)]"},
        {"role": "assistant", "content": "1"},
    ],
    "rejected_messages": [{"role": "user", "content": "one?"}, {"role": "assistant", "content": "It is two."}],
    "metadata": {"run": 7},
}


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def run(tmp_path, capsys):
    """Convert a text and give the exit status, what was written, the rejects and what was printed."""

    def run(text, *flags):
        (tmp_path / "raw.jsonl").write_text(text, "utf-8")
        output, rejects = tmp_path / "out.jsonl", tmp_path / "out.rejects.jsonl"
        status = main(["--input", str(tmp_path / "raw.jsonl"), "--output", str(output), *flags])
        said = capsys.readouterr()
        assert not list(tmp_path.glob("*.part"))
        written = [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else None
        refused = [json.loads(line) for line in rejects.read_text().splitlines()] if rejects.exists() else None
        return status, written, refused, said.out + said.err

    return run


def test_a_file_of_mixed_forms_is_written_and_every_reject_is_named(run):
    status, written, rejects, said = run(lines(GOOD, AGENT, GOOD | {"rejected": "4"}) + '{"prompt": "torn')
    assert status == 0
    assert written == [
        {
            "prompt": [{"role": "user", "content": "2+2?"}],
            "chosen": [{"role": "assistant", "content": "4"}],
            "rejected": [{"role": "assistant", "content": "5"}],
            "metadata": {"source": "raw.jsonl:1", "original": ""},
        },
        {
            "prompt": [{"role": "user", "content": "one?"}],
            "chosen": [
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [
                        {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {}}},
                    ],
                },
                {"role": "tool", "content": "[(1,)]", "tool_call_id": "call00001"},
                {"role": "assistant", "content": "1"},
            ],
            "rejected": [{"role": "assistant", "content": "It is two."}],
            "metadata": {"source": "raw.jsonl:2", "original": '{"run": 7}'},
        },
    ]
    torn = "not JSON: Unterminated string starting at at character 12"
    assert rejects == [
        {"file": "raw.jsonl", "row": 3, "field": "rejected", "reason": "says the same as chosen", "format": "explicit"},
        {"file": "raw.jsonl", "row": 4, "field": "row", "reason": torn, "format": None},
    ]
    assert "4 rows read, 2 converted (explicit 1, agent 1), 2 rejected" in said
    assert "row 3, rejected: says the same as chosen" in said and "out.rejects.jsonl" in said


def test_the_report_counts_lengths_duplicates_and_contradictions(run):
    swapped = {"prompt": "2+2?", "chosen": "5", "rejected": "4"}
    status, written, rejects, said = run(lines(GOOD, AGENT, GOOD, swapped))
    assert status == 0 and len(written) == 4 and rejects is None
    said = " ".join(said.split())
    # chosen: 1, then "f" + "{}" + "[(1,)]" + "1" = 10, 1, 1 -> 13 / 4; rejected: 1, "It is two." = 10, 1, 1 -> 13 / 4
    assert "characters 3.2 3.2 0 / 4 / 0 50.0 %" in said
    # chosen: 1, 3, 1, 1 -> 6 / 4; longer once, as long three times -> (1 + 3 / 2) / 4
    assert "messages 1.5 1.0 1 / 3 / 0 62.5 %" in said
    assert "tool calls 0.2 0.0 1 / 3 / 0 62.5 %" in said
    assert "4 pairs over 2 prompts; 2 pairs share the prompt of an earlier one" in said
    assert "the same as an earlier row: 1 (row 3 as row 1)" in said
    assert "the other way round than an earlier row: 1 (row 4 as row 1)" in said


def test_what_is_left_out_is_counted_by_name(run):
    _, written, _, said = run(lines(AGENT | {"tools": [{"name": "f"}], "cost": 3}), "--drop-tools")
    assert [message["role"] for message in written[0]["chosen"]] == ["assistant"]
    assert "changed: field 'cost' left out: 1" in said
    assert "changed: tool calls dropped, on both sides: 1" in said
    assert "changed: tools' schemas dropped: 1" in said


def test_nothing_to_write_is_an_error_that_says_why(run):
    status, written, rejects, said = run(lines({"a": 1}))
    assert (status, written, len(rejects)) == (1, None, 1)
    assert "error: nothing of" in said and "all 1 rows were rejected, see" in said
    status, written, _, said = run("\n", "--overwrite")
    assert (status, written) == (1, None) and "it holds no row" in said


def test_with_nothing_to_write_the_output_of_an_earlier_run_does_not_stay(run):
    assert run(lines(GOOD))[0] == 0
    status, written, _, said = run(lines({"a": 1}), "--overwrite")
    assert (status, written) == (1, None) and "was not written" in said


def test_a_file_that_cannot_be_read_to_its_end_is_written_as_far_as_it_goes_and_is_an_error(run):
    status, written, rejects, said = run(f"[{json.dumps(GOOD)}, {{]")
    assert (status, len(written), len(rejects)) == (1, 1, 1)
    assert "raw.jsonl was not read to its end, see" in said
    assert run(f'[{json.dumps(GOOD)}, {{"a": 1, "a": 2}}]', "--overwrite")[0] == 0


def test_a_byte_order_mark_is_counted_once(run):
    assert "byte-order mark at the start of the file left out: 1" in run("\ufeff" + lines(GOOD))[3]


def test_the_input_is_no_output(tmp_path, capsys):
    raw = tmp_path / "raw.jsonl"
    raw.write_text(lines(GOOD))
    (tmp_path / "link.jsonl").symlink_to(raw)
    for flags in (
        ["--output", str(tmp_path / "link.jsonl")],
        ["--output", str(tmp_path / "o.jsonl"), "--rejects", str(raw)],
    ):
        assert main(["--input", str(raw), *flags, "--overwrite"]) == 1
        assert f"{flags[-2]} {flags[-1]} is the --input" in capsys.readouterr().err
    assert raw.read_text() == lines(GOOD)


def test_existing_outputs_are_kept_unless_told_otherwise(run, tmp_path):
    (tmp_path / "out.rejects.jsonl").write_text('"mine"\n')
    status, written, rejects, said = run(lines(GOOD))
    assert (status, written, rejects) == (1, None, ["mine"]) and "give --overwrite or another --rejects" in said
    # the rejects of an earlier run do not stay beside a file that has none
    status, written, rejects, _ = run(lines(GOOD), "--overwrite")
    assert (status, len(written), rejects) == (0, 1, None)
    status, _, _, said = run(lines(GOOD))
    assert status == 1 and "out.jsonl is there already; give --overwrite or another --output" in said


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        pytest.param(["--input", "nowhere.jsonl", "--output", "o.jsonl"], "nowhere.jsonl does not exist", id="input"),
        pytest.param(["--input", "raw.jsonl", "--output", "."], "expected a file to write", id="folder"),
        pytest.param(["--input", "raw.jsonl", "--output", "/proc/x/o.jsonl"], "cannot be written", id="unwritable"),
        pytest.param(["--input", "raw.jsonl", "--output", "o", "--rejects", "o"], "--rejects and --output", id="same"),
    ],
)
def test_a_bad_path_is_an_error_and_writes_nothing(tmp_path, monkeypatch, capsys, flags, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw.jsonl").write_text(lines(GOOD))
    assert main(flags) == 1
    assert words in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["raw.jsonl"]


def test_a_stopped_conversion_leaves_nothing_that_looks_finished(tmp_path, monkeypatch):
    def stop(self, row, metadata):
        raise KeyboardInterrupt

    monkeypatch.setattr("reward_model.convert_dpo_format.Converter.__call__", stop)
    (tmp_path / "raw.jsonl").write_text(lines(GOOD))
    with pytest.raises(KeyboardInterrupt):
        convert_pairs(tmp_path / "raw.jsonl", tmp_path / "out.jsonl", tmp_path / "rejects.jsonl")
    assert all(file.suffix == ".part" for file in tmp_path.iterdir() if file.name != "raw.jsonl")


@pytest.mark.parametrize("command", [["reward_model/convert_dpo_format.py"], ["-m", "agentgrpo", "reward", "convert"]])
def test_both_ways_to_call_it_work(tmp_path, command):
    (tmp_path / "raw.jsonl").write_text(lines(GOOD))
    arguments = [*command, f"--input={tmp_path / 'raw.jsonl'}", f"--output={tmp_path / 'new' / 'out.jsonl'}"]
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, capture_output=True, timeout=60)
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["out.jsonl"]


def test_parquet_and_jsonl_of_the_same_rows_give_the_same_file(tmp_path):
    rows = [AGENT, AGENT | {"rejected_messages": [{"role": "assistant", "content": "nothing"}]}]
    # as `datasets` writes it: arguments as text, since a struct's fields are those of all rows
    rows[0]["messages"][1]["tool_calls"][0]["function"]["arguments"] = "{}"
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "raw")
    assert convert_pairs(tmp_path / "raw", tmp_path / "a.jsonl", tmp_path / "ra").rejected.total() == 0
    (tmp_path / "raw").write_text(lines(*rows))
    convert_pairs(tmp_path / "raw", tmp_path / "b.jsonl", tmp_path / "rb")
    assert (tmp_path / "a.jsonl").read_text() == (tmp_path / "b.jsonl").read_text()


def test_parquet_that_datasets_wrote_with_messages_as_json_is_read(tmp_path):
    """`chosen` has messages with different fields, which becomes a list of JSON texts."""
    from datasets import Dataset

    rows = [
        {
            "prompt": [{"role": "user", "content": "one?"}],
            "chosen": [*AGENT["messages"][1:]],
            "rejected": [{"role": "assistant", "content": text}],
            "tools": json.dumps([{"type": "function", "function": {"name": "f"}}]),
        }
        for text in ("It is two.", "three")
    ]
    Dataset.from_list(rows, on_mixed_types="use_json").to_parquet(tmp_path / "raw.parquet")
    held = pq.read_table(tmp_path / "raw.parquet").to_pylist()[0]["chosen"]
    assert json.loads(held[0])["role"] == "assistant"
    done = convert_pairs(tmp_path / "raw.parquet", tmp_path / "a.jsonl", tmp_path / "ra")
    assert (done.rejected.total(), done.converter.forms) == (0, {"explicit": 2})
    assert done.converter.changes["messages that were JSON in a text"] == 6
    (tmp_path / "raw").write_text(lines(*rows))
    convert_pairs(tmp_path / "raw", tmp_path / "b.jsonl", tmp_path / "rb")
    ours, theirs = (read_preferences(tmp_path / name) for name in ("a.jsonl", "b.jsonl"))
    assert [one.model_copy(update={"metadata": {}}) for one in ours] == [
        one.model_copy(update={"metadata": {}}) for one in theirs
    ]


def test_the_example_in_the_documentation_is_what_is_written(run):
    text = (ROOT / "doc" / "guides/reward_model.md").read_text()
    example = json.loads(text.split("```json\n")[1].split("```")[0])
    assert run(lines(example))[1] == [example]
    table = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `") and "`--format`" not in line}
    assert set(FORMS) <= table


# Any JSON ------------------------------------------------------------------------------------------------------------

FIELDS = ["prompt", "chosen", "rejected", "messages", "rejected_messages", "conversations", "instruction", "input"]
FIELDS += ["role", "content", "from", "value", "tool_calls", "tool_call_id", "function", "name", "arguments", "tools"]
FIELDS += ["system", "history", "metadata", "text"]
TEXTS = st.sampled_from(
    ["user", "assistant", "tool", "system", "gpt", "function_call", "[]", "\n\nHuman: a\n\nAssistant: b"]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | TEXTS
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system"]), "content": SCALARS | TEXTS},
    optional={"tool_calls": st.just([{"id": "a", "function": {"name": "f", "arguments": {}}}]), "tool_call_id": TEXTS},
)
VALUES = st.recursive(
    SCALARS | st.lists(MESSAGE, max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=8,
)
SIDE = VALUES | st.text(min_size=1) | st.lists(MESSAGE, min_size=1, max_size=3)
ROWS = VALUES | st.fixed_dictionaries(
    {"chosen": SIDE, "rejected": SIDE}, optional={name: SIDE for name in FIELDS if name not in ("chosen", "rejected")}
)


@settings(max_examples=60, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=6), st.booleans())
def test_every_row_is_written_or_rejected_and_what_is_written_is_valid_and_stable(tmp_path_factory, rows, drop_tools):
    folder = tmp_path_factory.mktemp("any")
    (folder / "raw.jsonl").write_text(lines(GOOD, *rows))
    first, second = folder / "first.jsonl", folder / "second.jsonl"
    done = convert_pairs(folder / "raw.jsonl", first, folder / "rejects.jsonl", drop_tools=drop_tools)
    rejects = (folder / "rejects.jsonl").read_text().splitlines() if (folder / "rejects.jsonl").exists() else []
    assert done.rows == 1 + len(rows) == done.summary.pairs + len(rejects)
    report = check_preference_file(first)
    assert (report.rows, report.listed) == (done.summary.pairs, [])
    assert convert_pairs(first, second, folder / "none").rejected.total() == 0
    assert read_preferences(second) == read_preferences(first)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_read_or_refused_in_words(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "raw").write_bytes(content)
    assert main(["--input", str(folder / "raw"), "--output", str(folder / "out")]) in (0, 1)
