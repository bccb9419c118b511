"""Puts the socket through which weights are sent into the run's own folder, which nobody else may read, and the run's
id into the name of the memory that they go through.

verl's address (workers/rollout/vllm_rollout/vllm_rollout.py, `ServerAdapter`, and utils.py there,
`vLLMColocateWorkerExtension`) is a file in /tmp named by Ray's job id, the same for the first job of every Ray, and ZMQ
takes an address over from whoever has it: of two runs on a machine one could load the weights of the other.

The memory (bucketed_weight_transfer.py there) is a file in /dev/shm with a random name, which stays where all processes
of a run are killed during a push; by the id a guard and `agentgrpo clean` find it.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

from agentgrpo.processes import RUN_ID, run_folder

UPSTREAM = "ipc:///tmp/"


def own_address(address: str) -> str:
    """verl's address, with the run's folder in place of /tmp; as it is without a run, or where verl names another."""
    run_id = os.environ.get(RUN_ID)
    if run_id is None or not address.startswith(UPSTREAM):
        return address
    return f"ipc://{run_folder(run_id)}/{address.removeprefix(UPSTREAM)}"


def own_name(name: str) -> str:
    """verl's name of a piece of shared memory, with the run's id before it; as it is without a run."""
    run_id = os.environ.get(RUN_ID)
    return name if run_id is None else f"{run_folder(run_id).name}-{name}"


def _name_memory(module: ModuleType) -> None:
    create, rebuild = module.create_shared_memory, module.rebuild_shared_memory

    @functools.wraps(create)
    def create_shared_memory(size: int, name: str) -> Any:
        return create(size, own_name(name))

    @functools.wraps(rebuild)
    def rebuild_shared_memory(name: str, size: int, **dtype: Any) -> Any:
        return rebuild(own_name(name), size, **dtype)

    module.create_shared_memory = create_shared_memory  # type: ignore[attr-defined]
    module.rebuild_shared_memory = rebuild_shared_memory  # type: ignore[attr-defined]


def _send_there(module: ModuleType) -> None:
    original = module.get_rollout_class

    @functools.wraps(original)
    def get_rollout_class(rollout_name: str, mode: str = "async") -> type:
        upstream: Any = original(rollout_name, mode)

        class OwnAddress(upstream):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                self.zmq_handle = own_address(self.zmq_handle)

        return OwnAddress

    module.get_rollout_class = get_rollout_class  # type: ignore[attr-defined]


def _receive_there(module: ModuleType) -> None:
    original = module.vLLMColocateWorkerExtension._get_zmq_handle

    @functools.wraps(original)
    def _get_zmq_handle(self: Any) -> str:
        return own_address(original(self))

    module.vLLMColocateWorkerExtension._get_zmq_handle = _get_zmq_handle  # type: ignore[attr-defined]
