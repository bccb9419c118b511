"""Reads the address of a server, or of a database on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from agentgrpo.passwords import hidden, revealed


@dataclass(frozen=True)
class Address:
    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    """Empty in the address of a server."""
    shown: str
    """The address without the password, for messages."""


def parse_address(spec: str, *, form: str, port: int, of_database: bool = True) -> Address:
    """
    Args:
        spec: its password may be hidden (`agentgrpo.passwords`).
        form: what an address looks like, for messages.
        port: the one where none is named.
        of_database: whether it is one database, and not a server, whose user is root if none is named.
    Raises:
        ValueError: it is no such address, or its password is not known here. No message shows a password.
    """
    shown, url = hidden(spec), revealed(spec)
    try:
        parts = urlsplit(url)
        port = port if parts.port is None else parts.port
    except ValueError:  # the port or an IPv6 address is wrong; the parser's own message may quote a password
        parts, port = urlsplit(""), 0
    database = unquote(parts.path.removeprefix("/"))
    named = parts.username and database and "/" not in database if of_database else not database
    clean = not parts.query and not parts.fragment and "@" not in parts.path
    if not (parts.hostname and port and named and clean):
        what, where = "address", "user and password"
        if of_database:
            what, where = "address of a database", "user, password and database"
        raise ValueError(
            f"{shown!r} is no {what}, expected {form}; in {where} write %40 for @, %2F for /, %3A for :, %23 for #, "
            "%3F for ?, %25 for %"
        )
    user, password = unquote(parts.username or "root"), unquote(parts.password or "")
    return Address(str(parts.hostname), port, user, password, database, shown)
