"""Processes that a benchmark starts, talks to in lines, and ends by their pid."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def started(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, *, talks: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """A child that is asked to end afterwards, then killed.

    Args:
        log: takes what the child prints.
        environment: added to this process's.
        talks: its standard streams are for `say` and `answer`; only its errors go to the log. Nobody reads a server's
            lines: it would stop when the pipe is full.
    """
    with log.open("a") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
            stdout=subprocess.PIPE if talks else out,
            stderr=out,
            env={**os.environ, **(environment or {})},
            text=True,
            cwd=ROOT,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]


def say(process: subprocess.Popen[str], message: Any) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str], log: Path) -> Any:
    """The next line of JSON the child says.

    Raises:
        RuntimeError: it ended instead.
    """
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"process {process.pid} ended with {process.wait()} before it answered; its log is {log}")
    return json.loads(line)


def wait_for(url: str, process: subprocess.Popen[str], log: Path, timeout_s: float) -> None:
    """Return as soon as `url` answers.

    Raises:
        RuntimeError: the process that should answer has ended, or has not answered in time.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f"{url} did not answer within {timeout_s:.0f} s; the log is {log}")


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far, its threads included."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system
