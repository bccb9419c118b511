"""The commands and their flags, from the parsers that the commands make."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from typing import Any
from unittest import mock

from agentgrpo.flags import Parser
from agentgrpo.main import COMMANDS
from scripts.pages.tables import code, table

HEAD = """# Commands

`.venv/bin/agentgrpo COMMAND --help` prints the flags of a command. Dashes and underscores in a flag's name are the
same.
"""
TRL = (
    "Every flag of TRL's `RewardConfig`, of transformers' `TrainingArguments` and of TRL's `ModelConfig` works too. "
    "The table has those that AgentGRPO adds or to which it gives another default."
)
DEFAULT = re.compile(r"[,;]? *\(?default:? (%\(default\)s|[^\s();]+)\)?(?=$|;)")


class Parsed(Exception):
    """Ends a command once it has parsed its flags."""

    def __init__(self, parser: Parser, flags: dict[str, Any]) -> None:
        self.parser, self.flags = parser, flags


def parsed(module: str, *words: str) -> Parsed:
    """Return the parser of a command, and what it reads from the words; the command stops there."""
    whole = argparse.ArgumentParser.parse_known_args

    def stop(parser: Any, args: Any = None, namespace: Any = None) -> Any:
        raise Parsed(parser, vars(whole(parser, args, namespace)[0]) if words else {})

    main = importlib.import_module(module).main
    with (
        mock.patch.object(argparse.ArgumentParser, "parse_known_args", stop),
        mock.patch.object(sys, "argv", [module, *words]),
    ):
        try:
            main()
        except Parsed as found:
            return found
    raise AssertionError(f"{module} parses no flags")


def page() -> str:
    return "\n".join([HEAD, *(section(name, module, purpose) for name, (module, purpose) in COMMANDS.items())])


def section(name: str, module: str, purpose: str) -> str:
    parser = parsed(module).parser
    actions = [each for each in parser._actions if not isinstance(each, argparse._HelpAction)]
    note = ""
    if module == "reward_model.reward_modeling":
        ours, note = reward_arguments(), f"{TRL}\n\n"
        actions = [each for each in actions if each.dest in ours]
    rows = [row(each) for each in actions if each.help != argparse.SUPPRESS]
    flags = table(("flag", "default", "meaning"), rows) if rows else "It has no flags."
    return f"## {name}\n\n{purpose[0].upper()}{purpose[1:]}.\n\n{note}{flags}\n"


def reward_arguments() -> set[str]:
    from reward_model import arguments

    kinds = (arguments.DataArguments, arguments.ModelArguments, arguments.TrainingArguments)
    return {"model_name_or_path", "config"}.union(*(kind.__annotations__ for kind in kinds))


def row(action: argparse.Action) -> tuple[str, str, str]:
    """Flag with its value, default, and meaning without the default."""
    formatter = argparse.HelpFormatter("agentgrpo")
    metavar = formatter._get_default_metavar_for_optional(action)
    value = "" if action.nargs == 0 else formatter._format_args(action, metavar)
    flag = code(*(f"{name} {value}".strip() for name in action.option_strings or [""]))
    told = DEFAULT.search(action.help or "")
    default = action.default if told is None or "%" in told[1] else told[1]
    if isinstance(default, list):
        default = ",".join(default)
    shown = "" if default in (None, False, "", argparse.SUPPRESS) else code(str(default))
    return flag, "required" if action.required and not shown else shown, meaning_of(action, formatter)


def meaning_of(action: argparse.Action, formatter: argparse.HelpFormatter) -> str:
    """The help as a sentence, without the default."""
    with mock.patch.object(action, "help", DEFAULT.sub("", action.help or "").lstrip("; ")):
        text = formatter._expand_help(action) if action.help else ""
    if text in ("", action.dest, action.dest.replace("_", "-")):
        return ""
    first = text.split()[0]
    begins = text[0].upper() if first.isalpha() or first.endswith(",") else text[0]
    return begins + text[1:] + ("" if text[-1] in ".!?" else ".")
