"""Joins verl's driver to a Ray cluster that is there already, readies its nodes, and notices one that leaves.

verl raises any exception because of a node that has left, or none. Ray gives up on a node whose raylet is killed after
some 20 s, and on one that is cut off after about a minute; an error of verl comes before. Where Ray's head is gone,
Ray's own calls wait for a minute and then end the process. So head and raylets themselves are asked first: a port that
refuses connections has lost its process.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

from agentgrpo.processes import RUN_ID, hold_folder, run_folder
from sql_agent.cluster.network import Network, actor_on, keep_environment

READY_S = 120.0


class NodeActor:
    """Makes the run's folder for temporary files on a node, and lets a guard remove what the run leaves there.

    It ends with the run's driver, however that ends.
    """

    def __init__(self, run_id: str) -> None:
        self._lock = hold_folder(run_id)
        # Ray kills the children of an actor that ends; a detached process is nobody's child
        command = [sys.executable, "-m", "agentgrpo.processes", run_id, str(os.getpid()), "detached"]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)

    def node(self) -> str:
        return socket.gethostname()


def join(network: Network, runtime_env: dict[str, Any]) -> list[Any]:
    """Connect this process, whose environment has the run's id, and return handles of actors that have to be kept.

    Raises:
        ConnectionError: no cluster answers at the address, or its token is another one.
    """
    import ray

    run_id = os.environ[RUN_ID]
    os.environ["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"  # a Ray job may name the same variables
    runtime_env = {
        **runtime_env,
        "env_vars": runtime_env["env_vars"] | {RUN_ID: run_id, "TMPDIR": str(run_folder(run_id))},
    }
    ray.init(address=network.ray_address, namespace=f"agentgrpo-{run_id}", runtime_env=runtime_env)
    here = ray.get_runtime_context().get_node_id()
    kept = [keep_environment(here)]
    for node in ray.nodes():
        # the command has a folder and a guard on its own node
        if node["Alive"] and node["NodeID"] in network.nodes and node["NodeID"] != here:
            kept.append(actor_on(node["NodeID"], NodeActor, run_id))
    ray.get([each.node.remote() for each in kept[1:]], timeout=READY_S)
    return kept


LOOK_S = 2.0
# Of a connection; where verl has failed, a node that is cut off counts as gone too.
CONNECT_S = 3.0
SILENT_S = 30.0
"""A head that answers nobody for so long is gone; Ray's own calls end the process after 60 s, without a word."""
UNUSED = "this run leaves it unused, since it looks at nodes before it starts; the next command uses it"
GO_ON = "give the same command again"


def check_reachable(place: tuple[str, int]) -> None:
    """Raises OSError: nobody answers there."""
    socket.create_connection(place, timeout=CONNECT_S).close()


class NodeWatch:
    """
    Args:
        head: HOST:PORT of Ray's head.
        nodes: what Ray says of all nodes (`ray.nodes`).
        used: ids of those that the run may use (`Network.nodes`).
        lost: called once, from a thread, with a sentence when the run cannot go on.
        say: called with a sentence for every other node that is gone, and for every node that has joined.
        connect: connects to Ray's head or a raylet.
    """

    def __init__(
        self,
        head: str,
        nodes: Callable[[], list[dict[str, Any]]],
        used: Collection[str],
        lost: Callable[[str], None],
        say: Callable[[str], None],
        connect: Callable[[tuple[str, int]], None] = check_reachable,
    ) -> None:
        host, _, port = head.rpartition(":")
        self._head = host, int(port)
        self._nodes, self._used, self._lost, self._say, self._connect = nodes, used, lost, say, connect
        self._there = _alive(node for node in nodes() if node["NodeID"] in used)
        self._needed: set[str] | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._watch, daemon=True, name="nodes").start()

    def needs(self, addresses: set[str]) -> None:
        """Say without which nodes the run cannot go on; before, only verl's own errors end it."""
        self._needed = addresses

    def end(self) -> None:
        """Look no more; Ray is about to be left."""
        self._ended.set()

    def fatal(self) -> str | None:
        """The sentence about what is gone and explains an error of verl; None: everything answers."""
        if self._fails(self._head, OSError):
            return self._without_head()
        gone = [name for place, name in self._gone(OSError) if self._needed is None or place[0] in self._needed]
        return _sentence(gone[0]) if gone else None

    def _watch(self) -> None:
        told: set[tuple[str, int]] = set()
        known = set(self._used)
        answered = time.monotonic()
        while not self._ended.wait(LOOK_S):
            if self._fails(self._head, OSError):
                if self._fails(self._head, ConnectionRefusedError) or time.monotonic() - answered > SILENT_S:
                    return self._lost(self._without_head())
                continue  # Ray would wait for it
            answered = time.monotonic()
            if self._needed is None:  # no runner is there yet, and verl notices what it needs
                continue
            for place, name in self._gone(ConnectionRefusedError):
                if place[0] in self._needed:
                    return self._lost(_sentence(name))
                if place not in told:
                    told.add(place)
                    self._say(f"{name} has left the cluster; its runners start again where CPUs are free")
            for node in self._nodes():
                if node["Alive"] and node["NodeID"] not in known:
                    known.add(node["NodeID"])
                    self._say(f"{_name(node)} has joined the cluster; {UNUSED}")

    def _gone(self, means_gone: type[OSError]) -> list[tuple[tuple[str, int], str]]:
        if refused := [(place, name) for place, name in self._there.items() if self._fails(place, means_gone)]:
            return refused
        now = _alive(node for node in self._nodes() if node["NodeID"] in self._used)
        return [(place, name) for place, name in self._there.items() if place not in now]

    def _fails(self, place: tuple[str, int], means_gone: type[OSError]) -> bool:
        try:
            self._connect(place)
        except OSError as error:
            return isinstance(error, means_gone)
        return False

    def _without_head(self) -> str:
        return f"Ray's head at {self._head[0]}:{self._head[1]} is gone; start Ray again on every node, and {GO_ON}"


def nodes_in_use() -> set[str]:
    """Addresses of the nodes on which this job has its training workers and model servers."""
    import ray
    from ray._private.state import state

    job = ray.get_runtime_context().get_job_id()
    # the id of a placement group ends with that of its job
    ids = {
        node
        for name, group in state.placement_group_table().items()
        if name.endswith(job) and group["state"] == "CREATED"
        for node in group["bundles_to_node_id"].values()
    }
    return {node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] in ids}


def _alive(nodes: Iterable[dict[str, Any]]) -> dict[tuple[str, int], str]:
    return {(node["NodeManagerAddress"], node["NodeManagerPort"]): _name(node) for node in nodes if node["Alive"]}


def _name(node: dict[str, Any]) -> str:
    return f"node {node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


def _sentence(name: str) -> str:
    return f"{name} has left the cluster, and the run cannot go on without it; bring it back, and {GO_ON}"
