"""Makes command-line flags from a settings class, so that name, default, meaning and range are defined in one place."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from pydantic import AliasChoices, BaseModel, ValidationError
from pydantic.fields import FieldInfo

from agentgrpo.flags import DEVICES, FlagName, Parser, dashed, torch_device
from agentgrpo.passwords import masked

Config = TypeVar("Config", bound=BaseModel)

_PREFIX = {"adapter": "lora_", "reward_model": "reward_model_", "llm_judge": "judge_"}
"""Groups of settings whose flags have a prefix: adapter.alpha is --lora-alpha."""


@dataclass(frozen=True)
class Flag:
    names: tuple[str, ...]
    """The name that is shown, and earlier ones, which work too; with dashes, and without those in front."""
    dest: str
    """The flag's attribute in argparse's namespace."""
    place: tuple[str, ...]
    """Path of its value in the settings, e.g. ("adapter", "r")."""
    field: FieldInfo


def flags_of(config: type[BaseModel], prefix: str = "", place: tuple[str, ...] = ()) -> Iterator[Flag]:
    """Yield a flag for each field, including those of nested settings."""
    for name, field in config.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from flags_of(field.annotation, _PREFIX.get(name, ""), (*place, name))
        else:
            names = dict.fromkeys(dashed(prefix + one) for one in _names(name, field))
            yield Flag(tuple(names), prefix + name, (*place, name), field)


def _names(name: str, field: FieldInfo) -> list[str]:
    shown = [each.name for each in field.metadata if isinstance(each, FlagName)]
    earlier = field.validation_alias
    choices = earlier.choices if isinstance(earlier, AliasChoices) else [earlier]
    return [*shown, name, *(each for each in choices if isinstance(each, str))]


def add_flags(parser: Parser, config: type[BaseModel], *, hidden: Sequence[str] = ()) -> None:
    """Add the flags of a settings class to a parser, except those and the groups in `hidden`."""
    for flag in flags_of(config):
        field = flag.field
        if flag.dest in hidden or flag.place[0] in hidden:
            continue
        text = (field.description or flag.names[0]).replace("\n", " ").replace("%", "%%")
        options: dict[str, Any] = {"help": text}
        if field.annotation is bool:
            options |= {"action": "store_true", "default": None}
        else:
            if not field.is_required() and field.default is not None:
                options["help"] += f" (default {field.default})"
            choices = [value for value in get_args(field.annotation) if isinstance(value, str)] or None
            options |= {"required": field.is_required(), "choices": choices, "metavar": None if choices else "X"}
        if flag.dest == "device":
            options |= {"type": torch_device, "metavar": DEVICES}
        parser.add_argument(*(f"--{one}" for one in flag.names), dest=flag.dest, **options)


def read_flags(parser: Parser, config: type[Config], args: argparse.Namespace) -> Config:
    """Return the settings from the flags; a value out of range ends the command with the flag and its range."""
    given: dict[str, Any] = {}
    for flag in flags_of(config):
        value = getattr(args, flag.dest, None)
        if value is not None:
            tree = given
            for name in flag.place[:-1]:
                tree = tree.setdefault(name, {})
            tree[flag.place[-1]] = value
    try:
        return config.model_validate(given)
    except ValidationError as error:
        spellings = {flag.place: f"--{flag.names[0]}" for flag in flags_of(config)}
        parser.error("; ".join(_describe_fault(fault, spellings) for fault in error.errors()))


def _describe_fault(fault: Any, spellings: dict[tuple[str, ...], str]) -> str:
    place = tuple(map(str, fault["loc"]))
    where = spellings.get(place, ".".join(place))
    found = "" if isinstance(fault["input"], dict | BaseModel) else f", got {masked(repr(fault['input']), whole=True)}"
    text = fault["msg"].removeprefix("Value error, ").replace("Input should be", "expected") + found
    return f"{where}: {text}" if where else text
