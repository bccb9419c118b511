"""Starts the processes of a benchmark: servers that it waits for, and helpers that talk in lines of JSON.

Each is ended by its pid. Other modules measure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from agentgrpo.machine import free_port

ROOT = Path(__file__).resolve().parents[2]
# A server may take at most this long to answer.
START_S = 180.0
AGL_STORE = [str(Path(sys.executable).with_name("agl")), "store", "--host", "127.0.0.1"]


@contextmanager
def started(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, *, talks: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """Start a child process; at the end of the block ask it to end, then kill it.

    Args:
        log: the file for what the child prints.
        environment: variables that are added to those of this process.
        talks: whether its standard streams are for `say` and `answer`, so that only its errors go to the log. A server
            needs False: nobody reads its lines, and it would stop when the pipe is full.
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


def answer(process: subprocess.Popen[str], log: Path) -> Any:
    """Raises RuntimeError: the child ended instead."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"process {process.pid} ended with {process.wait()} before it answered; its log is {log}")
    return json.loads(line)


@dataclass(frozen=True)
class Server:
    url: str
    port: int
    pid: int


@contextmanager
def serving(
    command: Sequence[str], path: str, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Start a server that takes `--port`; yield it as soon as it answers a GET of `path`.

    Raises:
        RuntimeError: the server has ended, or has not answered in time.
    """
    port = free_port()
    with started([*command, "--port", str(port)], log, environment) as process:
        server = Server(f"http://127.0.0.1:{port}", port, process.pid)
        deadline = time.monotonic() + START_S
        while not _answers(server.url + path):
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError(f"{server.url}{path} did not answer within {START_S:.0f} s; the log is {log}")
            time.sleep(0.2)
        yield server


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except OSError:
        return False


@contextmanager
def store(log: Path, command: Sequence[str] = AGL_STORE) -> Iterator[Server]:
    with serving(command, "/v1/agl/health", log, {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}) as server:
        yield server


@contextmanager
def oracle(tasks: Path, log: Path, latency_ms: int) -> Iterator[Server]:
    """Start a model that knows the answers of a task file, and gives each after this many milliseconds."""
    command = python("sql_agent.oracle", "--tasks", str(tasks), "--latency-ms", str(latency_ms))
    with serving(command, "/v1/models", log) as server:
        yield server


def cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system
