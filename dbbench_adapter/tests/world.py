"""What statements of an agent may neither change nor tell, for the tests that play hostile ones."""

import hashlib
import socket
from pathlib import Path

from dbbench_adapter.engines.mysql.backend import MysqlBackend
from dbbench_adapter.tests.hostile import ESCAPE


def world(backend, neighbour, tables, folder):
    """All that has to be the same afterwards.

    Args:
        neighbour: an open database that holds `tables`.
        folder: the working folder.
    """
    seen = {"neighbour": neighbour.table_hash(tables), "tables": sorted(neighbour.snapshot())}
    seen["files"] = sorted(folder.iterdir()) + sorted(Path(ESCAPE).parent.glob(Path(ESCAPE).name + "*"))
    return seen | (server_state(backend, neighbour) if isinstance(backend, MysqlBackend) else {})


def server_state(backend, neighbour):
    """Global variables, databases, users and rights but those that the pool itself makes, and stored programs."""
    ours = f"'agentgrpo\\_{backend._pool._owner}%'"
    asked = {
        "variables": "SHOW GLOBAL VARIABLES",
        "databases": f"SELECT * FROM information_schema.schemata WHERE schema_name NOT LIKE {ours}",
        "users": f"SELECT * FROM mysql.global_priv WHERE User NOT LIKE {ours}",
        "rights": f"SELECT * FROM mysql.db WHERE User NOT LIKE {ours}",
        "programs": "SELECT * FROM mysql.proc",
        "events": "SELECT * FROM mysql.event",
        "plugins": "SELECT * FROM mysql.plugin",
        "servers": "SELECT * FROM mysql.servers",
        "prepared": "XA RECOVER",
    }
    with neighbour._slot.admin.cursor() as cursor:
        state = {}
        for name, sql in asked.items():
            cursor.execute(sql)
            state[name] = hashlib.sha256(repr(sorted(cursor.fetchall())).encode()).hexdigest()
        return state


def secrets(database):
    """What no error text may hold."""
    slot = getattr(database, "_slot", None)
    known = ["/dev/shm", "127.0.0.1", "agentgrpo-mariadb", socket.gethostname()]
    return known + ([slot.name, slot.password, slot.name.partition("_")[2]] if slot else [])


def told(database, sql, error):
    """The secrets that an error tells, but for those that the statement said itself."""
    return [secret for secret in secrets(database) if secret in (error or "") and secret not in sql]
