"""`agentgrpo clean` finds what a killed run left by its id, and only that."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from agentgrpo.processes import RUN_ID, processes_of
from sql_agent.commands import clean
from sql_agent.commands.clean import find_leftovers, main

pytestmark = pytest.mark.slow

COMMAND = """
import os, subprocess, sys, tempfile, time
from agentgrpo.processes import own_run
with own_run() as (run_id, folder):
    tempfile.mkdtemp()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print(run_id, child.pid, flush=True)
    time.sleep(60)
"""


@contextmanager
def a_run():
    """A command as the training command is one, with a child and a temporary file; yields (process, run id, child)."""
    command = subprocess.Popen([sys.executable, "-c", COMMAND], stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None
    run_id, child = command.stdout.readline().split()
    try:
        yield command, run_id, int(child)
    finally:
        command.kill()
        command.wait()
        command.stdout.close()


def guard_of(run_id):
    found = []

    def is_listed():  # the kernel shows an empty command line until a process that was just started has its arguments
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # the process has ended
                if entry.read_bytes().split(b"\0")[2:4] == [b"agentgrpo.processes", run_id.encode()]:
                    found.append(int(entry.parent.name))
        return found

    eventually(is_listed)
    (pid,) = found
    return pid


def eventually(holds, within_s=30.0):
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_what_is_left_of_a_run_whose_guard_was_killed_too_is_listed_and_removed_on_demand(capsys):
    with a_run() as (command, run_id, child):
        folder = Path(f"/tmp/agentgrpo-{run_id}")
        other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])  # nothing of ours
        os.kill(guard_of(run_id), signal.SIGKILL)
        command.kill()
        command.wait()
        assert main([]) == 0
        listed = capsys.readouterr().out
        assert f"run {run_id}, its command is gone\n  process {child}: " in listed
        assert f"  folder {folder}, " in listed
        assert "nothing removed" in listed
        assert alive(child) and folder.exists()

        assert main(["--run-id", run_id]) == 0
        assert capsys.readouterr().out.endswith(f"run {run_id}: removed\n")
        assert not alive(child) and not folder.exists()
        assert other.poll() is None
        other.kill()
        other.wait()


def test_a_run_that_goes_on_is_left_alone(capsys):
    with a_run() as (command, run_id, child):
        assert main(["--run-id", run_id]) == 2
        captured = capsys.readouterr()
        assert f"run {run_id}, still running: left alone" in captured.out
        assert "stop it first" in captured.err
        assert alive(child) and command.poll() is None


def test_all_means_all_whose_command_is_gone(monkeypatch, capsys):
    with a_run() as (command, dead, orphan), a_run() as (alive_command, living, child):
        os.kill(guard_of(dead), signal.SIGKILL)
        command.kill()
        command.wait()
        # nobody else's on this machine
        monkeypatch.setattr(
            clean, "find_leftovers", lambda: [left for left in find_leftovers() if left.run_id in (dead, living)]
        )
        assert main(["--all"]) == 0
        out = capsys.readouterr().out
        assert f"run {dead}: removed" in out and f"run {living}: " not in out
        assert not alive(orphan) and alive(child) and alive_command.poll() is None


def test_a_run_without_its_lock_is_touched_only_when_it_is_named(capsys):
    run_id = "0123456789ab"
    environment = {**os.environ, RUN_ID: run_id}
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=environment)
    eventually(lambda: processes_of(run_id) == [process.pid])
    main([])
    assert f"run {run_id}, whose command is unknown" in capsys.readouterr().out
    assert process.poll() is None
    main(["--run-id", run_id])
    assert process.wait(5) == -signal.SIGTERM


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_the_guard_leaves_nothing_of_a_command_that_is_killed(sign):
    with a_run() as (command, run_id, child):
        guard, folder = guard_of(run_id), Path(f"/tmp/agentgrpo-{run_id}")
        command.send_signal(sign)
        command.wait()
        os.kill(child, signal.SIGTERM)  # the guard would wait for it, as long as the processes of a run may take
        eventually(lambda: not folder.exists() and not alive(guard))


def test_only_a_run_id_is_taken_for_one(capsys):
    assert main(["--run-id", "*"]) == 2
    assert "12 digits and letters a to f, in run.json" in capsys.readouterr().err
