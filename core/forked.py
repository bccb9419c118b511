"""Run what a stranger's file makes long or large in a fork of this process, which can be stopped.

A chat template is a program, and a config says how large a model is made: neither can be bounded from inside. Leaves
out keeping it from anything else that this process may do.
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
PATIENCE = 10
"""Wall clock per second of CPU time: only what sleeps, or a machine that is much too busy, comes here first."""
MEMORY_BYTES = 4 * 1024**3


class LimitError(ValueError):
    """It was stopped; the message is a verb's phrase: `took ...`."""


def forked(work: Callable[[], T], *, cpu_s: float = CPU_S, memory_bytes: int = MEMORY_BYTES) -> T:
    """What `work` returns, which has to be picklable.

    Args:
        memory_bytes: that it may take beside what this process has; it gets a MemoryError past that.
    Raises:
        LimitError: it took more than `cpu_s` seconds of CPU time, or its process died.
        RuntimeError: it raised; the message says what.
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
    """In the child, which never returns."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C is said by the parent
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        status = Path("/proc/self/status").read_text().splitlines()
        own = int(next(line for line in status if line.startswith("VmData:")).split()[1]) * 1024
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        wanted = own + memory_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard < 0 else min(wanted, hard), hard))
        try:
            answer = pickle.dumps((True, work()))
        except BaseException as error:
            answer = pickle.dumps((False, f"{type(error).__name__}: {error}"))
        while answer:
            answer = answer[os.write(writer, answer) :]
    finally:
        os._exit(1)
