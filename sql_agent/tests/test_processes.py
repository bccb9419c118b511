"""Nothing of a run outlives it, and nothing else is touched."""

import os
import signal
import subprocess
import sys
import time

from sql_agent.processes import RUN_ID, end_run, processes_of

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


def test_a_child_ends_with_its_parent_even_when_the_parent_is_killed():
    child = (
        "from sql_agent.processes import end_with_parent; import os, time; end_with_parent();"
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


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
