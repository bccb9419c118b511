"""MySQL and MariaDB: their addresses, a user's database on a server, and DB-Bench's with one user for each episode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from agentgrpo.commands import interruptible
from dbbench_adapter.dialect import lexer
from dbbench_adapter.engines import address
from dbbench_adapter.engines.address import Address
from dbbench_adapter.engines.base import Backend
from dbbench_adapter.engines.engine import Databases, Engine

FORM = "mysql://user:password@host:port"


def parse_address(spec: str, *, of_database: bool = False) -> Address:
    """Raises ValueError: see `address.parse_address`."""
    form = f"{FORM}/database" if of_database else FORM
    return address.parse_address(spec, form=form, port=3306, of_database=of_database)


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
        from dbbench_adapter.engines.mysql.databases import MysqlDatabase

        return MysqlDatabase(str(place))

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
