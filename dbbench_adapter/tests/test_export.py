"""Rows for trainers: the gold stays out of sight, and the readers of verl, datasets and pandas get the tasks back."""

import json

import pytest

from dbbench_adapter.datatypes import Column, Gold, Table, Task
from dbbench_adapter.export import main, verl_rows, write_verl_parquet
from dbbench_adapter.protocols import PROTOCOLS
from dbbench_adapter.tasks.load import load_tasks, write_tasks

TABLE = Table("fruit", (Column("name"), Column("price", "INT")), (("Plum", 5), ("Pear", None), ("Fig", 2.5)))
SELECT = Task(
    "t-0",
    "Which fruit costs 5?",
    "other",
    (TABLE,),
    Gold(answers=("SECRET",), rows=(("SECRET",),), sql="SELECT SECRET"),
)
DELETE = Task("t-1", "Delete 'Plum'.\u2028", "DELETE", (TABLE,), Gold(sql="DELETE SECRET", table_hash="SECRET"), "note")
TASKS = [SELECT, DELETE]
ROWS = [task.to_dict() for task in TASKS]


def test_a_verl_row_shows_the_question_and_hides_the_gold():
    row = verl_rows(TASKS, PROTOCOLS["fc"].messages)[0]
    assert set(row) == {"data_source", "prompt", "ability", "reward_model", "extra_info", "agent_name"}
    assert (row["data_source"], row["ability"], row["agent_name"]) == ("agentbench", "other", "sql_agent")
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert "Which fruit costs 5?" in row["prompt"][1]["content"]
    shown = {key: value for key, value in row.items() if key != "extra_info"}
    assert "SECRET" not in json.dumps(shown)
    assert Task.from_dict(json.loads(row["extra_info"]["task"])) == SELECT


def read_with_pandas(path):
    import pandas as pd

    return pd.read_parquet(path).to_dict("records")


def read_with_datasets(path):
    import datasets

    return list(datasets.load_dataset("parquet", data_files=str(path), cache_dir=str(path.parent / "cache"))["train"])


@pytest.mark.parametrize("read", [read_with_pandas, read_with_datasets])
def test_tables_of_mixed_cells_survive_the_parquet(tmp_path, read):
    write_verl_parquet(TASKS, tmp_path / "new" / "train.parquet")
    rows = read(tmp_path / "new" / "train.parquet")
    assert [Task.from_dict(json.loads(row["extra_info"]["task"])) for row in rows] == TASKS
    assert [row["extra_info"]["index"] for row in rows] == [0, 1]
    assert [list(row["prompt"]) for row in rows] == [
        row["prompt"] for row in verl_rows(TASKS, PROTOCOLS["fc"].messages)
    ]


def test_verl_reads_the_file(tmp_path):
    """verl's own dataset, which filters prompts by length with the tokenizer before it hands rows to the trainer."""
    from omegaconf import OmegaConf
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from verl.utils.dataset.rl_dataset import RLHFDataset

    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[UNK]")
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"
    write_verl_parquet(TASKS, tmp_path / "train.parquet")
    config = {"cache_dir": str(tmp_path / "cache"), "max_prompt_length": 1024, "return_raw_chat": True}
    config["filter_overlong_prompts_workers"] = 1
    dataset = RLHFDataset(str(tmp_path / "train.parquet"), tokenizer, OmegaConf.create(config))
    assert len(dataset) == 2
    rows = [dataset[index] for index in range(2)]
    assert [row["index"] for row in rows] == [0, 1]
    assert [row["agent_name"] for row in rows] == ["sql_agent", "sql_agent"]
    assert [row["raw_prompt"] for row in rows] == [row["prompt"] for row in verl_rows(TASKS, PROTOCOLS["fc"].messages)]
    assert [Task.from_dict(json.loads(row["extra_info"]["task"])) for row in rows] == TASKS


def test_an_agent_lightning_row_is_the_input_of_a_rollout():
    from agentlightning import EnqueueRolloutRequest

    requests = [EnqueueRolloutRequest(input=row) for row in ROWS]
    assert [Task.from_dict(json.loads(request.model_dump_json())["input"]) for request in requests] == TASKS


# the command --------------------------------------------------------------------------------------------------------


def test_the_command_writes_either_format(tmp_path, capsys):
    write_tasks(tmp_path / "tasks.jsonl", TASKS)
    source = ["--input", str(tmp_path / "tasks.jsonl")]
    assert main([*source, "--format", "verl", "--output", str(tmp_path / "rows.parquet")]) == 0
    assert main([*source, "--format", "agl", "--output", str(tmp_path / "rows.jsonl")]) == 0
    assert "2 rows for agl" in capsys.readouterr().out
    assert len(read_with_pandas(tmp_path / "rows.parquet")) == 2
    lines = (tmp_path / "rows.jsonl").read_text("utf-8").split("\n")[:-1]
    assert [json.loads(line) for line in lines] == ROWS
    assert load_tasks(tmp_path / "rows.jsonl") == TASKS


def test_the_command_names_the_row_that_is_no_task(tmp_path, capsys):
    (tmp_path / "bad.jsonl").write_text('{"description": "?", "type": ["other"]}\n')
    assert main(["--input", str(tmp_path / "bad.jsonl"), "--format", "agl", "--output", str(tmp_path / "x.jsonl")]) == 2
    assert "bad.jsonl, line 1, field label: Field required" in capsys.readouterr().err
    assert not (tmp_path / "x.jsonl").exists()


@pytest.mark.parametrize(
    ("times", "format", "output", "words"),
    [
        pytest.param(1, "verl", "a.json", "a.json has to end in .parquet for --format verl; name another", id="suffix"),
        pytest.param(1, "agl", "a.parquet", "a.parquet has to end in .jsonl for --format agl", id="other_suffix"),
        pytest.param(1, "verl", "mine.parquet", "mine.parquet is there already; name another --output", id="there"),
        pytest.param(1, "verl", "/proc/x/y.parquet", "/proc/x/y.parquet cannot be written", id="no_such_folder"),
        pytest.param(2, "agl", "a.jsonl", "id 't-0' is in 2 rows of the inputs, expected one", id="ids"),
    ],
)
def test_the_command_refuses_outputs_and_inputs_that_cannot_be(tmp_path, capsys, times, format, output, words):
    write_tasks(tmp_path / "tasks.jsonl", TASKS)
    (tmp_path / "mine.parquet").write_text("mine")
    source = ["--input", *[str(tmp_path / "tasks.jsonl")] * times]
    assert main([*source, "--format", format, "--output", str(tmp_path / output)]) == 2
    assert words in capsys.readouterr().err
    assert (tmp_path / "mine.parquet").read_text() == "mine"
    assert {file.name for file in tmp_path.iterdir()} == {"tasks.jsonl", "mine.parquet"}
