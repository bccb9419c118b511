"""Keeps beside an adapter what it was trained on, so that a conversation with it has the same prompts and tools."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from core.json_text import parse_json
from sql_agent.datatypes import EnvironmentSettings
from sql_agent.environments.registry import ENVIRONMENTS

FILE = "trained_on.json"


class OwnEnvironmentError(ValueError):
    """Says that a model was trained on an environment that only its user can name."""


def write_trained_on(folder: Path, settings: EnvironmentSettings) -> None:
    found = {"env": settings.type}
    if settings.type == "dbbench":  # the others have one protocol
        found["protocol"] = settings.protocol
    (folder / FILE).write_text(json.dumps(found) + "\n")


def read_trained_on(folder: Path) -> dict[str, str]:
    """Return the flags `env` and `protocol` with which the model in `folder` was trained; {} if it does not say.

    Raises:
        OwnEnvironmentError: it was trained on an environment that this project does not have.
    """
    try:
        found = parse_json((folder / FILE).read_text())
        said = {"env": str(found["env"])} | {name: str(found[name]) for name in found.keys() & {"protocol"}}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    if said["env"] not in ENVIRONMENTS:  # naming a file runs it, and whoever made the folder may be a stranger
        raise OwnEnvironmentError(
            f"{folder / FILE} says that the model was trained on {said['env']}, a program that is not part of this "
            f"project; if you trust it, give --env {shlex.quote(said['env'])}"
        )
    return said
