"""Keeps beside an adapter what it was trained on, so that a conversation with it has the same prompts and tools."""

from __future__ import annotations

import json
from pathlib import Path

from core.json_text import parse_json
from sql_agent.datatypes import EnvironmentSettings

FILE = "trained_on.json"


def write_trained_on(folder: Path, settings: EnvironmentSettings) -> None:
    found = {"env": settings.type}
    if settings.type == "dbbench":  # the others have one protocol
        found["protocol"] = settings.protocol
    (folder / FILE).write_text(json.dumps(found) + "\n")


def read_trained_on(folder: Path) -> dict[str, str]:
    """Return the flags `env` and `protocol` with which the model in `folder` was trained; {} if it does not say."""
    try:
        found = parse_json((folder / FILE).read_text())
        return {"env": str(found["env"])} | {name: str(found[name]) for name in found.keys() & {"protocol"}}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
