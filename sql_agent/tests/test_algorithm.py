"""What the command makes of the events of the process that trains."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sql_agent.lightning import algorithm
from sql_agent.lightning.algorithm import VerlGrpo
from sql_agent.lightning.child_processes import STARTED, spawn
from sql_agent.source.run_context import TrainingFailedError

pytestmark = pytest.mark.slow  # imports agent-lightning


async def follow(monkeypatch, tmp_path, code: str) -> VerlGrpo:
    """What was made of a driver that runs `code`, and is ended afterwards as `run` does it."""
    monkeypatch.setattr(algorithm, "END_S", 0.5)
    driver = subprocess.Popen([sys.executable, "-uc", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    run = VerlGrpo(tmp_path, 600.0, None, {}, driver, lambda _: None)
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


RAY = "\x1b[36m(vLLMHttpServer pid=2795)\x1b[0m "
AT_START = [
    "ERROR 11-28 21:20:47 [core.py:1346] EngineCore failed to start.",
    "ERROR 11-28 21:20:47 [core.py:1346] Traceback (most recent call last):",
    'ERROR 11-28 21:20:47 [core.py:1346]   File "core.py", line 1315, in run_engine_core',
    "ERROR 11-28 21:20:47 [core.py:1346]     engine_core = EngineCoreProc(*args)",
    "ERROR 11-28 21:20:47 [core.py:1346] ValueError: No common block size for 7.",
    "Traceback (most recent call last):",
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
]
KILLED = [
    "ERROR 11-28 21:23:20 [async_llm.py:744] AsyncLLM output_handler failed.",
    "ERROR 11-28 21:23:20 [async_llm.py:744] Traceback (most recent call last):",
    "ERROR 11-28 21:23:20 [async_llm.py:744]     raise self._format_exception(outputs) from None",
    "ERROR 11-28 21:23:20 [async_llm.py:744] vllm.v1.engine.exceptions.EngineDeadError: See stack trace (above).",
    "ERROR:    Exception in ASGI application",
    "AttributeError: 'State' object has no attribute 'server'",
]


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (
            AT_START,
            "the first error of a vLLM engine: EngineCore failed to start: ValueError: No common block size for 7.",
        ),
        (
            KILLED,
            "the first error of a vLLM engine: its process was ended from outside, as the kernel does where memory is "
            "short (`dmesg` says so)",
        ),
        ([*KILLED, STARTED.strip(), "INFO 11-28 21:30:00 [core.py:9] Ready."], None),  # of an earlier start
    ],
)
async def test_the_first_error_of_an_engine_is_said_and_not_what_followed(monkeypatch, tmp_path, lines, cause):
    """A user read `'State' object has no attribute 'server'`, and the cause stood in line 1,063 of a log."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "driver.log").write_text(
        "".join(f"{RAY}{line}\n" for line in lines).replace(RAY + "---", "---")
    )
    failed = """print('{"event": "failed", "error": "lost"}')"""
    with pytest.raises(TrainingFailedError) as raised:
        await follow(monkeypatch, tmp_path, failed)
    log = f"log: {tmp_path}/logs/driver.log"
    assert str(raised.value).splitlines() == ["lost", *([cause] if cause else []), log]


def test_a_child_finds_the_package_though_the_command_was_typed_inside_it(tmp_path, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[1])
    process = spawn("sql_agent.datatypes", log=tmp_path / "log")
    assert process.wait(60) == 0, (tmp_path / "log").read_text()


def test_verls_process_starts_before_the_command_imports_what_takes_seconds():
    code = (
        "import sys, sql_agent.train_sql_agent, sql_agent.lightning.child_processes\n"
        "print(*{'agentlightning', 'agents', 'torch', 'transformers', 'verl', 'ray'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
