"""Notices that a node has left the cluster, whatever exception verl raises because of it, or none.

Ray gives up on a node whose raylet ends within a second, and on one that is cut off after about a minute.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

LOOK_S = 2.0
# A call to an actor on a dead node may fail before Ray says that the node is dead.
NOTICED_S = 5.0


class NodeWatch:
    """
    Args:
        nodes: what Ray says of all nodes (`ray.nodes`).
        lost: called once, from a thread, with a sentence when a node that trains is gone: the run cannot go on.
        left: called with a sentence for every other node that is gone; its runners go on elsewhere.
    """

    def __init__(
        self, nodes: Callable[[], list[dict[str, Any]]], lost: Callable[[str], None], left: Callable[[str], None]
    ) -> None:
        self._nodes, self._lost, self._left = nodes, lost, left
        self._there = _alive(nodes())
        self._trains: set[str] | None = None
        threading.Thread(target=self._watch, daemon=True, name="nodes").start()

    def trains(self, addresses: set[str]) -> None:
        """Say on which nodes workers and model servers are; before, every node counts as one of them."""
        self._trains = addresses

    def fatal(self, wait_s: float = NOTICED_S) -> str | None:
        """The sentence about a node that trains and is gone, waiting for Ray to notice; None: all are there."""
        deadline = time.monotonic() + wait_s
        while True:
            gone = [name for address, name in self._gone() if self._is_needed(address)]
            if gone or time.monotonic() > deadline:
                return _sentence(gone[0]) if gone else None
            time.sleep(0.2)

    def _watch(self) -> None:
        told: set[str] = set()
        while True:
            time.sleep(LOOK_S)
            for address, name in self._gone():
                if address in told:
                    continue
                told.add(address)
                if self._is_needed(address):
                    self._lost(_sentence(name))
                    return
                self._left(f"{name} has left the cluster; its runners and their rollouts go on elsewhere")

    def _gone(self) -> list[tuple[str, str]]:
        now = _alive(self._nodes())
        return [(address, name) for address, name in self._there.items() if address not in now]

    def _is_needed(self, address: str) -> bool:
        return self._trains is None or address in self._trains


def _alive(nodes: list[dict[str, Any]]) -> dict[str, str]:
    return {
        node["NodeManagerAddress"]: f"node {node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        for node in nodes
        if node["Alive"]
    }


def _sentence(name: str) -> str:
    return (
        f"{name}, which trains, has left the cluster; bring it back, and give the same command again: it goes on from "
        "the newest checkpoint"
    )
