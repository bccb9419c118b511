"""Where the processes of a run listen, which Ray they join, and how they get the environment of the command.

Ray writes `runtime_env.env_vars` in clear into a log on every node, which every user of that node can read. So a named
actor keeps the environment, secrets too, and whoever needs it asks; Ray lets nobody in without the cluster's token.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from agentgrpo.checks import UsageError
from agentgrpo.processes import RUN_ID

RAY_ADDRESS = "RAY_ADDRESS"
"""Ray's variable with the address of a cluster; `ray job submit` sets it."""
TOKEN_MODE = {"RAY_AUTH_MODE": "token"}
"""The variable that lets Ray ask for a token, and show one."""
# The variable by which a run's actors know the network; a process on loopback has none.
NETWORK = "AGENTGRPO_NETWORK"


@dataclass(frozen=True)
class Network:
    ray_address: str | None = None
    """None: the run starts a Ray of its own, on this machine alone."""
    host: str = "127.0.0.1"
    """The address on which the store and the LLM proxy listen: this machine's in the cluster."""
    interface: str | None = None
    """`cluster.interface`"""
    nodes: Sequence[str] = ()
    """Ray's ids of the nodes that were looked at; the run uses no other."""
    gpus: int | None = None
    """GPUs that every node that trains has; None: as many as this machine, which is alone."""
    gpus_of_nodes: Sequence[tuple[int, int, str]] = ()
    """Bytes in all and free of the GPUs that the run may take, and their nodes; empty: on a CPU, or nobody knows."""

    @property
    def is_loopback(self) -> bool:
        return self.ray_address is None

    def environment(self) -> dict[str, str]:
        """Variables of every process of the run."""
        if self.is_loopback:
            # despite its name, the first keeps Ray and the model servers on loopback
            return {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"} | sockets_of("lo")
        return {NETWORK: json.dumps({"interface": self.interface})}


LOOPBACK = Network()


def sockets_of(interface: str) -> dict[str, str]:
    """The variables that tell Gloo and NCCL their interface."""
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}


def interfaces() -> dict[str, str]:
    """This machine's network interfaces by IPv4 address."""
    its = ((each, name) for name, addresses in psutil.net_if_addrs().items() for each in addresses)
    return {each.address: name for each, name in its if each.family == socket.AF_INET}


def interface_of(address: str) -> str:
    """The name of this machine's network interface that has an IPv4 address.

    Raises:
        UsageError: none has it.
    """
    has = interfaces()
    if address not in has:
        raise UsageError(
            f"no network interface of {socket.gethostname()} has the address {address} that Ray uses there (it has "
            f"{', '.join(sorted(has))}); start Ray there with --node-ip-address=ADDRESS"
        )
    return has[address]


def settle() -> None:
    """Fill the environment of this process, an actor of a run on a cluster, with the command's and its node's."""
    told = os.environ.get(NETWORK)
    if told is None:
        return
    import ray

    if not ray.is_initialized():  # verl's driver, which loads the plugin before it joins, is no actor
        return
    take_environment()
    os.environ |= sockets_of(json.loads(told)["interface"] or interface_of(ray.util.get_node_ip_address()))


def actor_on(node_id: str, kind: type, *arguments: Any, **options: Any) -> Any:
    """Start an actor on a node that takes none of its CPUs, and return its handle."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    actor: Any = ray.remote(kind)
    return actor.options(num_cpus=0, scheduling_strategy=there, **options).remote(*arguments)


NAME = "secrets"
ANSWER_S = 60.0
_SECRETS = ("_TOKEN", "_API_KEY", "_PASSWORD")
# What belongs to one node or one process.
_THEIR_OWN = ("RAY_", "CUDA_VISIBLE_DEVICES", "TMPDIR", "PYTHONPATH", "LD_PRELOAD")


class Secrets:
    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment

    def environment(self) -> dict[str, str]:
        return self._environment


def keep_environment(here: str) -> Any:
    """Start the actor on this node, which is the driver's, and return its handle; it ends with the driver."""
    return actor_on(here, Secrets, handed_over(os.environ), name=NAME)


def handed_over(environment: Mapping[str, str]) -> dict[str, str]:
    """What of the command's environment is meant for other nodes and processes, too."""
    return {name: value for name, value in environment.items() if not name.startswith(_THEIR_OWN)}


def take_environment() -> None:
    """Fill this actor's environment from that of the command; but for secrets, the node's own values stay.

    Raises:
        ValueError: the run has ended; Ray finds no such actor.
        ray.exceptions.GetTimeoutError: the driver's node does not answer.
    """
    import ray

    given: Any = ray.get(ray.get_actor(NAME).environment.remote(), timeout=ANSWER_S)
    fill(os.environ, given)


def fill(own: MutableMapping[str, str], given: Mapping[str, str]) -> None:
    for name, value in given.items():
        if name == RUN_ID or name.endswith(_SECRETS):  # the shell of `ray start` may have had older ones
            own[name] = value
        else:
            own.setdefault(name, value)
