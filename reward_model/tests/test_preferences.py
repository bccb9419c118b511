import json
import os

import pytest

from agentgrpo.chat.messages import FunctionCall, Message, ToolCall
from reward_model.datatypes import Preference
from reward_model.preferences import PreferenceFileError, read_preferences, write_preferences

USER = Message(role="user", content="1?")
CALL = Message(
    role="assistant", tool_calls=(ToolCall(id="call00001", function=FunctionCall(name="f", arguments="{}")),)
)
RESULT = Message(role="tool", content="[(1,)]", tool_call_id="call00001")
YES, NO = Message(role="assistant", content="yes"), Message(role="assistant", content="no")
PLAIN = Preference(prompt=(USER,), chosen=(YES,), rejected=(NO,), metadata={"source": "a", "original": ""})
AGENT = Preference(
    prompt=(USER, CALL, RESULT), chosen=(CALL, RESULT, YES), rejected=(NO,), tools='[{"type": "function"}]'
)


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "p.jsonl"
    assert write_preferences([PLAIN, AGENT], path) == 2
    assert read_preferences(path) == [PLAIN, AGENT]
    assert [file.name for file in tmp_path.iterdir()] == ["p.jsonl"]


def test_without_rows_no_file_is_made(tmp_path):
    assert write_preferences([], tmp_path / "p.jsonl") == 0
    assert list(tmp_path.iterdir()) == []


def test_without_rows_an_earlier_file_does_not_stay(tmp_path):
    write_preferences([PLAIN], tmp_path / "p.jsonl")
    assert write_preferences([], tmp_path / "p.jsonl") == 0
    assert list(tmp_path.iterdir()) == []


def test_bytes_that_are_no_utf_8_are_named_with_their_row(tmp_path):
    write_preferences([PLAIN], tmp_path / "p.jsonl")
    with (tmp_path / "p.jsonl").open("ab") as out:
        out.write(b'{"prompt": "\xff"}\n')
    with pytest.raises(PreferenceFileError, match=r"row 2, row: .*invalid unicode.*converts other forms"):
        read_preferences(tmp_path / "p.jsonl")


def test_a_text_that_a_template_has_written_is_named_but_not_in_rollouts(tmp_path):
    path = tmp_path / "p.jsonl"
    row = Preference(prompt=(USER,), chosen=(Message(role="assistant", content="yes<|im_end|>"),), rejected=(NO,))
    write_preferences([PLAIN, row], path)
    with pytest.raises(PreferenceFileError, match=r"p.jsonl, row 2, chosen: holds '<\|im_end\|>', a mark of"):
        read_preferences(path)
    of_a_policy = row.model_copy(update={"metadata": {"task_id": "a", "kind": "b", "sources": ["c", "d"]}})
    write_preferences([of_a_policy], path)
    assert read_preferences(path) == [of_a_policy]


def test_a_broken_off_file_does_not_look_finished(tmp_path):
    def rows():
        yield PLAIN
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_preferences(rows(), tmp_path / "p.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_rows_with_fields_that_come_late_are_put_in_front(tmp_path, monkeypatch):
    monkeypatch.setattr("reward_model.preferences._FIRST_LOOK_BYTES", 600)
    path = tmp_path / "p.jsonl"
    write_preferences([PLAIN] * 10 + [AGENT, PLAIN, AGENT], path)
    assert read_preferences(path) == [AGENT] + [PLAIN] * 11 + [AGENT]
    write_preferences([PLAIN, AGENT] + [PLAIN] * 10 + [AGENT], path)
    assert read_preferences(path) == [PLAIN, AGENT] + [PLAIN] * 10 + [AGENT]
    assert [file.name for file in tmp_path.iterdir()] == ["p.jsonl"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("{", "row 2, row: Invalid JSON", id="no_json"),
        pytest.param('{"prompt": "q", "chosen": "a", "rejected": "b"}', "row 2, prompt: Input should be", id="texts"),
        pytest.param(
            json.dumps(PLAIN.to_dict() | {"rejected": [{"role": "user", "content": "x"}]}),
            "rejected ends with a user message",
            id="user_last",
        ),
    ],
)
def test_a_row_that_is_no_preference_is_named_with_its_field(tmp_path, line, words):
    path = tmp_path / "p.jsonl"
    write_preferences([PLAIN], path)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(PreferenceFileError, match=words):
        read_preferences(path)


def test_a_missing_or_empty_file_says_where_such_files_come_from(tmp_path):
    with pytest.raises(PreferenceFileError, match="agentgrpo reward convert"):
        read_preferences(tmp_path / "p.jsonl")
    (tmp_path / "p.jsonl").touch()
    with pytest.raises(PreferenceFileError, match="holds no row"):
        read_preferences(tmp_path / "p.jsonl")


def test_datasets_reads_a_file_and_trl_and_we_tokenise_it_alike(tmp_path, monkeypatch):
    """The wide first row and 11 MB of plain ones: `datasets` takes the types from the first 10 MiB."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from datasets import load_dataset
    from trl.trainer.reward_config import RewardConfig
    from trl.trainer.reward_trainer import RewardTrainer

    from reward_model.scorer import encode_truncated
    from sql_agent.tiny_policy.tokenizer import build_tokenizer

    wide = Preference(prompt=(Message(role="user", content="x" * 100_000),), chosen=(YES,), rejected=(NO,))
    path = tmp_path / "p.jsonl"
    assert write_preferences([wide.model_copy(update={"metadata": PLAIN.metadata})] * 110 + [PLAIN, AGENT], path) == 112
    assert os.path.getsize(path) > 11_000_000
    rows = load_dataset("json", data_files=str(path), split="train", cache_dir=str(tmp_path))
    assert len(rows) == 112
    short = rows.filter(lambda row: len(row["prompt"][0]["content"]) < 10)
    tokenizer = build_tokenizer(["yes no 1? tool_call name arguments f"])
    args = RewardConfig(output_dir=str(tmp_path / "run"), max_length=None, report_to=[], use_cpu=True)
    prepared = RewardTrainer._prepare_dataset(None, short, tokenizer, args, "train")  # pyright: ignore
    ours = [
        [list(encode_truncated(tokenizer, [*p.prompt, *side], tools=p.tools, max_length=10_000).ids) for side in sides]
        for p in (AGENT, PLAIN)
        for sides in [(p.chosen, p.rejected)]
    ]
    assert [[row["chosen_ids"], row["rejected_ids"]] for row in prepared] == ours


def asks(**arguments) -> Message:
    call = FunctionCall(name="f", arguments=json.dumps(arguments))
    return Message(role="assistant", tool_calls=(ToolCall(id="call00001", function=call),))


@pytest.mark.parametrize("template", ["qwen2_5", "qwen3_instruct_2507"])
def test_trl_writes_the_calls_of_a_file_as_they_were_made_whatever_their_arguments(tmp_path, monkeypatch, template):
    """Calls with other arguments, also after the first 10 MiB; a text would stand in quotes, `\\"query\\"`."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from importlib.util import find_spec
    from pathlib import Path

    from datasets import load_dataset
    from trl.trainer.reward_config import RewardConfig
    from trl.trainer.reward_trainer import RewardTrainer

    from sql_agent.tiny_policy.tokenizer import build_tokenizer

    first = Preference(prompt=(USER,), chosen=(asks(query="SELECT 1"),), rejected=(asks(query="SELECT 2"),))
    long = first.model_copy(update={"prompt": (Message(role="user", content="x" * 100_000),)})
    late = Preference(prompt=(USER,), chosen=(asks(answers=["a", 1.5, None]),), rejected=(asks(n={"k": True}),))
    path = tmp_path / "p.jsonl"
    write_preferences([first, *[long] * 110, late], path)
    assert sorted(map(repr, read_preferences(path))) == sorted(map(repr, [first, *[long] * 110, late]))
    rows = load_dataset("json", data_files=str(path), split="train", cache_dir=str(tmp_path))
    short = rows.filter(lambda row: len(row["prompt"][0]["content"]) < 10)
    tokenizer = build_tokenizer(["1? name arguments f"])
    assert find_spec("trl").submodule_search_locations is not None
    folder = Path(find_spec("trl").submodule_search_locations[0]) / "chat_templates"
    tokenizer.chat_template = (folder / f"{template}.jinja").read_text()
    args = RewardConfig(output_dir=str(tmp_path / "run"), max_length=None, report_to=[], use_cpu=True)
    prepared = RewardTrainer._prepare_dataset(None, short, tokenizer, args, "train")  # pyright: ignore
    written = [tokenizer.decode(row[f"{side}_ids"]) for row in prepared for side in ("chosen", "rejected")]
    calls = [text.partition('"arguments": ')[2].partition("}\n</tool_call>")[0] for text in written]
    assert calls == [  # the late row was put in front
        '{"answers": ["a", 1.5, null]}',
        '{"n": {"k": true}}',
        '{"query": "SELECT 1"}',
        '{"query": "SELECT 2"}',
    ]


@pytest.mark.parametrize("arguments", ["SELECT 1", "[1]", '{"a": NaN}', '{"a": "\\ud83d"}', '{"a": '])
def test_arguments_that_no_json_file_can_hold_as_an_object_stay_a_text(tmp_path, arguments):
    call = ToolCall(id="call00001", function=FunctionCall(name="f", arguments=arguments))
    row = Preference(prompt=(USER,), chosen=(Message(role="assistant", tool_calls=(call,)),), rejected=(NO,))
    write_preferences([row], tmp_path / "p.jsonl")
    assert read_preferences(tmp_path / "p.jsonl") == [row]
    assert json.loads((tmp_path / "p.jsonl").read_text())["chosen"][0]["tool_calls"][0]["function"]["arguments"] == (
        arguments
    )
