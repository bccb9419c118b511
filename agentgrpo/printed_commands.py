"""Commands as the user can paste them: with the interpreter that runs this one, quoted for a shell.

A machine may have no `python`, or another one first in its path, and the virtual environment need not be active.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable
from importlib.metadata import distributions, requires
from pathlib import Path

from agentgrpo.machine import IS_CLONE, ROOT


def agentgrpo_command(name: str, *arguments: str | Path) -> str:
    return program_command("agentgrpo", *name.split(), *arguments)


def python_command(module: str, *arguments: str | Path) -> str:
    """A module that has no name among the commands."""
    return _line(sys.executable, "-m", module, *arguments)


def program_command(name: str, *arguments: str | Path) -> str:
    return _line(str(Path(sys.executable).with_name(name)), *arguments)


def install_command(*packages: str) -> str:
    # `make setup` makes an environment without pip.
    return _line(uv_path(), "pip", "install", "--python", sys.executable, *_pins(), *packages)


def _pins() -> list[str | Path]:
    """What keeps a clone's pinned packages where they are, on a CPU and on a GPU, whose vLLM is the real one."""
    if not IS_CLONE:
        return []
    vllm = next((found.version for found in distributions(name="vllm")), "+cpu")
    if not vllm.endswith("+cpu"):
        return ["--constraint", ROOT / "requirements-gpu.txt"]
    return ["--override", ROOT / "scripts" / "overrides.txt", "--constraint", ROOT / "requirements.txt"]


def install_extra(name: str) -> str:
    """
    Args:
        name: one of `optional-dependencies` in pyproject.toml.
    """
    if not IS_CLONE:
        return install_command(f"agentgrpo[{name}] @ file://WHEEL")
    return install_command("-r", str(ROOT / "pyproject.toml"), "--extra", name)


def shipped_settings() -> str:
    return _from_here(str(ROOT / "sql_agent" / "configs"))


EXTRAS = {"poml": "apo", "psycopg": "postgresql", "pymongo": "mongo", "swanlab": "trackers", "trackio": "trackers"}


def remedy_of(package: str) -> str:
    """
    Args:
        package: the name that is imported. A pinned one comes with `make setup`.
    """
    extra = EXTRAS.get(package) or (None if IS_CLONE else extra_of(package, requires("agentgrpo") or ()))
    if extra:
        return install_extra(extra)
    ours = ROOT / ".venv" / "bin" / "python"
    if ours.is_file() and Path(sys.prefix).resolve() != ours.parents[1].resolve():
        return f"this is not the environment of `make setup`: start the command with {_line(str(ours))}"
    return install_command(package)


def extra_of(package: str, required: Iterable[str]) -> str | None:
    """
    Args:
        package: the name that is imported.
        required: the requirements of an installed wheel, as in its metadata (PEP 508).
    """
    name = {"agents": "openai-agents"}.get(package, package.replace("_", "-"))
    of_it = re.compile(rf'{re.escape(name)}(?![\w.-]).*extra == "(\w+)"')
    return next((found[1] for line in required if (found := of_it.match(line))), None)


def uv_path() -> str:
    # `make setup` installs uv into one of two folders where it is missing.
    folders = (ROOT / ".uv" / "bin" / "uv", Path.home() / ".local" / "bin" / "uv")
    return "uv" if shutil.which("uv") else next((str(uv) for uv in folders if uv.is_file()), "uv")


def _line(*words: str | Path) -> str:
    return " ".join(shlex.quote(_from_here(str(word))) for word in words)


def _from_here(word: str) -> str:
    here = f"{Path.cwd()}{os.sep}"
    return word.removeprefix(here) if len(word) > len(here) else word
