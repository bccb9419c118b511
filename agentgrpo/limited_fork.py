"""Runs work in a fork of this process with limits, where a user's file may make it too long or too large.

A chat template is a program, and a config decides how large a model is; neither can be limited inside this process.
This is no sandbox: the fork may do everything else that this process may do.
"""

from __future__ import annotations

import math
import os
import pickle
import resource
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

CPU_S = 10.0
# Seconds of wall clock per second of CPU time. Only work that sleeps or a very busy machine reaches this limit.
PATIENCE = 10
MEMORY_BYTES = 4 * 1024**3


class LimitError(ValueError):
    """The work was stopped; the message is the end of a sentence, such as `took more than 10 s`."""


def forked(work: Callable[[], T], *, cpu_s: float = CPU_S, memory_bytes: int = MEMORY_BYTES) -> T:
    """The result has to be picklable.

    Args:
        memory_bytes: the memory that it may use in addition to that of this process; beyond it a MemoryError is raised.
    Raises:
        LimitError: the work took more than `cpu_s` seconds of CPU time, or its process died.
        RuntimeError: the work raised an error, which the message names.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        _do(work, writer, math.ceil(cpu_s), memory_bytes)
    os.close(writer)
    answer, deadline, late = b"", time.monotonic() + PATIENCE * cpu_s, False
    try:
        while not late:
            late = not select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]
            piece = b"" if late else os.read(reader, 1 << 16)
            if not piece:
                break
            answer += piece
    finally:
        os.close(reader)
        if late or not answer:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if not answer:
        code = os.waitstatus_to_exitcode(status)
        slow = late or code == -signal.SIGXCPU
        raise LimitError(f"took more than {cpu_s:g} s" if slow else f"ended its process ({code}), for want of memory?")
    done, value = pickle.loads(answer)
    if not done:
        raise RuntimeError(value)
    return value


def _do(work: Callable[[], object], writer: int, cpu_s: int, memory_bytes: int) -> None:
    """The child; it never returns."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent reports Ctrl-C
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        status = Path("/proc/self/status").read_text().splitlines()
        own = int(next(line for line in status if line.startswith("VmData:")).split()[1]) * 1024
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        wanted = own + memory_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard < 0 else min(wanted, hard), hard))
        try:
            answer = pickle.dumps((True, work()))
        except BaseException as error:  # the work may raise anything; the parent says what
            answer = pickle.dumps((False, f"{type(error).__name__}: {error}"))
        while answer:
            answer = answer[os.write(writer, answer) :]
    finally:
        os._exit(1)
