"""Two "machines" on this one: nodes with their own network, mounts, pids, IPC and host name, joined by a cable.

The file system is shared, but for /tmp, /dev/shm, Ray's and the user's caches, and folders that a test names; the
checkout and the test's own folder are shared wherever they are. The nodes reach each other and nothing else. Making
them needs root, `ip` and `nsenter`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

RAY = Path(sys.executable).with_name("ray")
OWN = ("/tmp", "/dev/shm", str(Path.home() / ".ray"), str(Path.home() / ".cache"))
START_S = 60.0
ROOT = Path(__file__).parents[3]
# The first process of a node: it makes the node's own folders, says so, and reaps what is left behind.
FIRST = """
import json, os, socket, subprocess, sys

order = json.loads(sys.argv[1])
kept = {path: os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in order["shared"]}
socket.sethostname(order["name"])
mount = lambda *arguments: subprocess.run(["mount", *arguments], check=True, pass_fds=tuple(kept.values()))
mount("--bind", order["hosts"], "/etc/hosts")
for place in order["own"]:
    os.makedirs(place, exist_ok=True)
    mount("-t", "tmpfs", "-o", "mode=1777,size=8g", "tmpfs", place)
for path, descriptor in kept.items():
    if not os.path.isdir(path):
        os.makedirs(path)
        mount("--no-canonicalize", "--bind", f"/proc/self/fd/{descriptor}", path)  # the name leads elsewhere now
open(order["ready"], "w").close()
os.execlp("bash", "bash", "-c", "while :; do sleep 3600 & wait $!; done")
"""


def can_be_made() -> bool:
    """Whether this user may make nodes here."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "nsenter", "setpriv", "unshare"))):
        return False
    return subprocess.run(["unshare", "-n", "-m", "-p", "-f", "true"], capture_output=True).returncode == 0


class Node:
    def __init__(self, number: int, folder: Path, own: Sequence[str]) -> None:
        self.number, self.name, self.address = number, f"node{number}", f"10.77.0.{number}"
        ready = folder / f"ready{number}"
        # the node ends with this process, even if that is killed
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", *["-n", "-m", "-u", "-p", "-i", "-f", "--mount-proc"]]
        command += ["--kill-child", "--propagation", "private", sys.executable, "-c", FIRST]
        order = {"name": self.name, "hosts": str(folder / "hosts"), "ready": str(ready), "own": [*OWN, *own]}
        order["shared"] = [str(ROOT), str(folder), sys.prefix]
        with (folder / f"log{number}").open("w") as log:
            self._unshare = subprocess.Popen(
                [*command, json.dumps(order)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_S
        while not ready.exists():
            if time.monotonic() > deadline or self._unshare.poll() is not None:
                raise RuntimeError((folder / f"log{number}").read_text())
            time.sleep(0.05)
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children").read_text()
        self.first = int(children.split()[0])

    def command(self, *command: str | Path) -> list[str]:
        """The command line that runs `command` on this node, in this process's working folder."""
        # cd inside: a folder that is carried in keeps the mounts of this side
        enter = ["nsenter", "-t", str(self.first), "-m", "-u", "-n", "-p", "-i", "--"]
        return [*enter, "bash", "-c", 'cd "$0" && exec "$@"', os.getcwd(), *map(str, command)]

    def run(
        self, *command: str | Path, timeout_s: float = 120.0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        asked = {"timeout": timeout_s, "env": os.environ | environment, "capture_output": True, "text": True}
        return subprocess.run(self.command(*command), **asked)  # type: ignore[call-overload]

    def ip(self, *arguments: str) -> None:
        """Run `ip` in the node's network."""
        subprocess.run(["nsenter", "-t", str(self.first), "-n", "ip", *arguments], check=True)

    def cut(self) -> None:
        """Pull the cable: packets are lost and connections are not closed."""
        self.ip("link", "set", "eth-ag", "down")

    def mend(self) -> None:
        self.ip("link", "set", "eth-ag", "up")

    def kill(self) -> None:
        """End everything on the node at once."""
        with suppress(ProcessLookupError):
            os.kill(self.first, signal.SIGKILL)
        self._unshare.wait()


@contextmanager
def two_nodes(folder: Path, *, own: Sequence[str] = ()) -> Iterator[tuple[Node, Node]]:
    """
    Args:
        folder: for files of the nodes themselves; both have to see it.
        own: folders that are empty and private on the second node.
    """
    (folder / "hosts").write_text("127.0.0.1 localhost\n10.77.0.1 node1\n10.77.0.2 node2\n")
    nodes: list[Node] = []
    try:
        nodes += [Node(1, folder, ()), Node(2, folder, own)]
        head, other = nodes
        head.ip(*["link", "add", "eth-ag", "type", "veth", "peer", "name", "eth-ag", "netns"], str(other.first))
        for node in nodes:
            node.ip("addr", "add", f"{node.address}/24", "dev", "eth-ag")
            node.ip("link", "set", "eth-ag", "up")
            node.ip("link", "set", "lo", "up")
        yield head, other
    finally:
        for node in nodes:
            node.kill()


TOKEN = "0123456789abcdef0123456789abcdef"
PORTS = [
    f"--{name}-port={port}"
    for name, port in {
        "node-manager": 6380,
        "object-manager": 6381,
        "runtime-env-agent": 6382,
        "dashboard-agent-listen": 6383,
        "dashboard-agent-grpc": 6384,
        "metrics-export": 6385,
        "min-worker": 20000,
        "max-worker": 20099,
    }.items()
]


def start_ray(
    head: Node, other: Node | None, *, gpus: tuple[int, int], token: str | None = TOKEN, cpus: int = 8
) -> None:
    """Start Ray's head on a node, and let another join it, as doc/guides/cluster.md has it."""
    start_head(head, gpus[0], token, cpus)
    if other:
        join_ray(other, head, gpus[1], token, cpus)


def start_head(head: Node, gpus: int, token: str | None = TOKEN, cpus: int = 8) -> None:
    _start(head, ["--head", "--port=6379", "--include-dashboard=false"], gpus, token, cpus)


def join_ray(node: Node, head: Node, gpus: int, token: str | None = TOKEN, cpus: int = 8) -> None:
    _start(node, [f"--address={head.address}:6379"], gpus, token, cpus)


def _start(node: Node, where: list[str], gpus: int, token: str | None, cpus: int) -> None:
    environment = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_enable_metrics_collection": "0"}
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {"RAY_AUTH_MODE": "disabled"}
    options = [*where, f"--node-ip-address={node.address}", f"--num-gpus={gpus}", f"--num-cpus={cpus}"]
    options += ["--object-store-memory=300000000", "--disable-usage-stats", *PORTS]
    done = node.run(RAY, "start", *options, **environment)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
