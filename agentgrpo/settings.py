"""The base class of all settings, and their reading from YAML. Importing this module is instant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import AliasChoices, BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from agentgrpo.printed_commands import shipped_settings
from agentgrpo.spelling import did_you_mean


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


@dataclass(frozen=True)
class VerlKey:
    """verl's key for a setting, in the setting's annotation."""

    key: str


def read_settings(file: Path) -> dict[str, Any]:
    """An empty file holds an empty mapping.

    Raises:
        ValueError: the file does not exist, is not YAML, or holds something other than a mapping.
    """
    if not file.is_file():
        what = "is a folder" if file.is_dir() else "does not exist"
        raise ValueError(f"config file {file} {what}; {shipped_settings()} has the ones that are shipped")
    try:
        tree = parse_yaml(file.read_text("utf-8"), f"config file {file}")
    except UnicodeDecodeError:
        raise ValueError(f"config file {file} is no text, expected YAML with settings; save it as UTF-8") from None
    if not isinstance(tree, dict | None):
        raise ValueError(f"config file {file} holds a {type(tree).__name__}, expected a mapping of settings")
    return tree or {}


def earlier_names(field: FieldInfo) -> list[str]:
    earlier = field.validation_alias
    choices = earlier.choices if isinstance(earlier, AliasChoices) else [earlier]
    return [each for each in choices if isinstance(each, str)]


def by_present_names(tree: dict[str, Any], settings: type[BaseModel]) -> dict[str, Any]:
    """Replace earlier names.

    Raises:
        ValueError: the tree has both names of a setting.
    """
    fields = settings.model_fields
    present = {earlier: name for name, field in fields.items() for earlier in earlier_names(field)}
    named = {present.get(name, name): value for name, value in tree.items()}
    if twice := [name for name in tree if name in present and present[name] in tree]:
        raise ValueError(f"{twice[0]} and {present[twice[0]]} are names of one setting; keep one of them")
    for name, value in named.items():
        kind = fields[name].annotation if name in fields else None
        if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, BaseModel):
            named[name] = by_present_names(value, kind)
    return named


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
    except RecursionError:
        raise ValueError(f"{what} is not YAML: brackets are nested too deep") from None


def merged(tree: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """A new tree; where both have a value, `other` wins."""
    both = {
        name: merged(tree[name], value) if isinstance(tree.get(name), dict) and isinstance(value, dict) else value
        for name, value in other.items()
    }
    return {**tree, **both}


def set_path(tree: dict[str, Any], path: str, value: Any) -> None:
    """Set `tree["a"]["b"] = value` for the path "a.b", and make missing mappings."""
    *parents, leaf = path.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
        if not isinstance(tree, dict):
            raise ValueError(f"--set {path}: {parent!r} is a value, not a group of settings; leave out what follows it")
    tree[leaf] = value


def describe_faults(error: ValidationError, settings: type[BaseModel]) -> list[str]:
    """One line each; an unknown name or choice comes with the one most like it."""
    return [_describe(fault, settings) for fault in error.errors()]


def _describe(fault: Any, settings: type[BaseModel]) -> str:
    name, said = ".".join(map(str, fault["loc"])), fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        return f"{name}: unknown setting{did_you_mean_setting(name, settings)}"
    if fault["type"] == "literal_error":
        said += did_you_mean(str(fault["input"]), re.findall(r"'([^']*)'", fault["ctx"]["expected"]))
    return f"{name or 'settings'}: {said}"


def did_you_mean_setting(name: str, settings: type[BaseModel]) -> str:
    """The end of a message about a name that may be right but stand in another group."""
    if setting := verl_keys(settings).get(name):
        return f"; did you mean {setting}?"
    known, last = names_of(settings), name.rpartition(".")[2]
    elsewhere = [each for each in known if each.rpartition(".")[2] == last]
    return f"; did you mean {elsewhere[0]}?" if len(elsewhere) == 1 else did_you_mean(name, known)


def names_of(settings: type[BaseModel]) -> list[str]:
    """All names of a tree, with their groups, e.g. `optim.learning_rate`."""
    return [groups + (field.serialization_alias or name) for groups, name, field in _fields(settings)]


def verl_keys(settings: type[BaseModel]) -> dict[str, str]:
    """Our settings of a tree by verl's keys."""
    return {key: groups + name for groups, name, field in _fields(settings) for key in verl_keys_of(field)}


def earlier_settings(settings: type[BaseModel]) -> dict[str, str]:
    """The present names of a tree by the earlier ones, both with their groups."""
    return {groups + old: groups + name for groups, name, field in _fields(settings) for old in earlier_names(field)}


def _fields(settings: type[BaseModel], groups: str = "") -> Iterator[tuple[str, str, FieldInfo]]:
    for name, field in settings.model_fields.items():
        yield groups, name, field
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _fields(field.annotation, f"{groups}{name}.")


def verl_keys_of(field: FieldInfo) -> list[str]:
    return [each.key for each in field.metadata if isinstance(each, VerlKey)]
