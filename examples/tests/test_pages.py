"""Every folder has a page: one file to read, a command that is understood, what it prints and how long it takes."""

import re
import shlex
from pathlib import Path

import pytest

from sql_agent.startup.flags import parse_train_args, resolve

EXAMPLES = Path(__file__).parents[1]
FOLDERS = sorted(
    path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name not in ("tests", "__pycache__")
)


def test_the_examples_are_those_that_are_promised():
    assert FOLDERS == [
        "cluster",
        "grpo_loop",
        "gsm8k",
        "langgraph_agent",
        "mcp",
        "medical",
        "multi_agent",
        "notebook",
        "other_environments",
        "own_agent",
        "own_database",
        "own_environment",
        "own_reward",
        "rllm",
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_page_is_short_and_names_the_file_to_read_and_the_minutes(folder):
    page = (EXAMPLES / folder / "README.md").read_text()
    assert len(page.splitlines()) <= 40
    [file] = re.findall(r"([\w./]+\.(?:py|sh|ipynb))[`)] is the file to read", page)
    assert (EXAMPLES / folder / file).is_file()
    assert re.search(r"(minutes?|seconds) on two cores", page)


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if folder not in ("notebook", "rllm")])
def test_the_flags_of_its_training_command_are_understood(folder, monkeypatch):
    monkeypatch.chdir(EXAMPLES.parent)
    page = (EXAMPLES / folder / "README.md").read_text()
    [command, *_] = re.findall(r"agentgrpo train ((?:.*\\\n)*.*)\n", page)
    assert resolve(parse_train_args(shlex.split(command.replace("\\\n", " ")))).run_dir.parts[0] == "runs"
