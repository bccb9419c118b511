"""Refuses a run that does not fit into the memory of its GPUs before anything loads, with the settings that would fit.

On a CPU, which can swap, it warns. The sums are those of `run_memory`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import floor
from pathlib import Path
from typing import Any, NamedTuple

from agentgrpo.checks import Finding, Problem
from agentgrpo.machine import gpu_memory
from agentgrpo.settings import merged, set_path
from sql_agent.model_check import read_json
from sql_agent.model_shape import ModelShape, shape_of
from sql_agent.settings.train import TrainConfig
from sql_agent.startup.machine import available_memory_gib
from sql_agent.startup.run_memory import (
    BUCKET,
    GIB,
    OFFLOAD,
    Load,
    cpu_need,
    describe_need,
    load_of,
    need_of,
    offloaded,
    phases,
)

MOST_GPUS = 64
"""More of them are not proposed."""
MOST_SHARE = 0.9
"""vLLM's own default; the rest of a GPU is for what it does not count."""
Changes = list[tuple[str, Any]]
"""Settings and their new values."""


class Gpu(NamedTuple):
    """Bytes of a GPU."""

    total: int
    free: int
    name: str = "0"
    """In CUDA_VISIBLE_DEVICES."""
    where: str = ""
    """Said after its sizes: on which node of a cluster it is."""


def gpus_here() -> list[Gpu]:
    """The GPUs that the NVIDIA driver lists and CUDA_VISIBLE_DEVICES leaves to this process, in its order.

    Empty where the driver does not answer.
    """
    listed, visible = gpu_memory(), os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [index for index, _ in listed] if visible is None else re.findall(r"[^\s,]+", visible)
    return [
        Gpu(total, free, index)
        for name in names
        for (index, uuid), (total, free) in listed.items()
        if name == index or uuid.startswith(name)
    ]


def check_run_memory(cfg: TrainConfig, gpus: Sequence[Gpu] | None) -> Finding:
    """
    Args:
        gpus: the GPUs that can be used, of a cluster those that the run may take; empty: none was looked at (a dry run
            elsewhere); None: the run is on a CPU.
    """
    shape = shape_here(cfg.model)
    if isinstance(shape, str):
        remedy = "a trained weight takes 16 bytes with its gradient and moments, beside activations and the sampler"
        return Finding("unknown", (Problem(shape, remedy, blocks=False),))
    load = load_of(cfg, cpu=gpus is None)
    if gpus is None:
        return _check_cpu(cfg.cluster.workers_per_node, cpu_need(load, shape), round(available_memory_gib() * GIB))
    need = need_of(load, shape)
    if not gpus:
        return Finding(f"{describe_need(load, need, None)}; no GPU was looked at")
    count = load.engine.n_gpus + load.cluster.sampler_gpus
    apart = bool(gpus[0].where)  # on other machines, where this one's variables do not count
    taken = sorted(gpus if apart else gpus[:count], key=lambda each: each.free)
    found = describe_need(load, need, taken[0].total)
    faults = (check_gpu_memory(load, shape, gpu) for gpu in taken)
    if (fault := next(filter(None, faults), None)) is None:
        return Finding(f"{found}; {_gib(taken[0].free)} of {_gib(taken[0].total)} are free")
    others = [each.name for each in gpus if check_gpu_memory(load, shape, each) is None][:count]
    if not apart and len(others) == count:
        remedy = f"it would fit with CUDA_VISIBLE_DEVICES={','.join(others)} before the command"
    else:
        settings = settings_that_fit(cfg, shape, taken)
        remedy = _describe_settings(settings, load.engine.n_gpus, load.engine.n_gpus if apart else len(gpus))
    return Finding(found, (Problem(fault, remedy),))


def _describe_settings(settings: Sequence[str] | None, n_gpus: int, there: int) -> str:
    if not settings:
        return "take a smaller model, or larger GPUs"
    wanted = int(dict(each.split("=") for each in settings).get("engine.n_gpus", n_gpus))
    where = f" on {wanted} such GPUs" if wanted > there else ""
    return f"it would fit{where} with --set {' '.join(settings)}"


def _check_cpu(workers: int, needed: int, available: int) -> Finding:
    each = f"{workers} training workers, each with a vLLM," if workers > 1 else "a training worker and its vLLM"
    found = f"{each} may take {_gib(needed)}; {_gib(available)} are available"
    if needed <= available:
        return Finding(found)
    fewer = f"cluster.workers_per_node={workers - 1}" if workers > 1 else "engine.gradient_checkpointing=true"
    remedy = f"end other programs, or lower it with --set {fewer}"
    what = f"the run may take {_gib(needed)}, {_gib(available)} are available, and Ray ends a worker where none is left"
    return Finding(found, (Problem(what, remedy, blocks=False),))


def shape_here(model: Path | None) -> ModelShape | str:
    """The shape of a model, or why nobody knows it."""
    if model is None or not model.is_dir():
        return "memory is not estimated: the model is not on this machine"
    try:
        return shape_of(read_json(model / "config.json"))
    except ValueError as fault:
        return str(fault)
    except KeyError as fault:
        return f"memory is not estimated: {model / 'config.json'} has no {fault.args[0]}"


def check_gpu_memory(load: Load, shape: ModelShape, gpu: Gpu) -> str | None:
    """What does not fit on the GPU; None if everything does."""
    need = need_of(load, shape)
    share = int(load.engine.gpu_memory_utilization * gpu.total)
    if share < need.sampler:
        return (
            f"vLLM needs {_gib(need.sampler)} of each GPU, and engine.gpu_memory_utilization="
            f"{load.engine.gpu_memory_utilization:g} gives it {_gib(share)} of {_gib(gpu.total)}{gpu.where}"
        )
    phase, most = max(phases(load, need, gpu.total).items(), key=lambda item: item[1])
    if most <= gpu.free:
        return None
    free = f"{_gib(gpu.free)} of {_gib(gpu.total)} are free{gpu.where}"
    return f"the run needs {_gib(most)} of each GPU in {phase}, and {free}"


def settings_that_fit(cfg: TrainConfig, shape: ModelShape, gpus: Sequence[Gpu]) -> list[str] | None:
    """Changes, as `--set` takes them, with which the run fits on all of these GPUs; None if none are enough.

    They are tried one on top of the other, what costs least first, and those that turn out not to be needed are left
    out.
    """
    tree, load = cfg.model_dump(), load_of(cfg, cpu=False)
    rows = (cfg.optim.mini_batch_size or cfg.data.train_batch_size) * cfg.rollout.group_size

    def changed(changes: Changes) -> Load:
        return _with_share(load_of(_changed(tree, changes), cpu=False), shape, gpus)

    tried: Changes = []
    for change in (None, *_changes(load, rows, shape)):
        tried += [change] if change else []
        if not _all_fit(changed(tried), shape, gpus):
            continue
        for each in tuple(tried):
            without = [other for other in tried if other is not each]
            tried = without if _all_fit(changed(without), shape, gpus) else tried
        share = changed(tried).engine.gpu_memory_utilization
        if share != load.engine.gpu_memory_utilization:
            tried = [("engine.gpu_memory_utilization", share), *tried]
        return [f"{name}={str(value).lower()}" for name, value in tried]
    return None


def _changes(load: Load, rows: int, shape: ModelShape) -> Iterator[tuple[str, Any]]:
    """
    Args:
        rows: of one update.
    """
    if load.engine.gradient_checkpointing is False:
        yield "engine.gradient_checkpointing", True
    yield f"verl.{BUCKET}", 512
    if load.pass_tokens > load.row_tokens:
        yield "optim.micro_batch_tokens", load.row_tokens
    for name, given in offloaded(load.verl).items():
        if not given:
            yield f"verl.{OFFLOAD}.{name}", True
    if not load.lora.rank:
        yield "lora.rank", 16
    gpus = 2 * load.engine.n_gpus
    while gpus <= MOST_GPUS and rows % gpus == 0:
        yield "engine.n_gpus", gpus
        if shape.shared_by(gpus):
            yield "engine.tensor_parallel_size", gpus
        gpus *= 2


def _all_fit(load: Load, shape: ModelShape, gpus: Sequence[Gpu]) -> bool:
    return all(check_gpu_memory(load, shape, gpu) is None for gpu in gpus)


def _changed(settings: dict[str, Any], changes: Changes) -> TrainConfig:
    tree = settings
    for name, value in changes:
        one: dict[str, Any] = {}
        set_path(one, name, value)
        tree = merged(tree, one)
    server = tree["engine"]["tensor_parallel_size"]
    if tree["engine"]["n_gpus"] % server or tree["cluster"]["sampler_gpus"] % server:
        tree = settings  # these changes belong to one another
    return TrainConfig.model_validate(tree)


def _with_share(load: Load, shape: ModelShape, gpus: Sequence[Gpu]) -> Load:
    """vLLM's share of the GPUs as it is set where that fits, else the largest that does, in whole percent."""
    if _all_fit(load, shape, gpus):
        return load
    need = need_of(load, shape)
    beside = phases(load, need, 0)  # without a share
    taken = max(beside.values()) if load.awake and not load.cluster.sampler_gpus else beside["rollouts"]
    share = min(MOST_SHARE, *(floor(100 * (gpu.free - taken) / gpu.total) / 100 for gpu in gpus))
    if any(share * gpu.total < need.sampler for gpu in gpus):
        return load
    return replace(load, engine=load.engine.model_copy(update={"gpu_memory_utilization": share}))


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
