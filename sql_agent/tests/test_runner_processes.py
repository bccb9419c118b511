"""A runner that dies is started again by the process above it, which ends with the command and when it is told to."""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from sql_agent.lightning import algorithm
from sql_agent.source.run_context import TrainingFailedError

pytestmark = pytest.mark.slow

KEEPER = """
import sys, time
from pathlib import Path
from sql_agent.lightning import runner_processes
from sql_agent.lightning.runner_processes import _until_told, keep_going
import asyncio

async def work(number):
    print("playing", flush=True)
    try:
        await asyncio.sleep({seconds})
        raise SystemExit({code})
    finally:
        print("cleaned up", flush=True)

runner_processes.RESTART_PAUSE_S = 0.05
keep_going(lambda number: asyncio.run(_until_told(work(number))), 0, Path(sys.argv[1]))
"""


def start(folder: Path, *, seconds: float = 60, code: int = 0) -> subprocess.Popen:
    script = KEEPER.format(seconds=seconds, code=code)
    return subprocess.Popen([sys.executable, "-c", script, str(folder)], stderr=subprocess.PIPE, text=True)


def played(folder: Path, times: int) -> str:
    """The runner's log once it has begun `times` times."""
    deadline, log = time.monotonic() + 60, folder / "runner-0.log"
    while not log.exists() or log.read_text().count("playing") < times:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return log.read_text()


def runner_of(keeper: subprocess.Popen) -> psutil.Process:
    (runner,) = psutil.Process(keeper.pid).children()
    return runner


def test_a_killed_runner_is_started_again_and_the_command_says_so(tmp_path):
    keeper = start(tmp_path)
    played(tmp_path, 1)
    killed = runner_of(keeper)
    killed.kill()
    played(tmp_path, 2)
    assert runner_of(keeper).pid != killed.pid
    keeper.send_signal(signal.SIGTERM)
    assert keeper.wait(20) == 0
    assert keeper.stderr is not None
    assert keeper.stderr.read() == f"runner 0 ended with -9; its log is {tmp_path}/runner-0.log\n"


def test_a_runner_that_is_told_to_end_cleans_up_first(tmp_path):
    keeper = start(tmp_path)
    played(tmp_path, 1)
    keeper.send_signal(signal.SIGTERM)
    assert keeper.wait(20) == 0
    assert "cleaned up" in (tmp_path / "runner-0.log").read_text()


def test_a_runner_does_not_outlive_its_keeper(tmp_path):
    keeper = start(tmp_path)
    played(tmp_path, 1)
    runner = runner_of(keeper)
    keeper.kill()
    keeper.wait()
    psutil.wait_procs([runner], timeout=10)
    assert not runner.is_running()


def test_a_runner_that_keeps_dying_is_given_up(tmp_path):
    keeper = start(tmp_path, seconds=0, code=3)
    assert keeper.wait(60) == 1
    assert keeper.stderr is not None
    assert "runner 0 died 5 times within 60 s and is not started again" in keeper.stderr.read()


async def test_a_run_without_a_runner_left_fails_in_words(monkeypatch, tmp_path):
    monkeypatch.setattr(algorithm, "HEARTBEAT_S", 0.05)
    process = multiprocessing.get_context("fork").Process(target=os._exit, args=(9,), name="runner-0")
    process.start()
    with pytest.raises(TrainingFailedError, match=r"no runner is left \(runner-0 with 9\); their logs are in /"):
        await asyncio.wait_for(algorithm.until_no_runner_is_left(tmp_path), 10)
