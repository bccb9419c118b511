"""Child processes that do not outlive their run.

Every process of a run carries the run's id in its environment. At the end, whatever still carries it is ended: first
asked, then killed. Only processes of this run are touched. Linux only (/proc, prctl).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

RUN_ID = "AGENTGRPO_RUN_ID"
_PR_SET_PDEATHSIG = 1


class Events:
    """JSON lines on the standard output this process was started with; whatever else prints goes to standard error."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def emit(self, event: dict[str, Any]) -> None:
        self._out.write(json.dumps(event) + "\n")


def end_with_parent() -> None:
    """Ask the kernel to send this process SIGTERM when its parent ends, however it ends (prctl PR_SET_PDEATHSIG)."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended in between
        os.kill(os.getpid(), signal.SIGTERM)


def processes_of(run_id: str) -> list[int]:
    """Pids of the living processes that carry `run_id`, this one left out."""
    mark = f"{RUN_ID}={run_id}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0") and _alive(folder):
                found.append(int(folder.name))
        except OSError:
            continue  # ended meanwhile, or another user's
    return found


def end_run(run_id: str, *, patience_s: float = 10.0) -> list[int]:
    """End what is left of a run: SIGTERM, `patience_s` seconds, then SIGKILL.

    Returns:
        Pids that were still there when it was called.
    """
    left = processes_of(run_id)
    for sign, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 5.0)):
        for pid in processes_of(run_id):
            try:
                os.kill(pid, sign)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + wait_s
        while processes_of(run_id) and time.monotonic() < deadline:
            time.sleep(0.05)
    return left


def _alive(folder: Path) -> bool:
    return (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
