"""What `agentgrpo` does with the words behind it."""

import ast
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from agentgrpo.main import COMMANDS

ROOT = Path(__file__).parents[2]


def typed(*words: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-m", "agentgrpo", *words], cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def names(shown: str) -> list[str]:
    first, blank, *rows = shown.splitlines()
    assert (first, blank) == ("usage: agentgrpo COMMAND [--help] ...", "")
    return [row.strip().partition("  ")[0] for row in rows]


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_all_commands_are_listed(words):
    code, shown, error = typed(*words)
    assert (code, names(shown), error) == (0, [*COMMANDS], "")


@pytest.mark.parametrize("words", [("reward",), ("reward", "--help")])
def test_a_group_lists_its_own(words):
    code, shown, error = typed(*words)
    assert (code, error) == (0, "")
    own = ("convert", "pairs", "validate", "train", "evaluate", "merge", "serve", "score")
    assert names(shown) == [f"reward {name}" for name in own]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("sfft", "--model", "m"), "error: no command 'sfft'; did you mean sft?"),
        (("reward", "sevre"), "error: no command 'reward sevre'; did you mean reward serve?"),
        (("xyzzy",), "error: no command 'xyzzy'"),
    ],
)
def test_another_name_is_refused_with_the_nearest(words, said):
    assert typed(*words) == (2, "", f"{said}; `agentgrpo --help` lists the commands\n")


def test_a_command_of_two_words_reads_the_words_behind_them():
    code, shown, _ = typed("tasks", "generate", "--help")
    assert (code, shown.split(" [")[0]) == (0, "usage: agentgrpo tasks generate")
    code, shown, _ = typed("tasks", "validate", "nowhere.json")
    assert (code, shown.partition(";")[0]) == (1, "nowhere.json: no such file")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_a_module_with_a_main(name):
    spec = find_spec(COMMANDS[name][0])
    assert spec is not None and spec.origin is not None
    parts = ast.parse(Path(spec.origin).read_text()).body
    assert "main" in [part.name for part in parts if isinstance(part, ast.FunctionDef)]


SCRIPT = """
from agentgrpo.commands import starting
starting()
import evaluate
"""


def test_the_modules_beside_a_script_hide_no_package(tmp_path):
    for folder in ("packages", "scripts"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "evaluate.py").write_text(f"print({folder!r})")
    (tmp_path / "scripts" / "train.py").write_text(SCRIPT)
    paths = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path / "packages"), str(ROOT)])}
    for script, cwd in (("train.py", tmp_path / "scripts"), (str(tmp_path / "scripts" / "train.py"), tmp_path)):
        done = subprocess.run([sys.executable, script], cwd=cwd, env=paths, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("packages\n", "")


def test_code_that_is_no_script_keeps_the_current_folder(tmp_path):
    (tmp_path / "evaluate.py").write_text("print('here')")
    paths = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, env=paths, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("here\n", "")
