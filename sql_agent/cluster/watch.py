"""Notices that a node has left the cluster, whatever exception verl raises because of it, or none.

Ray gives up on a node whose raylet is killed after some 20 s, and on one that is cut off after about a minute; an error
of verl comes before. So the raylets themselves are asked: a port that refuses connections has lost its raylet.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

LOOK_S = 2.0
# Of a connection to a raylet; where verl has failed, one that is cut off counts as gone too.
CONNECT_S = 3.0


def connect(raylet: tuple[str, int]) -> None:
    """Raises OSError: nobody answers there."""
    socket.create_connection(raylet, timeout=CONNECT_S).close()


class NodeWatch:
    """
    Args:
        nodes: what Ray says of all nodes (`ray.nodes`).
        lost: called once, from a thread, with a sentence when a node that trains is gone: the run cannot go on.
        left: called with a sentence for every other node that is gone; its runners go on elsewhere.
        connect: connects to a raylet.
    """

    def __init__(
        self,
        nodes: Callable[[], list[dict[str, Any]]],
        lost: Callable[[str], None],
        left: Callable[[str], None],
        connect: Callable[[tuple[str, int]], None] = connect,
    ) -> None:
        self._nodes, self._lost, self._left, self._connect = nodes, lost, left, connect
        self._there = _alive(nodes())
        self._trains: set[str] | None = None
        threading.Thread(target=self._watch, daemon=True, name="nodes").start()

    def trains(self, addresses: set[str]) -> None:
        """Say on which nodes workers and model servers are; before, every node counts as one of them."""
        self._trains = addresses

    def fatal(self) -> str | None:
        """The sentence about a node that trains and cannot be reached; None: all can."""
        gone = [name for address, name in self._gone(OSError) if self._is_needed(address)]
        return _sentence(gone[0]) if gone else None

    def _watch(self) -> None:
        told: set[str] = set()
        while True:
            time.sleep(LOOK_S)
            for address, name in self._gone(ConnectionRefusedError):
                if address in told:
                    continue
                told.add(address)
                if self._is_needed(address):
                    self._lost(_sentence(name))
                    return
                self._left(f"{name} has left the cluster; its runners and their rollouts go on elsewhere")

    def _gone(self, means_gone: type[OSError]) -> list[tuple[str, str]]:
        now = _alive(self._nodes())
        return [
            (address, name)
            for (address, port), name in self._there.items()
            if (address, port) not in now or self._fails(address, port, means_gone)
        ]

    def _fails(self, address: str, port: int, means_gone: type[OSError]) -> bool:
        try:
            self._connect((address, port))
        except OSError as error:
            return isinstance(error, means_gone)
        return False

    def _is_needed(self, address: str) -> bool:
        return self._trains is None or address in self._trains


def _alive(nodes: list[dict[str, Any]]) -> dict[tuple[str, int], str]:
    return {
        (
            node["NodeManagerAddress"],
            node["NodeManagerPort"],
        ): f"node {node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        for node in nodes
        if node["Alive"]
    }


def _sentence(name: str) -> str:
    return (
        f"{name}, which trains, has left the cluster; bring it back, and give the same command again: it goes on from "
        "the newest checkpoint"
    )
