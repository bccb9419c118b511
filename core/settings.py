"""Holds the base class of all settings and reads them from YAML. Importing this module is instant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",  # a misspelt key stops the run at once
        allow_inf_nan=False,
        hide_input_in_errors=True,  # an address may hold a password
        use_attribute_docstrings=True,
        validate_by_name=True,
        serialize_by_alias=True,
    )


def read_settings(file: Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds; an empty file holds an empty one.

    Raises:
        ValueError: the file does not exist, is not YAML, or holds something other than a mapping.
    """
    if not file.is_file():
        what = "is a folder" if file.is_dir() else "does not exist"
        raise ValueError(f"config file {file} {what}; sql_agent/configs has the ones that are shipped")
    try:
        tree = parse_yaml(file.read_text("utf-8"), f"config file {file}")
    except UnicodeDecodeError:
        raise ValueError(f"config file {file} is no text, expected YAML with settings; save it as UTF-8") from None
    if not isinstance(tree, dict | None):
        raise ValueError(f"config file {file} holds a {type(tree).__name__}, expected a mapping of settings")
    return tree or {}


def parse_yaml(text: str, what: str) -> Any:
    """Parse YAML.

    Raises:
        ValueError: the text is not YAML. The parser's own words would quote it, and it may hold a password.
    """
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        fault = getattr(error, "problem", None) or type(error).__name__
        raise ValueError(f"{what} is not YAML: {fault}{where}") from None


def merged(tree: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return both trees as a new one; where both have a value, `other` wins."""
    both = {
        name: merged(tree[name], value) if isinstance(tree.get(name), dict) and isinstance(value, dict) else value
        for name, value in other.items()
    }
    return {**tree, **both}
