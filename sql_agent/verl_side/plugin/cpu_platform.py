"""Defines a verl platform for machines without a GPU: FSDP2 over gloo, float32 weights, a worker as Ray's "GPU"."""

from __future__ import annotations

import contextlib
import os
import resource
import types
from collections.abc import Iterator
from typing import Any

import psutil
import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

from agentgrpo.machine import share_of_cores
from agentgrpo.processes import RUN_ID, run_folder


def _nothing(*_: Any, **__: Any) -> None: ...


def _resident_bytes(*_: Any) -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _memory() -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def _device_module() -> types.ModuleType:
    # verl asks `torch.cuda` for memory figures, random state and synchronisation.
    module = types.ModuleType("cpu_device")
    members: dict[str, Any] = {
        "is_available": lambda: False,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "get_device_name": lambda *_: "cpu",
        "mem_get_info": lambda *_: _memory(),
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
    }
    members |= dict.fromkeys(
        ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"), _resident_bytes
    )
    members |= dict.fromkeys(
        ("synchronize", "empty_cache", "set_device", "ipc_collect", "reset_peak_memory_stats"), _nothing
    )
    for name, member in members.items():
        setattr(module, name, member)
    return module


_DEVICE = _device_module()


class CpuPlatform(PlatformBase):
    """Answers verl's questions about the device; verl/plugin/platform/platform_base.py says what each one means."""

    device_name = property(lambda self: "cpu")  # type: ignore[assignment]
    vendor_name = property(lambda self: "cpu")  # type: ignore[assignment]
    device_module = property(lambda self: _DEVICE)  # type: ignore[assignment]

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return torch.device("cpu")  # verl passes this on as device=...; an index would mean cuda:0

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"  # verl counts this resource of the Ray cluster, which is started with one a worker

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        return {"num_gpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False  # weights travel to vLLM through shared memory

    def cudart(self) -> None:
        return None


def register_cpu_platform() -> None:
    PlatformRegistry.register(platform="cpu")(CpuPlatform)


def _reference_stays(module: types.ModuleType) -> None:
    # verl keeps the reference in pinned CPU memory and moves it to the GPU for use.
    module.CPUOffloadPolicy = lambda **_: None  # type: ignore[attr-defined]


def _join_gloo(module: types.ModuleType) -> None:
    # Name the gloo backend once; verl joins "cpu:gloo" and "<device>:<backend>", and torch refuses cpu twice. Only
    # training workers call this, so it also sets their number of threads (Ray starts them with one). torch's rendezvous
    # server listens on every interface and lets everybody read and write, so workers of one machine meet in a file of
    # the run's folder, which nobody else can open; those of several need the server. A single one needs no rendezvous.
    upstream = module.init_process_group

    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        here = int(os.environ.get("RAY_LOCAL_WORLD_SIZE", "1"))
        given = os.environ.get("AGENTGRPO_TRAIN_THREADS")  # unset: the node's cores, shared among its workers
        torch.set_num_threads(int(given) if given else share_of_cores(here))
        workers, run_id = kwargs.get("world_size"), os.environ.get(RUN_ID)
        if workers == 1:
            kwargs |= {"init_method": None, "store": module.HashStore()}
        elif workers == here and run_id is not None:
            meeting = run_folder(run_id) / f"workers-{os.environ['MASTER_PORT']}"
            kwargs |= {"init_method": None, "store": module.FileStore(str(meeting), workers)}
        upstream("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    module.init_process_group = init_process_group  # type: ignore[attr-defined]
