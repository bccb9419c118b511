"""Nothing of a run outlives it, and nothing else is touched."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

import pytest

from agentgrpo.processes import RUN_ID, end_run, own_run, processes_of

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
DEAF = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)",
]


def start(command: list[str], run_id: str) -> subprocess.Popen:
    process = subprocess.Popen(command, env={**os.environ, RUN_ID: run_id}, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def test_only_the_processes_of_the_run_end():
    ours, others = start(SLEEP, "test-a"), start(SLEEP, "test-b")
    assert end_run("test-a") == [ours.pid]
    assert ours.wait(5) == -signal.SIGTERM
    assert others.poll() is None
    assert end_run("test-b") == [others.pid]
    assert others.wait(5) == -signal.SIGTERM


def test_a_process_that_does_not_listen_is_killed():
    deaf = start(DEAF, "test-c")
    end_run("test-c", patience_s=0.2)
    assert deaf.wait(5) == -signal.SIGKILL
    assert processes_of("test-c") == []


def test_an_agent_of_ray_has_no_environment_left_and_is_known_by_its_log(tmp_path):
    folder = tmp_path / "agentgrpo-0123456789ab"
    folder.mkdir()
    with (folder / "log").open("w") as log:  # a name of Ray's and a file of the run's: each alone is somebody else's
        agent, reader = (_titled(title, stdout=log) for title in ("ray::DashboardAgent", "tail"))
    other = _titled("ray::DashboardAgent")
    (folder / "log").unlink()  # whoever ended the run has removed the folder
    assert end_run("0123456789ab") == [agent.pid]
    assert agent.wait(5) == -signal.SIGTERM
    for process in (reader, other):
        assert process.poll() is None
        process.kill()
        process.wait()


def test_what_the_command_does_after_a_run_has_the_environment_of_before():
    before = dict(os.environ)
    with own_run() as (run_id, folder):
        assert (os.environ[RUN_ID], tempfile.gettempdir()) == (run_id, str(folder))
    assert {**os.environ} == {"TORCHINDUCTOR_CACHE_DIR": os.environ["TORCHINDUCTOR_CACHE_DIR"], **before}
    assert tempfile.gettempdir() != str(folder)


def _titled(title: str, **more: Any) -> subprocess.Popen:
    return subprocess.Popen([title, "60"], executable="/bin/sleep", env={}, **more)


def test_a_child_ends_with_its_parent_even_when_the_parent_is_killed():
    child = (
        "from agentgrpo.processes import end_with_parent; import os, time; end_with_parent();"
        "print(os.getpid(), flush=True); time.sleep(60)"
    )
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    process.wait()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and _alive(pid):
        time.sleep(0.02)
    assert not _alive(pid)


WORKING = """
import asyncio
from agentgrpo.processes import ends_in_order

async def work():
    print("up", flush=True)
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.05)  # as whoever waits for a child to end
        print("cleaned up", flush=True)

with ends_in_order():
    try:
        asyncio.run(work())
    except KeyboardInterrupt:
        print("stopped", flush=True)
"""
IN_THE_BACKGROUND = ["sh", "-c", "trap '' INT HUP; exec \"$@\"", "sh"]
"""How a script's shell starts `nohup COMMAND &`."""


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_told_to_stop_cleans_up(sign, heard_signals):
    process = start([sys.executable, "-c", WORKING], "test-d")
    process.send_signal(sign)
    out, _ = process.communicate(timeout=10)
    assert (out, process.returncode) == ("cleaned up\nstopped\n", 0)


def test_a_command_in_the_background_of_a_script_stops_at_sigterm_and_at_nothing_else():
    process = start([*IN_THE_BACKGROUND, sys.executable, "-c", WORKING], "test-e")
    for sign in (signal.SIGINT, signal.SIGHUP):  # Ctrl-C for the script, the end of its terminal
        process.send_signal(sign)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=10)
    assert (out, process.returncode) == ("cleaned up\nstopped\n", 0)


def test_a_second_signal_does_not_break_into_the_clean_up(heard_signals):
    slow = WORKING.replace("sleep(0.05)", "sleep(1.0)")
    process = start([sys.executable, "-c", slow], "test-f")
    for sign in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP):
        process.send_signal(sign)
        time.sleep(0.2)
    out, _ = process.communicate(timeout=10)
    assert (out, process.returncode) == ("cleaned up\nstopped\n", 0)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
