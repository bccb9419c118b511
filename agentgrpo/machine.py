from __future__ import annotations

import argparse
import ipaddress
import socket
import subprocess
from pathlib import Path


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


def git_commit() -> str | None:
    """`-dirty` is added if tracked files were changed; None outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
