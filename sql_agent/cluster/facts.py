"""What a node has and sees, gathered on the node itself by an actor that takes no resources."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from agentgrpo.machine import ENGINES, ROOT, bfloat16_pays, free_port, gpu_memory, installed_versions, listed_gpus
from agentgrpo.passwords import VARIABLE as PASSWORD
from agentgrpo.passwords import masked
from sql_agent.cluster.network import interfaces

OUR_PACKAGES = ("agentgrpo", "dbbench_adapter", "reward_model", "sql_agent")
SHARED_MEMORY = "/dev/shm"
ECHO = "AGENTGRPO_ECHO"
"""A variable that the preflight gives its actors, to see whether it arrives."""
# A file is there at once on one disk; NFS may take a few seconds.
SHARED_S = 5.0
# Of longer files only the first and last bytes are read: a model of 100 GB is told from another in a second, and a
# changed byte in the middle of equal sizes is not.
EDGE_BYTES = 2**20
DIGEST_CHARS = 64
COMMAND = "command"


@dataclass(frozen=True)
class Order:
    """What the command asks of each node."""

    files: Mapping[str, str]
    """Paths of files and folders that the run reads on every node, by what they are."""
    database: Path | str | None
    """A database on a server, whose password is hidden."""
    backend: str
    meeting: str
    """Folder in the run's folder in which the command has written a file, `COMMAND`, and the nodes write theirs."""
    password: str | None
    """AGENTGRPO_DB_PASSWORD; it comes this way because Ray logs the variables of `runtime_env`."""


@dataclass(frozen=True)
class Facts:
    python: str
    packages: Mapping[str, str]
    code: str
    """Digest of this project's files."""
    gpus: int
    """GPUs that the NVIDIA driver lists."""
    gpu_bytes: tuple[tuple[int, int], ...]
    """Bytes of each of them, in all and free."""
    fast_bfloat16: bool
    cores: int
    memory_gib: float
    files: Mapping[str, str]
    """Digests, or words on why there is none (`digest`), by the names of `Order.files`."""
    servers: Mapping[str, str]
    """Why a database server cannot be used, by its hidden address; those that can are left out."""
    interfaces: Mapping[str, str]
    """Network interfaces by IPv4 address."""
    free_bytes: Mapping[str, int]
    """Of /dev/shm, and of the folder for temporary files."""
    unread: str
    """Why the command's file in `Order.meeting` cannot be read; "": it can."""
    unwritten: str
    """Why none can be written there; "": one was, or there is no such folder."""
    echo: str | None


def gather(order: Order, name: str) -> Facts:
    """
    Args:
        name: of the node, the name of its answer.
    """
    packages = installed_versions()
    meeting = Path(order.meeting)
    unread = why_unread(meeting / COMMAND, meeting.name, SHARED_S)
    return Facts(
        platform.python_version(),
        {each: packages[each] for each in ENGINES if each in packages},
        code_digest(),
        listed_gpus(),
        tuple(gpu_memory().values()),
        bfloat16_pays(),
        len(os.sched_getaffinity(0)),
        psutil.virtual_memory().total / 2**30,
        {what: digest(Path(path)) for what, path in order.files.items()},
        _silent_servers(order),
        interfaces(),
        {place: shutil.disk_usage(place).free for place in (SHARED_MEMORY, tempfile.gettempdir())},
        unread,
        "" if unread else why_unwritten(meeting / name),
        os.environ.get(ECHO),
    )


def code_digest(root: Path = ROOT) -> str:
    """Return one hash of this project's modules, templates and tables, without tests and settings."""
    found = hashlib.sha256()
    for package in OUR_PACKAGES:
        for file in sorted((root / package).rglob("*")):
            path = file.relative_to(root)
            if file.suffix in (".py", ".jinja", ".yaml") and {"tests", "configs"}.isdisjoint(path.parts):
                found.update(f"{path}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\0".encode())
    return found.hexdigest()


def digest(path: Path) -> str:
    """Hash a file, or all files of a folder but hidden ones, by names, sizes, and the first and last MiB of each.

    Returns:
        64 hexadecimal characters, or words on why nothing can be read.
    """
    found = hashlib.sha256()
    try:
        if not path.exists():
            return "is not there"
        # hub's downloads keep their times in a hidden folder
        inside = sorted(
            each
            for each in (path.rglob("*") if path.is_dir() else [path])
            if each.is_file() and not any(part.startswith(".") for part in each.relative_to(path).parts)
        )
        for file in inside:
            size = file.stat().st_size
            found.update(f"{file.relative_to(path)}\0{size}\0".encode())
            with file.open("rb") as data:
                found.update(data.read(EDGE_BYTES))
                data.seek(max(EDGE_BYTES, size - EDGE_BYTES))
                found.update(data.read())
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return found.hexdigest()


def why_unread(file: Path, text: str, wait_s: float) -> str:
    """Why the file does not hold the text after so many seconds; "": it does."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            why = "" if file.read_text() == text else "it is not whole"
        except OSError as error:
            why = error.strerror or str(error)
        if not why or time.monotonic() > deadline:
            return why
        time.sleep(0.1)


def why_unwritten(file: Path) -> str:
    try:
        file.write_text(file.parent.name)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _silent_servers(order: Order) -> dict[str, str]:
    from dbbench_adapter.engines import check_backend, open_databases

    if order.password is not None:
        os.environ[PASSWORD] = order.password
    silent = {}
    if isinstance(order.database, str):
        try:
            open_databases(order.database).check()
        except Exception as error:  # whatever a driver raises is said
            silent[order.database] = masked(str(error))
    try:
        check_backend(order.backend)
    except Exception as error:  # as above
        silent[order.backend] = masked(str(error))
    return silent


class Scout:
    """The actor: looks at its node, and joins the others in an all-reduce."""

    def gather(self, order: Order, name: str) -> Facts:
        return gather(order, name)

    def get_ready(self, address: str) -> int:
        """Import torch, which takes seconds, before any deadline runs, and return a port that is free."""
        import torch  # noqa: F401

        return free_port(address)

    def all_reduce(self, rank: int, size: int, meeting: str, interface: str, timeout_s: float) -> str:
        """Sum the ranks over gloo.

        Args:
            meeting: HOST:PORT of the first rank.
        Returns:
            Why it failed; "": it did not.
        """
        from datetime import timedelta

        os.environ["GLOO_SOCKET_IFNAME"] = interface
        import torch
        from torch import distributed

        try:
            distributed.init_process_group(
                "gloo",
                init_method=f"tcp://{meeting}",
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=timeout_s),
            )
            summed = torch.tensor([float(rank)])
            distributed.all_reduce(summed)
        except RuntimeError as error:  # torch's DistNetworkError is one
            return str(error).splitlines()[0][:200]
        return "" if summed.item() == size * (size - 1) / 2 else f"the sum was {summed.item():g}"
