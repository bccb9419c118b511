"""Writes the tools of an environment in chat-completions form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def tool(name: str, description: str, arguments: Mapping[str, str]) -> dict[str, Any]:
    """A tool in chat-completions form.

    Args:
        arguments: what each is, by name; all are texts, and all are needed.
    """
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string", "description": words} for argument, words in arguments.items()},
        "required": list(arguments),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
