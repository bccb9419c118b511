"""Makes command-line flags from a settings class, so that name, default, meaning and range are defined in one place."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from agentgrpo.flags import DEVICES, FlagName, Parser, dashed
from agentgrpo.hub_rows import with_local_rows
from agentgrpo.outputs import named_path
from agentgrpo.passwords import masked
from agentgrpo.row_files import RowFileError
from agentgrpo.run_folder import begun_with
from agentgrpo.settings import earlier_names
from dbbench_adapter.engines import DatabaseSpec, named_database
from sql_agent.settings.train import TrainConfig

Config = TypeVar("Config", bound=BaseModel)

_PREFIX = {
    "adapter": "lora_",
    "lora": "lora_",
    "reward_model": "reward_model_",
    "llm_judge": "judge_",
    "judge": "judge_",
}
"""Groups of settings whose flags have a prefix: adapter.alpha is --lora-alpha."""


@dataclass(frozen=True)
class Flag:
    names: tuple[str, ...]
    """The name that is shown, and earlier ones, which work too; with dashes, and without those in front."""
    place: tuple[str, ...]
    """Path of its value in the settings, e.g. ("adapter", "r")."""
    field: FieldInfo

    @property
    def dest(self) -> str:
        """The flag's attribute in argparse's namespace."""
        return self.names[0].replace("-", "_")

    @property
    def setting(self) -> str:
        return ".".join(self.place)

    def __str__(self) -> str:
        return f"--{self.names[0]}"


def flags_of(
    config: type[BaseModel], *, only_named: bool = False, prefix: str = "", place: tuple[str, ...] = ()
) -> Iterator[Flag]:
    """Yield a flag for each field, including those of nested settings.

    Args:
        only_named: leave out fields without a `FlagName`; a setting of the main job has a flag only if it has one.
    """
    for name, field in config.model_fields.items():
        given = [each.name for each in field.metadata if isinstance(each, FlagName)]
        named = [each for each in given if each is not None]
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            inner = _PREFIX.get(name, "")
            yield from flags_of(field.annotation, only_named=only_named, prefix=inner, place=(*place, name))
        elif named or not (given or only_named):
            own = (prefix + one for one in (name, *earlier_names(field)))
            names = dict.fromkeys(map(dashed, (*named, *own)))
            yield Flag((named[0],) if only_named else tuple(names), (*place, name), field)


def add_flags(parser: Parser, config: type[BaseModel], *, only_named: bool = False, hidden: Sequence[str] = ()) -> None:
    """Add the flags of a settings class to a parser, except those of the settings and groups in `hidden`."""
    for flag in flags_of(config, only_named=only_named):
        field = flag.field
        if flag.setting in hidden or flag.place[0] in hidden:
            continue
        text = (field.description or flag.names[0]).replace("\n", " ").replace("%", "%%")
        options: dict[str, Any] = {"help": text}
        kinds = get_args(field.annotation) or (field.annotation,)
        choices = [value for kind in kinds for value in (kind, *get_args(kind)) if isinstance(value, str)]
        if field.annotation is bool:
            options |= {"action": "store_true", "default": None}
        else:
            if not field.is_required() and field.default not in (None, ()):
                options["help"] += f" (default {field.default})"
            options |= {"required": field.is_required(), "choices": choices or None}
            options["metavar"] = None if choices else _metavar(flag, kinds)
            options["type"] = named_database if DatabaseSpec in kinds else named_path if Path in kinds else str
        if names := {"gpu", "cuda"}.intersection(choices):
            options |= {"type": partial(_device, gpu=names.pop()), "metavar": DEVICES}
        parser.add_argument(*(f"--{one}" for one in flag.names), dest=flag.dest, **options)


def training_parser(command: str, doc: str | None, config: type[BaseModel], *, hidden: Sequence[str] = ()) -> Parser:
    """Make the parser of a command that trains in this process: the flags of its settings, and --resume."""
    parser = Parser(prog=f"agentgrpo {command}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser, config, hidden=hidden)
    parser.add_argument(
        "--resume", action="store_true", help="resume the run in --run-dir from its newest whole checkpoint"
    )
    return parser


def _metavar(flag: Flag, kinds: tuple[Any, ...]) -> str:
    """What `--help` shows for a value: --limit N, --temperature X, --skills NAME,..., --base-url URL."""
    named = [each.metavar for each in flag.field.metadata if isinstance(each, FlagName) and each.metavar]
    if named:
        return named[0]
    if get_origin(flag.field.annotation) is tuple:
        return "NAME,..."
    return "N" if int in kinds else "X" if float in kinds else flag.names[0].rpartition("-")[2].upper()


def _device(name: str, gpu: str) -> str:
    """A setting's name of a device; gpu and cuda are the same in flags."""
    return gpu if name in ("gpu", "cuda") else name


def read_flags(parser: Parser, config: type[Config], args: argparse.Namespace) -> Config:
    """The settings from the flags; a value out of range ends the command with the flag and its range."""
    given: dict[str, Any] = {}
    for flag in flags_of(config):
        value = getattr(args, flag.dest, None)
        if value is not None:
            tree = given
            for name in flag.place[:-1]:
                tree = tree.setdefault(name, {})
            tree[flag.place[-1]] = value
    try:
        cfg: Any = config.model_validate(given)
        return with_local_rows(cfg, begun_with(cfg.run_dir) if getattr(args, "resume", False) else ())
    except RowFileError as error:
        parser.error(str(error))
    except ValidationError as error:
        spellings = {flag.place: str(flag) for flag in flags_of(config)}
        said = "; ".join(_describe_fault(fault, spellings) for fault in error.errors())
        parser.error(message_formatter(config)(said))


def _describe_fault(fault: Any, spellings: dict[tuple[str, ...], str]) -> str:
    place = tuple(map(str, fault["loc"]))
    # what is wrong with a group of settings names them itself
    where = next((spellings[place[:n]] for n in range(len(place), 0, -1) if place[:n] in spellings), "")
    text, given = fault["msg"].removeprefix("Value error, ").replace("Input should be", "expected"), fault["input"]
    if not isinstance(given, dict | BaseModel) and repr(given) not in text:
        text += f", got {masked(repr(given), whole=True)}"
    return f"{where}: {text}" if where else text


def message_formatter(config: type[BaseModel], spelt: Callable[[Flag], str] = str) -> Callable[[str], str]:
    """Make a function that rewrites a message: it replaces the main job's settings, and flags, by this command's names.

    What is checked for several commands names the main job's settings (`rollout.reward`), or flags that most commands
    have (`--judge-url`). What this command has no name for stays, and so do whole commands, which stand in backquotes.

    Args:
        spelt: what this command's users type for a setting.
    """
    ours: dict[str, str] = {}
    for flag in flags_of(config):
        for name in flag.names:
            ours.setdefault(name, spelt(flag))
    own = {flag.setting for flag in flags_of(config)}  # what is typed so here, as settings of a file, stays
    known = {f"--{name}": here for name, here in ours.items()}
    for flag in flags_of(TrainConfig):
        here = ours.get(flag.names[0])
        if here and "." in flag.setting and (here.startswith("--") or flag.setting not in own):
            known[flag.setting] = here
    longest_first = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
    pattern = re.compile(rf"(--set )?(?<![\w./-])({longest_first})(?![\w-]|\.\w)(=| (?=[A-Z0-9]))?")

    def replaced(found: re.Match[str]) -> str:
        before, name, after = (part or "" for part in found.groups())
        here = known[name]
        if here.startswith("--"):
            return here + (" " if "." in name and after else after)
        return before + here + ("=" if after else "")

    def said_here(message: str) -> str:
        parts = re.split("(`[^`]*`)", message)
        return "".join(part if part.startswith("`") else pattern.sub(replaced, part) for part in parts)

    return said_here
