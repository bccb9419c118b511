"""Tells a command about the machine that it runs on: free ports, and the commit of this code."""

from __future__ import annotations

import argparse
import socket
import subprocess
from pathlib import Path


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def port_number(text: str) -> int:
    """Parse a flag that takes a TCP port; 0 means a free port."""
    if not 0 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text}: expected 0 to 65535")
    return int(text)


def git_commit() -> str | None:
    """Return the commit of this code, with `-dirty` if tracked files were changed; return None outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
