"""Parses the flags of every command alike.

Dashes and underscores in a flag's name are the same. A flag may have earlier names, which work and are not shown. The
message about an unknown flag or value says which one is most like it, and passwords of database addresses are masked.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import Any, NoReturn

from agentgrpo.nearest import did_you_mean
from agentgrpo.passwords import masked


@dataclass(frozen=True)
class FlagName:
    """Names the flag of a setting, in the setting's annotation, where it is not the setting's own name."""

    name: str
    """With dashes, and without those in front."""


def dashed(name: str) -> str:
    return name.replace("_", "-")


DEVICES = "{auto,cpu,gpu}"
"""The values of `--device` that help shows; cuda is the same as gpu."""


def torch_device(name: str) -> str:
    """Return torch's name of a device, which is called gpu in flags."""
    return "cuda" if name == "gpu" else name


class Parser(argparse.ArgumentParser):
    def __init__(self, *args: Any, **options: Any) -> None:
        self.earlier_names: dict[str, str] = {}
        """Earlier names of flags, each with the name that is shown."""
        super().__init__(*args, **options)

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:  # type: ignore[override]
        """Add an argument as argparse does; of several long names only the first is shown."""
        long = list(dict.fromkeys(dashed(name) for name in names if name.startswith("--")))
        self.also(*long)
        return super().add_argument(*(name for name in names if not name.startswith("--")), *long[:1], **options)

    def also(self, name: str = "", *earlier: str) -> None:
        """Let earlier names stand for a flag, and show none of them."""
        self.earlier_names |= dict.fromkeys(map(dashed, earlier), name)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        end = given.index("--") if "--" in given else len(given)
        return super().parse_known_args([*map(self._shown, given[:end]), *given[end:]], namespace)

    def _shown(self, word: str) -> str:
        """Return a word of the command line with the name that is shown, if it is a flag.

        A flag that does not exist ends the command, before argparse asks for one that is missing.
        """
        name, equals, value = word.partition("=")
        if not name.startswith("--") or " " in name:
            return word
        name = self.earlier_names.get(dashed(name), dashed(name))
        options = self._option_string_actions
        if not any(option.startswith(name) for option in options):
            meant = {shown for earlier, shown in self.earlier_names.items() if earlier.startswith(name)}
            if len(meant) != 1:
                meaning = {**{option: option for option in options}, **self.earlier_names}
                self.error(f"unrecognized arguments: {word.partition('=')[0]}{did_you_mean(name, meaning)}")
            name = meant.pop()
        return name + equals + value

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += did_you_mean(str(value), map(str, action.choices or ()))
            raise

    def error(self, message: str) -> NoReturn:
        super().error(masked(message, whole=True))
