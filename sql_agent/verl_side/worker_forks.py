"""Forks Ray's workers from a process that has imported what they need, instead of starting each with its own imports.

verl's driver imports everything, and `start_fork_server` leaves a copy of it behind before it starts Ray or a thread.
raylet runs `setup_worker`, which sends the copy a worker's arguments, environment, folder and output; the copy forks
itself, and the fork runs Ray's `default_worker.py`. So imports are made once, and their memory is shared.

The copy is killed with the driver, and the workers with the copy. Only a run on a CPU has one: CUDA survives no fork.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from agentgrpo.processes import end_with_parent
from sql_agent.cluster.network import NETWORK
from sql_agent.verl_side import setup_worker

WORKERS_IMPORT = (
    "verl.workers.engine_workers",
    "verl.workers.rollout.vllm_rollout.vllm_async_server",
)

logger = logging.getLogger(__name__)

# Seconds that an asker has for its order, which it has in hand when it comes.
ORDER_S = 5.0
_JOB = "RAY_JOB_ID"
_FIRST_JOB = "01000000"
"""The id that a new Ray gives its first driver."""


@dataclass(frozen=True)
class RayWorkerFork:
    pid: int
    end: int
    """Its pidfd, which becomes readable when it has ended."""
    asker: socket.socket
    """The connection of the `setup_worker` that stands for it."""


def wanted() -> bool:
    """Whether this process's run is on a CPU, with a Ray of its own."""
    return os.environ.get("VERL_PLATFORM") == "cpu" and NETWORK not in os.environ


def import_ray() -> None:
    """Import Ray so that it can be forked: its library reads a worker's environment as it is loaded, and never again.

    A worker ends with the process whose pid it reads, which is raylet's if Ray starts it; here the driver's.
    """
    told = {_JOB: _FIRST_JOB, "RAY_RAYLET_PID": str(os.getpid())}
    os.environ.update(told)
    import ray  # noqa: F401

    for name in told:
        del os.environ[name]


def import_all() -> None:
    """Import what Ray's workers will: verl's training worker, its model server, and what they load by name."""
    from verl.trainer.constants_ppo import PPO_RAY_RUNTIME_ENV

    for name, value in PPO_RAY_RUNTIME_ENV["env_vars"].items():
        os.environ.setdefault(name, value)  # vLLM reads them as it is imported
    for name in WORKERS_IMPORT:
        importlib.import_module(name)


def start_fork_server(address: Path) -> Callable[[], object] | None:
    """Leave a copy of this process behind that forks workers.

    Args:
        address: path of the socket where it is asked, in a folder that nobody else may enter.
    Returns:
        None in this process. In a worker, where it returns later, what the worker has to do.
    """
    if len(os.listdir("/proc/self/task")) > 1:  # a lock that another thread holds would be held for ever in a fork
        logger.warning(
            "Ray's workers import everything themselves, since this process has threads and cannot be forked"
        )
        return None
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(address))
    listener.listen()
    os.environ[setup_worker.ADDRESS] = str(address)
    sys.stdout.flush()
    parent = os.getpid()
    if os.fork():
        listener.close()
        return None
    end_with_parent(signal.SIGKILL, parent)
    return _serve(listener)


def _serve(listener: socket.socket) -> Callable[[], object]:
    workers: list[RayWorkerFork] = []
    while True:
        ends = [worker.end for worker in workers]
        ready, _, _ = select.select([listener, *ends, *(worker.asker for worker in workers)], [], [])
        for worker in [worker for worker in workers if worker.end in ready]:
            _tell_end(worker)
            workers.remove(worker)
        for worker in workers:
            if worker.asker in ready:  # it says nothing, so it is gone: Ray has killed it
                os.kill(worker.pid, signal.SIGKILL)
        if listener in ready:
            asker, _ = listener.accept()
            copy, pid, files = os.getpid(), None, []
            try:
                asker.settimeout(ORDER_S)
                order, files = _receive(asker)
                # Ray starts some before it knows for whom
                pid = os.fork() if order["environment"].get(_JOB) == _FIRST_JOB else None
            except (OSError, ValueError) as error:  # an asker that is gone, or no memory: the others live on
                logger.warning("a worker of Ray is started as Ray does: %s: %s", type(error).__name__, error)
            if pid == 0:
                end_with_parent(signal.SIGKILL, copy)
                return _become(order, files)
            if pid is None:
                asker.close()
            else:
                workers.append(RayWorkerFork(pid, os.pidfd_open(pid), asker))
                with contextlib.suppress(OSError):
                    asker.sendall(b"+")
            for file in files:
                os.close(file)


def _receive(asker: socket.socket) -> tuple[dict[str, Any], list[int]]:
    with asker.makefile("rb") as stream:
        head, files, _, _ = socket.recv_fds(asker, 4, 3)
        return json.loads(stream.read(int.from_bytes(head, "big"))), files


def _tell_end(worker: RayWorkerFork) -> None:
    _, status = os.waitpid(worker.pid, 0)
    os.close(worker.end)
    with contextlib.suppress(OSError), worker.asker as asker:
        asker.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _become(order: dict[str, Any], files: list[int]) -> Callable[[], object]:
    """Make this fork what a new process with this command, environment, folder and output would be."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    sys.argv[:] = order["argv"]
    np.random.seed()  # Python's own generator does this by itself after a fork
    return partial(runpy.run_path, sys.argv[0], run_name="__main__")


def fork_workers(module: ModuleType) -> None:
    """Let raylet ask for forks, where a copy of this process makes them."""
    upstream = module.Node.__init__

    def __init__(self: Any, ray_params: Any, *args: Any, **kwargs: Any) -> None:
        if setup_worker.ADDRESS in os.environ:
            ray_params.setup_worker_path = setup_worker.__file__
        upstream(self, ray_params, *args, **kwargs)

    module.Node.__init__ = __init__  # type: ignore[attr-defined]
