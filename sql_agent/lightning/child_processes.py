"""Starts the processes that `algorithm` talks to.

It stands apart because verl's process, whose imports take longest, starts before this one imports agent-lightning.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

from agentgrpo.machine import HOME
from sql_agent.cluster.network import TOKEN_MODE, Network

STARTED = "--- started anew\n"
"""A line of a log; what an earlier start of the run wrote is before it."""


def log_file(run_dir: Path, name: str) -> Path:
    return run_dir / "logs" / f"{name}.log"


def start_driver(run_dir: Path, environment: dict[str, str], network: Network) -> subprocess.Popen[str]:
    """Start verl's process; its imports take 13 s (measured) before it needs its order."""
    if network.is_loopback:
        environment = environment | {
            "RAY_AUTH_TOKEN": secrets.token_hex(32)
        }  # otherwise Ray writes one to the home folder
    return spawn("sql_agent.verl_side.driver", log=log_file(run_dir, "driver"), environment=environment | TOKEN_MODE)


def spawn(module: str, *args: str, log: Path, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Start `python -m module`, which exchanges lines over its standard streams and logs to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    log.touch(mode=0o600)  # it may hold secrets of libraries or of the user's own code
    with log.open("a") as out:
        out.write(STARTED)
        out.flush()
        return subprocess.Popen(
            [sys.executable, "-m", module, *args],
            cwd=HOME,  # in a clone `python -m` finds the packages here
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=out,
            env={**os.environ, **(environment or {})},
            text=True,
            start_new_session=True,  # Ctrl-C reaches this process only, and it ends the others in order
        )
