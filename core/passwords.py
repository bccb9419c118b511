"""Passwords of database addresses: in this process's memory or its environment, and in nothing that is written.

A setting is hidden when it is read: what is saved, printed and compared from then on says `mysql://user:***@host:3306`.
`open_backend` puts the password back, from memory (a forked child has it too) or from the environment. Leaves out what
the operating system shows: other users can read a command line while it runs, and not its environment.
"""

from __future__ import annotations

import argparse
import os
import re
from typing import Annotated, NoReturn
from urllib.parse import quote

from pydantic import AfterValidator

VARIABLE = "AGENTGRPO_DB_PASSWORD"
MASK = "***"
_SCHEME = re.compile(r"[A-Za-z][\w+.-]*:/+")
_ADDRESS = re.compile(rf"({_SCHEME.pattern})(.+)@", re.DOTALL)
_WORD = re.compile(rf"({_SCHEME.pattern})(\S+)@")

_passwords: dict[str, str] = {}
"""What was hidden in this process: a spec as it was given, by what is shown of it."""


def hidden(spec: str) -> str:
    """What may be shown of a backend's spec; `revealed` gives the whole one back in this process."""
    scheme = match[0] if (match := _SCHEME.match(spec)) else ""
    login, at, place = spec.removeprefix(scheme).rpartition("@")
    user, colon, _ = login.partition(":")
    place, question, _ = place.partition("?")
    if not at and (port := place.partition(":")[2]) and not re.match(r"\d+(/|$)", port):
        place = place.replace(port, MASK)  # a password whose host was forgotten
    if at and not scheme:
        user, colon = "", ":"
    shown = scheme + user + (f":{MASK}" if colon else "") + at + place + (f"?{MASK}" if question else "")
    if shown != spec:
        _passwords[shown] = spec
    return shown


BackendSpec = Annotated[str, AfterValidator(hidden)]
"""A setting that names a backend."""


def revealed(spec: str) -> str:
    """A spec to connect with.

    Raises:
        ValueError: its password is hidden, and neither this process nor its environment has it.
    """
    spec = _passwords.get(spec, spec)
    scheme, _, rest = spec.partition("://")
    login, at, place = rest.rpartition("@")
    user, _, password = login.partition(":")
    if scheme != "mysql" or not at or password not in ("", MASK):
        return spec
    if VARIABLE in os.environ:
        return f"{scheme}://{user}:{quote(os.environ[VARIABLE], safe='')}@{place}"
    if password == MASK:
        raise ValueError(
            f"the password of {spec} stands in no file of a run: give the address with it again, or set {VARIABLE} in "
            "the environment"
        )
    return spec


def masked(text: str, *, whole: bool = False) -> str:
    """A text without the passwords of the addresses in it.

    Args:
        whole: it is one value, as a word of a command line: a password in it may hold blanks.
    """
    return (_ADDRESS if whole else _WORD).sub(_mask, text)


class Parser(argparse.ArgumentParser):
    """Says what is wrong with a command line without the passwords in it."""

    def error(self, message: str) -> NoReturn:
        super().error(masked(message, whole=True))


def _mask(match: re.Match[str]) -> str:
    user, colon, password = match[2].partition(":")
    if (user, password) == ("user", "password"):  # the form of an address, in a message
        return match[0]
    return f"{match[1]}{user}:{MASK}@" if colon else match[0]
