"""The commands of the pages that people type from: each is parsed, and typed in a fresh clone where this machine can.

Without --full those that take minutes are parsed only.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest

from sql_agent.tiny_policy.make import make_tiny_policy

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "doc/tutorial_database.md", "doc/tutorial_agent.md", "doc/predecessors.md")
STARTS = re.compile(r"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/\w+|python3?|make|bash|\. \.venv/bin/activate)(?: |$)")
OURS = ("scripts", "sql_agent", "reward_model", "dbbench_adapter", "examples")
NOT_TYPED = {
    r"\b(?:MODEL|FILE|FOLDER|URL|NAME|ADAPTER|OUT)\b": "it has a name that the reader replaces",
    r"^make (?:demo|test)|scripts/demo\.sh": "it starts the tests, or test_caged_runs.py runs it",
    r"make_pretrained_policy|smollm2|models/shop|runs/shop": "it needs the pretrained model, which is fetched",
    r"agl store|vllm serve|inference_api|--base-url|-model-url|AGL_MANAGED_STORE=0": "it is a server, or needs one",
    r"reward_model/convert_dpo_format|reward_model\.merge|accelerate launch": "it reads what the reader brings",
}
"""What is parsed only, and why."""
MINUTES = re.compile(r"make_tiny_policy|--model models/small|runs/mine|runs/seller(?!.*--dry-run)|tiny_cpu.yaml$")
"""What is typed with --full."""


def commands(page: str) -> list[str]:
    """The commands of a page's code blocks, in order, without their comments."""
    found = []
    for block in blocks(page):
        lines = re.sub(r"\\\n *", "", block).splitlines()
        if STARTS.match(lines[0]):
            found += [re.sub(r"\s{2,}#.*$", "", line).strip() for line in lines]
    return found


def blocks(page: str, language: str = "") -> list[str]:
    """The code blocks of that language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return [text for name, text in fenced if name == language]


ALL = [
    pytest.param(command, id=f"{page}: {command[:70]}")
    for page in (*PAGES, "README.zh-CN.md")
    for command in commands(page)
]


def words_of(command: str) -> list[str]:
    """The words of a command from the name of its program on."""
    words = shlex.split(command.partition("<<<")[0])
    while re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    return words


@lru_cache
def help_of(*program: str) -> str:
    done = subprocess.run(
        [sys.executable, *program, "--help"],
        cwd=ROOT, capture_output=True, text=True, timeout=240, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", ALL)
def test_a_command_of_a_page_names_what_is_there(command):
    program, *words = words_of(command)
    if program.endswith("accelerate"):
        program, words = "python", words[1:]
    if program == "make":
        assert f"\n{words[0]}:" in (ROOT / "Makefile").read_text()
    elif program == "bash":
        assert (ROOT / words[0]).is_file()
    elif program.endswith(("python", "python3")):
        what = words[:2] if words[0] == "-m" else words[:1]
        file = what[-1].replace(".", "/") + ".py" if words[0] == "-m" else what[-1]
        assert file.split("/")[0] in OURS
        assert (ROOT / file).is_file()
        shown = help_of(*what)
        flags = [word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)]
        assert [flag for flag in flags if not re.search(rf"{flag}(?![\w-])", shown)] == []
    for word in words:
        if word.startswith(("sql_agent/configs/", "examples/")):
            assert (ROOT / word.partition(":")[0]).exists(), word


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A fresh clone with the environment and the small policy of the default in it, and the files of the tutorial."""
    clone = tmp_path_factory.mktemp("pages") / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    (clone / ".venv").symlink_to(ROOT / ".venv")
    make_tiny_policy(ROOT / "models" / "tiny-sql")
    shutil.copytree(ROOT / "models" / "tiny-sql", clone / "models" / "tiny-sql")
    tutorial = "doc/tutorial_agent.md"
    (clone / "my_agent.py").write_text(*blocks(tutorial, "python"))
    (clone / "tasks.jsonl").write_text(*(block for block in blocks(tutorial) if block.startswith("{")))
    return clone


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run_in_a_fresh_clone(page, clone, request):
    env = {**os.environ, "PATH": f"{clone}/.venv/bin:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": ""}
    for folder in ("outputs", "runs"):  # each page is typed by another reader
        shutil.rmtree(clone / folder, ignore_errors=True)
    for command in commands(page):
        if any(re.search(pattern, command) for pattern in NOT_TYPED):
            continue
        if MINUTES.search(command) and not request.config.getoption("--full"):
            continue
        done = subprocess.run(
            ["bash", "-c", command], cwd=clone, env=env, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
