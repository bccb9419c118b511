"""What the command makes of the events of the process that trains."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sql_agent.lightning import algorithm
from sql_agent.lightning.algorithm import VerlGrpo
from sql_agent.lightning.children import spawn
from sql_agent.settings.load import load_config
from sql_agent.source.run_context import TrainingFailedError

pytestmark = pytest.mark.slow  # imports agent-lightning


async def follow(monkeypatch, tmp_path, code: str) -> VerlGrpo:
    """What was made of a driver that runs `code`, and is ended afterwards as `run` does it."""
    monkeypatch.setattr(algorithm, "END_S", 0.5)
    cfg = load_config(None, [f"run_dir={tmp_path}"])
    driver = subprocess.Popen([sys.executable, "-uc", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    run = VerlGrpo(cfg, {}, driver, lambda _: None)
    try:
        await asyncio.wait_for(run._follow(None), 20)
        return run
    finally:
        driver.kill()
        driver.communicate()


async def test_a_driver_that_has_finished_and_does_not_end_is_not_waited_for(monkeypatch, tmp_path):
    since = time.monotonic()
    run = await follow(monkeypatch, tmp_path, """import time; print('{"event": "finished"}'); time.sleep(60)""")
    assert run.finished and time.monotonic() - since < 10


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("""import time; print('{"event": "failed", "error": "no memory"}'); time.sleep(60)""", "^no memory\nlog: "),
        ("raise SystemExit(3)", "^verl ended with exit code 3; its log has the cause\nlog: "),
    ],
)
async def test_a_driver_that_fails_is_quoted_whether_it_ends_or_not(monkeypatch, tmp_path, code, words):
    with pytest.raises(TrainingFailedError, match=words):
        await follow(monkeypatch, tmp_path, code)


def test_a_child_finds_the_package_though_the_command_was_typed_inside_it(tmp_path, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[1])
    process = spawn("sql_agent.datatypes", log=tmp_path / "log")
    assert process.wait(60) == 0, (tmp_path / "log").read_text()


def test_verls_process_starts_before_the_command_imports_what_takes_seconds():
    code = (
        "import sys, sql_agent.train_sql_agent, sql_agent.lightning.children\n"
        "print(*{'agentlightning', 'agents', 'torch', 'transformers', 'verl', 'ray'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
