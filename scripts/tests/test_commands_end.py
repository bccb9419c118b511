"""Every command ends in one line, also by Ctrl-C in the middle of its imports, and leaves nothing half written."""

import ast
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from agentgrpo import main
from agentgrpo.commands import execute, interruptible, starting
from agentgrpo.run_folder import claim

ROOT = Path(__file__).parents[2]
PACKAGES = ("agentgrpo", "bench", "dbbench_adapter", "reward_model", "scripts", "sql_agent")
CHILDREN = {
    "agentgrpo.commands",
    "sql_agent.lightning.llm_proxy",
    "agentgrpo.processes",
    "sql_agent.verl_side.driver",
}
"""Modules that commands start, which are told to end by them."""


def commands() -> list[str]:
    found = []
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            if "tests" in file.parts or "bench/parts/" in str(file) or name in CHILDREN:
                continue
            if "    execute(main)" in (text := file.read_text()) or f'run_module("{name}")' in text:
                found.append(name)
    return found


MODULES = commands()
"""Modules that can be started by their own name."""
COMMANDS = [*(f"agentgrpo {name}" for name in main.COMMANDS), *MODULES]


REFUSALS = """
import json, sys
from importlib import import_module
from agentgrpo.main import COMMANDS

for name, *argv in json.load(sys.stdin):
    try:
        import_module(COMMANDS[name][0]).main(argv)
    except SystemExit as end:
        print(end.code, file=sys.stderr)
heavy = {"torch", "transformers", "agents", "agentlightning", "verl", "vllm", "ray", "datasets"}
print(sorted(heavy & sys.modules.keys()))
"""
"""Runs the commands of its input one after another, and prints which large libraries they have imported."""


def test_what_takes_no_library_is_refused_before_one_is_imported(tmp_path):
    """A missing file was found after ten seconds of imports, a server that is not there after every reference."""
    database = sqlite3.connect(tmp_path / "shop.sqlite")
    database.execute("CREATE TABLE product (name TEXT, price INT)")
    database.close()
    rows, used, full = tmp_path / "rows.json", tmp_path / "used", tmp_path / "full"
    rows.write_text('[{"question": "What does a lamp cost?", "query": "SELECT price FROM product"}]')
    full.mkdir()
    (full / "notes").touch()
    here = {"--database": tmp_path / "shop.sqlite", "--train-file": rows}
    model = {"--model": ROOT / "pyproject.toml", "--run-dir": tmp_path / "run"}
    server = {"--base-url": "http://127.0.0.1:1/v1", "--model": "m", "--database": tmp_path / "shop.sqlite"}
    refused: list[tuple[str, dict, str]] = [
        ("evaluate", {**server, "--tasks": rows}, "no model server at http://127.0.0.1:1/v1/models"),
        ("evaluate", {**server, "--tasks": "gone.json"}, "gone.json does not exist"),
        ("dpo", {**model, "--dataset": "gone.jsonl"}, "gone.jsonl does not exist"),
        ("dpo", {**model, "--dataset": rows, "--run-dir": full}, "full is not empty"),
        ("sft", {**model, "--dataset": "gone.jsonl"}, "gone.jsonl: no such file; give dbbench"),
        ("gsm8k", {**model, "--dataset": "gone.jsonl"}, "gone.jsonl: no such file, and no other source"),
        ("greedy-grpo", {**model, "--train-file": "gone.jsonl"}, "gone.jsonl does not exist"),
        ("train", {**model, **here, "--train-file": "gone.json"}, "gone.json does not exist"),
    ]
    for name in ("sft", "local"):
        refused += [
            (name, {**model, **here, "--database": "gone.sqlite"}, "gone.sqlite does not exist"),
            (name, {**model, **here, "--train-file": "gone.json"}, "gone.json does not exist"),
            (name, {**model, **here, "--run-dir": used, "--resume": None}, "another run is writing to"),
            (name, {**model, **here, "--run-dir": full}, "full is not empty"),
            (name, {**model, **here}, "pyproject.toml"),
        ]
    lines = [
        [name, *(str(word) for pair in flags.items() for word in pair if word is not None)]
        for name, flags, _ in refused
    ]
    with claim(used):
        done = subprocess.run(
            [sys.executable, "-c", REFUSALS], input=json.dumps(lines), capture_output=True, text=True, cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    said = [line for line in done.stderr.splitlines() if line.strip("0123456789")]
    assert len(said) == len(refused), done.stderr
    assert [words for (*_, words), line in zip(refused, said, strict=True) if words not in line] == []
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_commands_are_found():
    assert {"sql_agent.train_sql_agent", "agentgrpo sft", "reward_model.convert_dpo_format"} <= {*COMMANDS}
    assert len(COMMANDS) > 40


def test_an_earlier_script_starts_the_command_that_it_names():
    ends = {
        file.stem: ast.unparse(ast.parse(file.read_text()).body[-1])
        for file in (ROOT / "scripts").glob("*.py")
        if file.name not in ("__init__.py", "conftest.py")
    }
    names = {
        "download_huggingface_data": "tasks download",
        "generate_db_bench_data": "tasks generate",
        "prepare_single_skill_data": "tasks single-skill",
        "run_dbbench_greedy_grpo": "greedy-grpo",
        "run_experiment": "single-skill",
        "test_interactive": "interactive",
        "train_dpo": "dpo",
        "train_gsm8k_agent": "gsm8k",
        "train_sft": "sft",
    }
    assert ends == {file: f"if __name__ == '__main__':\n    script('{name}')" for file, name in names.items()}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_ready_for_ctrl_c_before_it_imports_anything_large(name):
    """Its statements: `run_module(...)` before any import; or `starting()`, the other imports, ..., `execute(main)`."""
    body = ast.parse((ROOT / f"{name.replace('.', '/')}.py").read_text()).body
    first = next(part for part in body[1:] if not isinstance(part, ast.ImportFrom) or part.module != "__future__")
    if isinstance(first, ast.If):
        assert ast.unparse(first) == (
            f"if __name__ == '__main__':\n    from agentgrpo.commands import run_module\n    run_module({name!r})"
        )
        return
    at = next(i for i, part in enumerate(body) if "starting()" in ast.unparse(part) and isinstance(part, ast.If))
    before = [alias for part in body[:at] for alias in _imported(part)]
    assert {*before} <= {"__future__", "os", "sys", "agentgrpo.commands"}
    assert ast.unparse(body[-1]) == "if __name__ == '__main__':\n    execute(main)"


def _imported(part: ast.stmt) -> list[str]:
    if isinstance(part, ast.Import):
        return [alias.name for alias in part.names]
    return [str(part.module)] if isinstance(part, ast.ImportFrom) else []


INTERRUPTER = """
import os, runpy, signal, sys

class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == AT:
            os.kill(os.getpid(), signal.SIGINT)

AT, *sys.argv = sys.argv[1:]
sys.meta_path.insert(0, Interrupter())
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def interrupted(command: str, at: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, interrupted when it looks for the module `at`."""
    started = [sys.executable, "-c", INTERRUPTER, at, *command.split(), *arguments]
    return subprocess.run(started, cwd=ROOT, capture_output=True, text=True, timeout=120)


SFT = ("--model_path", "models/tiny-sql", "--dataset", "dbbench")


@pytest.mark.usefixtures("heard_signals")
@pytest.mark.parametrize(
    ("command", "at", "arguments"),
    [
        ("agentgrpo tasks generate", "dbbench_adapter.generate", ()),
        ("agentgrpo doctor", "tomllib", ()),
        ("sql_agent.train_sql_agent", "pydantic", ()),
        ("reward_model.convert_dpo_format", "tqdm", ()),
        *(pytest.param("agentgrpo sft", at, SFT, marks=pytest.mark.slow) for at in ("numpy", "torch", "peft")),
        pytest.param("reward_model.reward_modeling", "trl", ("--dataset_name", "x"), marks=pytest.mark.slow),
        pytest.param("agentgrpo report", "pydantic_core", ("runs/none",), marks=pytest.mark.slow),
        pytest.param("sql_agent.evaluate", "httpx", (), marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_during_imports_is_130_and_no_traceback(command, at, arguments, request):
    if arguments is SFT:  # what is not there is refused before the imports
        request.getfixturevalue("small_policy")
    done = interrupted(command, at, *arguments)
    assert (done.returncode, done.stderr.strip()) == (130, "stopped")


@pytest.mark.usefixtures("heard_signals")
@pytest.mark.parametrize("command", ["agentgrpo sft", "reward_model.convert_dpo_format", "sql_agent.train_sql_agent"])
def test_ctrl_c_at_the_first_own_import_is_130(command):
    """All commands begin alike: `test_a_module_is_ready_for_ctrl_c_before_it_imports_anything_large`."""
    started = [sys.executable, "-c", AT_FIRST, *command.split()]
    done = subprocess.run(started, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr.strip()) == (130, "stopped")


AT_FIRST = """
import os, runpy, signal, sys
import agentgrpo.commands as commands

ready = commands.starting
def starting():
    ready()
    os.kill(os.getpid(), signal.SIGINT)  # while the line after it would import
commands.starting = starting
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


# How `execute` ends ---------------------------------------------------------------------------------------------------


def ends(main, capsys) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        execute(main)
    return end.value.code, capsys.readouterr().err  # pyright: ignore[reportReturnType]


def raising(error):
    def main():
        raise error

    return main


def test_a_command_ends_with_its_status_or_in_one_line(capsys):
    assert ends(lambda: None, capsys) == (0, "")
    assert ends(lambda: 2, capsys) == (2, "")
    assert ends(raising(KeyboardInterrupt()), capsys) == (130, "\nstopped\n")
    gone = "error: gone.yaml: No such file or directory; look at the path and name another\n"
    assert ends(raising(FileNotFoundError(2, "No such file or directory", "gone.yaml")), capsys) == (1, gone)
    with pytest.raises(ZeroDivisionError):
        execute(raising(ZeroDivisionError()))


@pytest.mark.usefixtures("heard_signals")
@pytest.mark.parametrize("becomes", ["raise", "raise ImportError('numpy: half initialised')", "raise RuntimeError"])
def test_what_a_library_makes_of_the_interrupt_is_no_fault_of_ours(becomes):
    script = f"""
import os, signal
from agentgrpo import main
from agentgrpo.commands import execute, interruptible, starting
starting()
def main():
    with interruptible():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            signal.pause()
        except KeyboardInterrupt:
            {becomes}
execute(main)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (130, "\nstopped\n")


def test_a_reader_that_has_read_enough_is_no_fault():
    script = "from agentgrpo.commands import execute; execute(lambda: [print('x' * 999) for _ in range(999)] and 0)"
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait(20)) == (b"", 1)


def test_what_was_started_deaf_to_ctrl_c_stays_so():
    script = """
import signal
from agentgrpo.commands import interruptible, starting
signal.signal(signal.SIGINT, signal.SIG_IGN)
starting()
with interruptible():
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
"""
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=30).returncode == 0


def test_elsewhere_nothing_changes():
    import signal

    before = signal.getsignal(signal.SIGINT)
    with interruptible():
        assert signal.getsignal(signal.SIGINT) == before
    assert starting.__doc__ and os.getpid()
