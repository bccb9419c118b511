"""Decides who may use the service: processes of this machine without a token, others with one."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

from agentgrpo.machine import is_loopback

# The service and the client's command read this environment variable.
TOKEN_VARIABLE = "REWARD_API_TOKEN"


def read_token(host: str, token_file: Path | None) -> str | None:
    """None if clients need no token.

    Raises:
        ValueError: the host is not loopback and no token is given, the file is empty, or no header can hold the token.
    """
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if token_file:
        token = token_file.read_text(encoding="utf-8", errors="replace").strip() if token_file.is_file() else ""
        if not token:
            raise ValueError(
                f"--token-file {token_file}: no such file, or nothing in it; expected one line with the token"
            )
    if not token.isascii() or not token.isprintable():
        raise ValueError("the token holds characters that a header cannot hold; expected printable ASCII")
    if not token and not is_loopback(host):
        raise ValueError(
            f"--host {host} can be reached from other machines, which needs a token: set {TOKEN_VARIABLE} or give "
            "--token-file; 127.0.0.1 needs none"
        )
    return token or None


def positive(text: str) -> float:
    if not 0 < float(text) < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: expected a number above 0")
    return float(text)
