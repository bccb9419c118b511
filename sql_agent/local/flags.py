"""Command-line flags out of a settings class, so that name, default, meaning and range of each stand in one place."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from core.passwords import masked

Config = TypeVar("Config", bound=BaseModel)


def flags_of(config: type[BaseModel]) -> dict[str, str]:
    """A flag for each field, those of nested settings included: its name to its place, e.g. lora_r to adapter.r.

    A class may give flags other names than its fields' own: `FLAGS`, the usual name to the other.
    """
    found: dict[str, str] = {}
    for name, field in config.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            prefix = _PREFIX.get(name, "")
            found |= {prefix + inner: f"{name}.{place}" for inner, place in flags_of(field.annotation).items()}
        else:
            found[name] = name
    other: Mapping[str, str] = getattr(config, "FLAGS", {})
    return {other.get(flag, flag): place for flag, place in found.items()}


_PREFIX = {"adapter": "lora_"}


def add_flags(parser: argparse.ArgumentParser, config: type[BaseModel], *, hidden: Sequence[str] = ()) -> None:
    """
    Args:
        hidden: flags to leave out.
    """
    for flag, place in flags_of(config).items():
        field = _field(config, place)
        if flag in hidden:
            continue
        text = (field.description or flag).replace("\n", " ").replace("%", "%%")
        if field.annotation is bool:
            parser.add_argument(f"--{flag}", action="store_true", default=None, help=text)
            continue
        default = "" if field.is_required() or field.default is None else f" (default {field.default})"
        choices = [value for value in get_args(field.annotation) if isinstance(value, str)] or None
        parser.add_argument(
            f"--{flag}",
            required=field.is_required(),
            choices=choices,
            metavar=None if choices else "X",
            help=text + default,
        )


def read_flags(parser: argparse.ArgumentParser, config: type[Config], args: argparse.Namespace) -> Config:
    """The settings that the flags name; one that is out of range ends the command with the flag and its range."""
    places = flags_of(config)
    given: dict[str, Any] = {}
    for flag, place in places.items():
        value = getattr(args, flag, None)
        if value is not None:
            _put(given, place.split("."), value)
    try:
        return config.model_validate(given)
    except ValidationError as error:
        parser.error("; ".join(_in_words(fault, places) for fault in error.errors()))


def _in_words(fault: Any, places: Mapping[str, str]) -> str:
    place = ".".join(str(part) for part in fault["loc"])
    flag = next((f"--{flag}: " for flag, own in places.items() if own == place), f"{place}: " if place else "")
    found = "" if isinstance(fault["input"], dict | BaseModel) else f", got {masked(repr(fault['input']), whole=True)}"
    return flag + fault["msg"].removeprefix("Value error, ").replace("Input should be", "expected") + found


def _field(config: type[BaseModel], place: str) -> FieldInfo:
    *outer, last = place.split(".")
    for name in outer:
        config = config.model_fields[name].annotation  # pyright: ignore[reportAssignmentType]
    return config.model_fields[last]


def _put(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value
