"""Passwords of database addresses stay in this process's memory or environment, and out of everything written.

A password is hidden when a setting is read, so that everything saved, printed and compared later has the form
`mysql://user:***@host:3306`. `revealed` puts the password back, from memory (a forked child has it too) or from the
environment. It cannot hide what the operating system shows: other users can read the command line of a running process,
but not its environment.
"""

from __future__ import annotations

import os
import re
from typing import Annotated
from urllib.parse import quote

from pydantic import AfterValidator

VARIABLE = "AGENTGRPO_DB_PASSWORD"
MASK = "***"
SCHEME = re.compile(r"[A-Za-z][\w+.-]*:/+")
_ADDRESS = re.compile(rf"({SCHEME.pattern})(.+)@", re.DOTALL)
_WORD = re.compile(rf"({SCHEME.pattern})(\S+)@")

# The specs whose passwords this process hid, by their hidden form.
_passwords: dict[str, str] = {}


def hidden(spec: str) -> str:
    scheme = match[0] if (match := SCHEME.match(spec)) else ""
    login, at, place = spec.removeprefix(scheme).rpartition("@")
    user, colon, _ = login.partition(":")
    place, question, _ = place.partition("?")
    if not at and (port := place.partition(":")[2]) and not re.match(r"\d+(/|$)", port):
        place = place.replace(port, MASK)  # the password may have no host behind it
    if at and not scheme:
        user, colon = "", ":"
    masked_spec = scheme + user + (f":{MASK}" if colon else "") + at + place + (f"?{MASK}" if question else "")
    if masked_spec != spec:
        _passwords[masked_spec] = spec
    return masked_spec


# The type of a setting that names a backend.
BackendSpec = Annotated[str, AfterValidator(hidden)]


def revealed(spec: str) -> str:
    """Raises ValueError: the password is hidden, and neither this process nor its environment has it."""
    spec = _passwords.get(spec, spec)
    scheme, _, rest = spec.partition("://")
    login, at, place = rest.rpartition("@")
    user, _, password = login.partition(":")
    if not at or password not in ("", MASK):
        return spec
    if VARIABLE in os.environ:
        return f"{scheme}://{user}:{quote(os.environ[VARIABLE], safe='')}@{place}"
    if password == MASK:
        raise ValueError(
            f"the password of {spec} is in no file of a run: give the whole address again, or set {VARIABLE} in "
            "the environment"
        )
    return spec


def masked(text: str, *, whole: bool = False) -> str:
    """
    Args:
        whole: whether the text is a single value, such as one argument of a command; its password may contain spaces.
    """
    return (_ADDRESS if whole else _WORD).sub(_mask, text)


def _mask(match: re.Match[str]) -> str:
    user, colon, password = match[2].partition(":")
    if (user, password) == ("user", "password"):  # a message uses this form of an address as an example
        return match[0]
    return f"{match[1]}{user}:{MASK}@" if colon else match[0]
