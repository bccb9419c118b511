"""Asks the first process of a Ray cluster, its GCS, without joining: who is let in, and which nodes there are.

`ray.init` takes 20 s to say `ConnectionError: Failed to connect` where the token is wrong. It does not say that a
cluster asks for none.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from agentgrpo.checks import UsageError
from sql_agent.cluster.network import interfaces

ANSWER_S = 10.0
CONNECT_S = 3.0
NOTICED_S = 60.0
"""Ray notices within this time that a raylet was killed."""
START = "doc/guides/cluster.md has the commands"


@dataclass(frozen=True)
class RayNode:
    """What Ray says of a node."""

    id: str
    host: str
    address: str
    gpus: int
    """Ray's resource GPU; on a CPU a number that `ray start --num-gpus` was given."""
    cpus: float
    """Ray's resource CPU."""

    def __str__(self) -> str:
        return f"node {self.host} ({self.address})"


def find_cluster(address: str) -> str:
    """HOST:PORT of a cluster, of `auto` that of the Ray on this machine.

    Raises:
        UsageError: the address has another form, or no Ray runs here.
    """
    from ray._private.services import canonicalize_bootstrap_address

    try:
        found = canonicalize_bootstrap_address(address)
    except ConnectionError:
        found = None
    except (ValueError, OSError) as error:
        raise UsageError(
            f"cluster.ray_address is {address!r} ({error}), expected HOST:PORT of the node that was started with "
            f"`ray start --head`, or auto; {START}"
        ) from None
    if found is None:
        raise UsageError(
            f"cluster.ray_address is {address!r}, and no Ray runs on {socket.gethostname()}; start it here with "
            f"`ray start`, or give --ray-address HOST:PORT; {START}"
        )
    return found


def check_token(address: str) -> None:
    """Check that a cluster answers, that it asks for a token, and that it takes ours.

    Raises:
        UsageError: it does not.
    """
    import grpc

    alive = _messages("gcs_service").CheckAliveRequest()
    try:
        _call(address, "CheckAlive", alive, ())
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.UNAUTHENTICATED:  # type: ignore[attr-defined]
            raise _silent(address, error) from None
    else:
        raise UsageError(
            f"the Ray cluster at {address} asks for no token, so everybody who reaches its ports can run programs "
            "there; end it with `ray stop` on every node, and start it with RAY_AUTH_MODE=token and one RAY_AUTH_TOKEN "
            f"in the environment of every `ray start`; {START}"
        )
    try:
        _call(address, "CheckAlive", alive, _token(address))
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.UNAUTHENTICATED:  # type: ignore[attr-defined]
            raise _silent(address, error) from None
        raise UsageError(
            f"the Ray cluster at {address} does not take the token that {socket.gethostname()} has in {_source()}; "
            "give the one that the cluster was started with, RAY_AUTH_TOKEN=TOKEN before the command"
        ) from None


def nodes(address: str) -> list[RayNode]:
    """The nodes that are alive, by their addresses.

    For some 20 s more Ray takes a node for alive whose raylet was killed, also beside one started in its place. So a
    raylet that refuses connections does not count, and of two with one address the end of the older is waited for.

    Raises:
        UsageError: the cluster does not answer.
    """
    deadline = time.monotonic() + NOTICED_S
    while True:
        there = [node for node, port in _listed(address) if not _refuses(node.address, port)]
        if len({node.address for node in there}) == len(there) or time.monotonic() > deadline:
            return there
        time.sleep(0.5)


def _refuses(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=CONNECT_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:  # the probe of that node will say what is wrong
        return False
    return False


def _listed(address: str) -> list[tuple[RayNode, int]]:
    """Nodes with the ports of their raylets."""
    import grpc

    try:
        answer = _call(address, "GetAllNodeInfo", _messages("gcs_service").GetAllNodeInfoRequest(), _token(address))
    except grpc.RpcError as error:
        raise _silent(address, error) from None
    return sorted(
        (
            (
                RayNode(
                    each.node_id.hex(),
                    each.node_manager_hostname,
                    each.node_manager_address,
                    int(each.resources_total.get("GPU", 0)),
                    each.resources_total.get("CPU", 0.0),
                ),
                each.node_manager_port,
            )
            for each in answer.node_info_list
            if each.state == _messages("gcs").GcsNodeInfo.ALIVE
        ),
        key=lambda found: found[0].address,
    )


def wait_for(address: str, wanted: int, per_node: int, wait_s: float) -> list[RayNode]:
    """The nodes, once so many of them can train; after `wait_s` those that there are."""
    deadline = time.monotonic() + wait_s
    while True:
        there = nodes(address)
        if sum(node.gpus >= per_node for node in there) >= wanted or time.monotonic() > deadline:
            return there
        time.sleep(0.5)


def own_node(there: Collection[RayNode], address: str) -> RayNode:
    """The node that is this machine.

    Raises:
        UsageError: none is.
    """
    mine = interfaces()
    for node in there:
        if node.address in mine:
            return node
    listed = ", ".join(f"{node.host} ({node.address})" for node in there) or "none"
    raise UsageError(
        f"{socket.gethostname()} ({', '.join(sorted(mine))}) is no node of the Ray cluster at {address}, whose nodes "
        f"are {listed}; give the command on one of them, or make this machine one that takes no work: "
        f"`ray start --address={address} --num-cpus=0 --num-gpus=0`"
    )


def _messages(name: str) -> Any:
    return import_module(f"ray.core.generated.{name}_pb2")


def _call(address: str, method: str, request: Any, metadata: tuple[tuple[str, str], ...]) -> Any:
    import grpc
    from ray.core.generated.gcs_service_pb2_grpc import NodeInfoGcsServiceStub

    no_proxy = (("grpc.enable_http_proxy", 0),)  # nor does Ray take one from http_proxy
    with grpc.insecure_channel(address, options=no_proxy) as channel:
        return getattr(NodeInfoGcsServiceStub(channel), method)(request, timeout=ANSWER_S, metadata=metadata)


def _token(address: str) -> tuple[tuple[str, str], ...]:
    from ray.exceptions import AuthenticationError

    loader: Any = import_module("ray._raylet").AuthenticationTokenLoader
    try:
        return tuple(loader.instance().get_token_for_http_header().items())
    except AuthenticationError:
        raise UsageError(
            f"the Ray cluster at {address} asks for a token, and {socket.gethostname()} has none (looked at "
            f"{_source()}); give the one that the cluster was started with, RAY_AUTH_TOKEN=TOKEN before the command"
        ) from None


def _source() -> str:
    for variable in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        if os.environ.get(variable):
            return variable
    return "~/.ray/auth_token"


def _silent(address: str, error: Any) -> UsageError:
    return UsageError(
        f"no Ray cluster answers at {address} ({error.code().name}: {error.details()}); start one there with `ray "
        f"start --head`, or correct --ray-address; {START}"
    )
