"""Where the processes of a run listen, and which Ray they join."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from agentgrpo.checks import UsageError

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
    cards: Sequence[tuple[int, int, str, str]] = ()
    """The GPUs that the run may take on its nodes (`problems.cards_of`); empty: a CPU's run, or no driver says."""

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


def interface_of(address: str) -> str:
    """The name of this machine's network interface that has an IPv4 address.

    Raises:
        UsageError: none has it.
    """
    has = {
        each.address: name
        for name, its in psutil.net_if_addrs().items()
        for each in its
        if each.family == socket.AF_INET
    }
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
    from sql_agent.cluster import handover

    handover.take()
    os.environ |= sockets_of(json.loads(told)["interface"] or interface_of(ray.util.get_node_ip_address()))
