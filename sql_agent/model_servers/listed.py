"""Reads which models a server lists, and under which of these names it serves one. Pure."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Any

# Ollama lists names with this tag and takes them without it.
TAG = ":latest"
# Gemini's servers list names with it and take them without it.
PREFIX = "models/"


def listed_models(answer: Any) -> dict[str, dict[str, Any]]:
    """What a server's `/models` says about each; none if that is no list of models."""
    if isinstance(answer, dict):
        answer = next((answer[name] for name in ("data", "models") if isinstance(answer.get(name), list)), None)
    entries = [e if isinstance(e, dict) else {"id": e} for e in answer] if isinstance(answer, list) else []
    named = [(next((e[n] for n in ("id", "name", "model") if isinstance(e.get(n), str)), None), e) for e in entries]
    return {name: entry for name, entry in named if name}


def served_as(model: str, listed: Collection[str]) -> str | None:
    """The listed name of a model, or the pattern (of a router, `openai/*`) that it fits; None without one."""
    names = (model, model + TAG, model.removesuffix(TAG), PREFIX + model, model.removeprefix(PREFIX))
    patterns = (pattern for pattern in listed if "*" in pattern and fnmatchcase(model, pattern))
    return next((name for name in names if name in listed), next(patterns, None))


def lists_all(listed: Collection[str]) -> bool:
    # A router with patterns may know further names.
    return bool(listed) and not any("*" in name for name in listed)
