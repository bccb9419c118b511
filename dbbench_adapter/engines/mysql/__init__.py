"""MySQL and MariaDB: their addresses, a user's database on a server, and DB-Bench's with one user for each episode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from agentgrpo.commands import interruptible
from agentgrpo.passwords import hidden, revealed
from dbbench_adapter.dialect import lexer
from dbbench_adapter.engines.base import Backend
from dbbench_adapter.engines.engine import Databases, Engine

FORM = "mysql://user:password@host:port"


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


def parse_address(spec: str, *, of_database: bool = False) -> Address:
    """
    Args:
        spec: its password may be hidden (`agentgrpo.passwords`).
        of_database: whether it is one database, `FORM/database`, and not a server, whose user is root if none is named.
    Raises:
        ValueError: it is no such address, or its password is not known here. No message shows a password.
    """
    shown, url = hidden(spec), revealed(spec)
    try:
        parts = urlsplit(url)
        port = 3306 if parts.port is None else parts.port
    except ValueError:  # the port or an IPv6 address is wrong; the parser's own message may quote a password
        parts, port = urlsplit(""), 0
    database = unquote(parts.path.removeprefix("/"))
    named = parts.username and database and "/" not in database if of_database else not database
    clean = not parts.query and not parts.fragment and "@" not in parts.path
    if not (parts.hostname and port and named and clean):
        what, form, where = "address", FORM, "user and password"
        if of_database:
            what, form, where = "address of a database", f"{FORM}/database", "user, password and database"
        raise ValueError(
            f"{shown!r} is no {what}, expected {form}; in {where} write %40 for @, %2F for /, %3A for :, %23 for #, "
            "%3F for ?, %25 for %"
        )
    user, password = unquote(parts.username or "root"), unquote(parts.password or "")
    return Address(str(parts.hostname), port, user, password, database, shown)


# The word for a MariaDB server that is started for the backend, and ends with it.
PRIVATE = "mariadb"


class Mysql(Engine):
    name = "MySQL"
    dialect = "mysql"
    places = f"{FORM}/database"
    scheme = "mysql://"
    backends = (PRIVATE, FORM)
    average_decimals = 4

    def tokens(self, sql: str) -> Iterator[lexer.MySqlToken]:
        return lexer.tokens(sql)

    def open_databases(self, place: Path | str) -> Databases:
        from dbbench_adapter.engines.mysql.databases import ServerDatabase

        return ServerDatabase(str(place))

    def check_spec(self, spec: str) -> None:
        if spec != PRIVATE:
            parse_address(spec)

    def check_backend(self, spec: str) -> None:
        """Check as `Engine` does, but of a private server only whether its programs are installed."""
        if spec != PRIVATE:
            return super().check_backend(spec)
        from dbbench_adapter.engines.mysql.server import find_programs

        find_programs()

    @contextmanager
    def open_backend(self, spec: str) -> Iterator[Backend]:
        from dbbench_adapter.engines.mysql.backend import MysqlBackend
        from dbbench_adapter.engines.mysql.server import PrivateServer

        with interruptible(), ExitStack() as stack:
            url = stack.enter_context(PrivateServer()).url if spec == PRIVATE else spec
            yield stack.enter_context(MysqlBackend(url))


MYSQL = Mysql()
