"""Joins verl's driver to a Ray cluster that is there already, and readies every node for the run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

from agentgrpo.processes import RUN_ID, hold_folder, run_folder
from sql_agent.cluster import handover
from sql_agent.cluster.network import Network

READY_S = 120.0


class Keeper:
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
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    run_id = os.environ[RUN_ID]
    os.environ["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"  # a Ray job may name the same variables
    runtime_env = {
        **runtime_env,
        "env_vars": runtime_env["env_vars"] | {RUN_ID: run_id, "TMPDIR": str(run_folder(run_id))},
    }
    ray.init(address=network.ray_address, namespace=f"agentgrpo-{run_id}", runtime_env=runtime_env)
    kept = [handover.keep()]
    here, keeper = ray.get_runtime_context().get_node_id(), ray.remote(Keeper)
    for node in ray.nodes():
        # the command has a folder and a guard on its own node
        if node["Alive"] and node["NodeID"] in network.nodes and node["NodeID"] != here:
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            kept.append(keeper.options(num_cpus=0, scheduling_strategy=there).remote(run_id))  # type: ignore[attr-defined]
    ray.get([each.node.remote() for each in kept[1:]], timeout=READY_S)
    return kept
