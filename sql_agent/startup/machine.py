"""Looks at the machine: Python, packages, CPU, memory, a store's port, database servers. The checks take plain values.

It reads the packages' metadata and imports none of them, so it works where they are broken. It does not look at GPU
drivers.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import sqlite3
import sys
import tomllib
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from agentgrpo.checks import Finding, Problem
from agentgrpo.machine import ENGINES, IS_CLONE, ROOT, cpu_flags, installed_versions, memory_limits
from sql_agent.model_check import SETUP

STORE_PORT = 9999
SETUP_AND_LOOK = f"{SETUP} && .venv/bin/agentgrpo doctor"
# Packages that `make check` uses and no run does.
TOOLS = (
    "hypothesis",
    "import-linter",
    "pyright",
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "pytest-xdist",
    "ruff",
    "vulture",
)
# A one-step run of the small policy on two cores took 6 GiB at its peak; the rest is a margin.
MIN_MEMORY_GIB = 8.0


def check_python(version: tuple[int, ...], executable: str) -> Finding:
    found = f"{'.'.join(map(str, version[:3]))} ({executable})"
    if version[:2] in ((3, 11), (3, 12)):
        return Finding(found)
    return Finding(found, (Problem("expected Python 3.11 or 3.12", SETUP_AND_LOOK),))


def read_pins(requirements: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==([^\s;]+)", requirements, re.MULTILINE))


def wanted_packages(installed: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """An environment is for a GPU if its `vllm` is not the CPU's stand-in.

    Returns:
        The pins that belong to this environment, and the line that installs them.
    """
    cpu = installed.get("vllm", "+cpu").endswith("+cpu")
    pins = read_pins((ROOT / ("requirements.txt" if cpu else "requirements-gpu.txt")).read_text())
    if not cpu:
        install = "uv pip install --python .venv/bin/python --no-deps"
        return pins, f"{install} -r requirements-gpu.txt && {install} --editable ."
    stand_in = tomllib.loads((ROOT / "scripts" / "vllm_alias" / "pyproject.toml").read_text())["project"]
    return pins | {stand_in["name"]: stand_in["version"]}, f"rm -f .venv/.setup-stamp && {SETUP_AND_LOOK}"


def check_installed(installed: Mapping[str, str]) -> Finding:
    """Check the packages: of a clone against its pins, of a wheel which extras are whole."""
    if IS_CLONE:
        pins, remedy = wanted_packages(installed)
        return check_packages(pins, installed, remedy)
    return check_extras(installed, requires("agentgrpo") or ())


def check_extras(installed: Mapping[str, str], required: Sequence[str]) -> Finding:
    """Say which extras of an installed wheel are whole, and of those that are not what is missing.

    Args:
        required: the wheel's requirements, as in its metadata (PEP 508).
    """
    missing: dict[str, list[str]] = {"local": [], "train": []}
    for line in required:
        name = re.match(r"[\w.-]+", line)[0]  # pyright: ignore[reportOptionalSubscript]
        for extra, names in missing.items():
            if f'extra == "{extra}"' in line and name != "agentgrpo" and name not in installed:
                names.append(name)
    if "vllm" not in installed:
        missing["train"].append("vllm")
    found = [f"agentgrpo[{extra}] is whole" for extra, names in missing.items() if not names]
    found += [f"agentgrpo[{extra}] lacks {', '.join(names)}" for extra, names in missing.items() if names]
    return Finding("; ".join(found))


def check_packages(pins: Mapping[str, str], installed: Mapping[str, str], remedy: str) -> Finding:
    """A missing package stops a run, unless only `make check` uses it; another version stops one if it is an
    engine's.
    """
    wrong = [name for name, version in pins.items() if installed.get(name) != version]
    if not wrong:
        return Finding(f"{len(pins)} as pinned")
    stops = [name for name in wrong if (name in ENGINES or name not in installed) and name not in TOOLS]
    others = [name for name in wrong if name not in stops]
    problems = [Problem(_describe_versions(stops, pins, installed), remedy)] if stops else []
    problems += [Problem(_describe_versions(others, pins, installed), remedy, blocks=False)] if others else []
    return Finding(f"{len(wrong)} of {len(pins)} differ", tuple(problems))


def _describe_versions(names: Sequence[str], pins: Mapping[str, str], installed: Mapping[str, str]) -> str:
    shown = [f"{name} {pins[name]} is pinned, {installed.get(name, 'none')} is installed" for name in names[:5]]
    return "; ".join(shown) + (f"; and {len(names) - 5} more" if len(names) > 5 else "")


def check_cpu(machine: str, flags: Collection[str], cores: int) -> Finding:
    # vLLM's CPU build has kernels for AVX2 and AVX-512.
    kernels = [name for flag, name in (("avx2", "AVX2"), ("avx512f", "AVX-512")) if flag in flags]
    found = f"{cores} core{'s' * (cores > 1)}, {machine}, {', '.join(kernels) or 'no AVX2'}"
    problems = []
    if machine != "x86_64":
        problems.append(Problem("only x86_64 was tried", "expect to adapt requirements.txt", blocks=False))
    elif "avx2" not in flags:
        problems.append(Problem("vLLM's CPU build needs AVX2", "take a machine from 2015 or later"))
    if cores < 2:
        problems.append(Problem("one core works, but slowly", "give the machine or container two cores", blocks=False))
    return Finding(found, tuple(problems))


def check_memory(available_gib: float) -> Finding:
    found = f"{available_gib:.1f} GiB available"
    if available_gib >= MIN_MEMORY_GIB:
        return Finding(found)
    what = f"a run needs {MIN_MEMORY_GIB:.0f} GiB"
    return Finding(found, (Problem(what, "end other programs (ps aux --sort=-rss | head) or add memory"),))


def available_memory_gib() -> float:
    """The memory that the kernel would give us, or the container's limit (cgroup v2) if that is lower."""
    meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(meminfo["MemAvailable"].split()[0]) * 1024
    return min([available, *memory_limits()]) / 2**30


def check_port(port: int, asked: bool = True) -> Finding:
    """Check whether the store's port is free, has a store of agent-lightning already, or belongs to something else.

    Args:
        asked: whether the user named the port; a run that keeps its own store does not need it.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            return Finding(f"{port} is free")
    if store_answers(port):
        use = f"use it: AGL_MANAGED_STORE=0 and --external-store-address http://127.0.0.1:{port}; or end it"
        problem = Problem("it may be another run's", use, blocks=False)
        return Finding(f"{port}: a store answers", (problem,))
    remedy = f"see who has it with `ss -ltnp 'sport = :{port}'`, or take another: `agl store --port {port + 1}`"
    what = "no store can listen there" + ("" if asked else "; a run that keeps its own store takes another port")
    return Finding(f"{port}: {reason}", (Problem(what, remedy, blocks=asked),))


def store_answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/agl/health", timeout=2) as answer:
            return answer.status == 200
    except (OSError, ValueError):
        return False


def check_databases(mariadbd: str | None, install_db: str | None) -> Finding:
    # SQLite comes with Python; MariaDB is a server that the project starts for itself.
    sqlite = f"SQLite {sqlite3.sqlite_version}"
    if mariadbd and install_db:
        return Finding(f"{sqlite}, MariaDB ({mariadbd})")
    missing = "no mariadbd" if not mariadbd else "no mariadb-install-db"
    remedy = "sudo apt-get install -y --no-install-recommends mariadb-server"
    problem = Problem("--backend mariadb will not work, SQLite will", remedy, blocks=False)
    return Finding(f"{sqlite}, {missing}", (problem,))


def this_machine() -> dict[str, Any]:
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"  # Debian puts servers there
    return {
        "python": sys.version_info[:3],
        "executable": sys.executable,
        "installed": installed_versions(),
        "architecture": platform.machine(),
        "cpu_flags": cpu_flags(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": available_memory_gib(),
        "mariadbd": shutil.which("mariadbd", path=path),
        "mariadb_install_db": shutil.which("mariadb-install-db", path=path),
    }
