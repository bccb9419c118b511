"""A disk that is full, in the middle of what a command writes: one line, nothing half written, nothing lost.

A limit on the size of a file stands for the disk: what is longer cannot be written.
"""

import json
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dbbench_adapter.generator import generate_tasks
from dbbench_adapter.tasks.load import write_tasks
from reward_model import reward_modeling
from reward_model.convert_dpo_format import main as convert
from reward_model.tests.conftest import counting_pairs, make_base
from sql_agent.commands import sft
from sql_agent.model_check import fetch_again
from sql_agent.settings.load import dump_config
from sql_agent.settings.train import TrainConfig
from sql_agent.settings.tuning import SftConfig
from sql_agent.sft.run import commands_after_sft

OF_THE_START = (".lock", "run.json", "config.yaml", "metrics.jsonl", "checkpoints/README.md", "README.md")

ROOT = Path(__file__).parents[2]


def run(*command: object, file_bytes: int | None = None) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    arguments = [sys.executable, *map(str, command)]
    return subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=280, preexec_fn=limit)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


ROOM = "could not be written: File too large; make room on its disk, then start the same command again"


def says(done: subprocess.CompletedProcess[str], words: str) -> None:
    """The command failed, and its last line, the only one of an error, holds the words."""
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr
    assert words in done.stderr.strip().splitlines()[-1]


def test_tasks_that_do_not_fit_leave_the_earlier_file(tmp_path):
    file = tmp_path / "tasks" / "entry_dict.json"
    command = ("-m", "agentgrpo", "tasks", "generate", "--output_path", file, "--overwrite")
    assert run(*command, "--num_samples", 1).returncode == 0
    before = tree(tmp_path)
    says(run(*command, "--num_samples", 40, file_bytes=20_000), f"error: {file} {ROOM}")
    assert tree(tmp_path) == before


def test_splits_and_exports_that_do_not_fit_leave_nothing(tmp_path):
    tasks = tmp_path / "tasks.jsonl"
    write_tasks(tasks, generate_tasks(60, seed=0))
    for form, name in (("verl", "a.parquet"), ("agl", "a.jsonl")):
        out = tmp_path / name
        command = ("-m", "agentgrpo", "tasks", "export", "--input", tasks, "--format", form, "--output", out)
        says(run(*command, file_bytes=3_000), f"error: {out} {ROOM}")
    assert [*tree(tmp_path)] == ["tasks.jsonl"]


PAIR = {"prompt": "What comes after 1?", "chosen": "2", "rejected": "1"}


def test_a_conversion_that_does_not_fit_leaves_nothing_and_one_that_does_may_follow(tmp_path):
    raw, out = tmp_path / "raw.jsonl", tmp_path / "out.jsonl"
    raw.write_text("".join(json.dumps(PAIR | {"prompt": f"What comes after {n}?"}) + "\n" for n in range(500)))
    command = ("reward_model/convert_dpo_format.py", "--input", raw, "--output", out)
    says(run(*command, file_bytes=20_000), f"{ROOM}")
    assert [*tree(tmp_path)] == ["raw.jsonl"]
    assert run(*command).returncode == 0
    assert len(out.read_text().splitlines()) == 500


def test_a_rejected_file_that_was_mended_is_converted_without_more_ado(tmp_path, capsys):
    raw, out, rejects = tmp_path / "raw.jsonl", tmp_path / "out.jsonl", tmp_path / "out.rejects.jsonl"
    flags = [f"--input={raw}", f"--output={out}"]
    raw.write_text('{"nothing": "known"}\n{"nothing": "either"}\n')
    assert convert(flags) == 1
    assert (len(rejects.read_text().splitlines()), out.exists()) == (2, False)
    raw.write_text(json.dumps(PAIR) + "\n")
    assert convert(flags) == 0
    assert (rejects.exists(), len(out.read_text().splitlines())) == (False, 1)
    capsys.readouterr()


@pytest.mark.parametrize("content", ["notes of mine\n", '{"file": "x"}\n', "", "\0\xff"])
def test_a_file_that_is_no_conversions_is_not_replaced(tmp_path, capsys, content):
    raw, rejects = tmp_path / "raw.jsonl", tmp_path / "mine.jsonl"
    raw.write_text(json.dumps(PAIR) + "\n")
    rejects.write_text(content)
    assert convert([f"--input={raw}", f"--output={tmp_path / 'out.jsonl'}", f"--rejects={rejects}"]) == 1
    assert "mine.jsonl is there already; give --overwrite or another --rejects" in capsys.readouterr().err
    assert (rejects.read_text(), (tmp_path / "out.jsonl").exists()) == (content, False)


def finished_run(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.yaml").write_text(dump_config(TrainConfig()))
    (folder / "run.json").write_text('{"run_id": "abc", "device": "cpu"}')
    (folder / "metrics.jsonl").write_text("".join(f'{{"train_step": {n}, "reward/mean": 0.5}}\n' for n in range(1, 5)))
    return folder


@pytest.mark.parametrize("kept", ["report.html", "curve.png"])
def test_a_report_that_does_not_fit_leaves_the_earlier_one(tmp_path, kept):
    folder = finished_run(tmp_path / "run")
    (folder / kept).write_text("earlier")
    before = tree(folder)
    says(run("-m", "agentgrpo", "report", folder, file_bytes=5_000), f"{folder}/curve.png {ROOM}")
    assert tree(folder) == before


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml", "run.json"])
@pytest.mark.parametrize("content", [bytes(range(256)), b"\x00" * 99, b"[1]\n", b"\xff\xfe"])
def test_a_report_of_binary_files_is_refused_with_their_name(tmp_path, name, content):
    from sql_agent.commands.report import main as report

    folder = finished_run(tmp_path / "run")
    (folder / name).write_bytes(content)
    before = tree(folder)
    assert report([str(folder)]) == 2
    assert tree(folder) == before


def test_what_is_printed_to_be_pasted_is_one_word_a_path(tmp_path):
    output = Path("out puts/it's; here")
    for source in ("dbbench", "gsm8k:my data.jsonl", "rows.jsonl"):
        for command in commands_after_sft(
            SftConfig(model_path="m", dataset=source, output_dir=output), None, is_adapter=True
        ):
            words = shlex.split(command)
            assert words[words.index("--model") + 1] == str(output)
            assert "my" not in words
    assert shlex.split(fetch_again(output).split("`")[1])[-1] == str(output)


# Training -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"))


def conversations(file: Path) -> Path:
    with file.open("w") as out:
        for n in range(16):
            messages = [{"role": "user", "content": f"What comes after {n}?"}, {"role": "assistant", "content": f"{n}"}]
            out.write(json.dumps({"messages": messages}) + "\n")
    return file


@pytest.mark.slow
def test_fine_tuning_on_a_full_disk_says_where_it_goes_on(base, tmp_path):
    """The adapter fits, its optimiser does not."""
    rows, output = conversations(tmp_path / "rows.jsonl"), tmp_path / "out"
    command = ("-m", "agentgrpo", "sft", "--model_path", base, "--dataset", rows, "--output_dir", output, "--device",
               "cpu", "--max_length", 256, "--num_epochs", 1, "--save_steps", 1)  # fmt: skip
    done = run(*command, file_bytes=30_000)
    says(done, "make room on its disk, then start the same command again; there is no checkpoint yet, so --resume")
    left = [name for name in tree(output) if name not in OF_THE_START]
    assert left == []
    assert not [path for path in output.rglob("*") if path.name.endswith(".part") or path.name.startswith(".saving")]
    assert sft.main([*map(str, command[3:]), "--resume"]) == 0
    assert (output / "adapter_model.safetensors").is_file()


@pytest.mark.slow
def test_reward_training_on_a_full_disk_leaves_nothing_torn(base, tmp_path):
    from reward_model.preferences import write_preferences

    pairs, output = tmp_path / "pairs.jsonl", tmp_path / "out"
    write_preferences(counting_pairs(16), pairs)
    command = ("reward_model/reward_modeling.py", "--dataset_name", pairs, "--model_name_or_path", base, "--output_dir",
               output, "--max_length", 64, "--num_train_epochs", 1, "--use_cpu", "--held_out_fraction", 0)  # fmt: skip
    done = run(*command, file_bytes=30_000)
    says(done, "make room on its disk, then start the same command again; there is no checkpoint yet, so the same")
    assert [name for name in tree(output) if name not in OF_THE_START] == []
    assert reward_modeling.main([*map(str, command[1:])]) == 0
    assert (output / "reward_model.json").is_file()
