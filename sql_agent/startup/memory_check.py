"""Refuses a run that does not fit into the memory of its GPUs before anything loads, with the settings that would fit.

On a CPU, which can swap, it warns. The sums are those of `run_memory`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from math import floor
from typing import Any, NamedTuple

from agentgrpo.checks import Finding, Problem
from agentgrpo.machine import gpu_memory
from agentgrpo.settings import merged, set_path
from sql_agent.model_check import read_json
from sql_agent.model_shape import ModelShape, shape_of
from sql_agent.settings.train import TrainConfig
from sql_agent.startup.machine import available_memory_gib
from sql_agent.startup.run_memory import BUCKET, GIB, OFFLOAD, cpu_need, describe_need, need_of, offloaded, phases

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
    shape = shape_here(cfg)
    if isinstance(shape, str):
        remedy = "a trained weight takes 16 bytes with its gradient and moments, beside activations and the sampler"
        return Finding("unknown", (Problem(shape, remedy, blocks=False),))
    if gpus is None:
        return _check_cpu(cfg, cpu_need(cfg, shape), round(available_memory_gib() * GIB))
    if not gpus:
        return Finding(f"{describe_need(cfg, need_of(cfg, shape, cpu=False), None)}; no GPU was looked at")
    taken = sorted(gpus if gpus[0].where else gpus[: _n_gpus(cfg)], key=lambda each: each.free)
    found = describe_need(cfg, need_of(cfg, shape, cpu=False), taken[0].total)
    faults = (fault_of(cfg, shape, gpu) for gpu in taken)
    if (fault := next(filter(None, faults), None)) is None:
        return Finding(f"{found}; {_gib(taken[0].free)} of {_gib(taken[0].total)} are free")
    return Finding(found, (Problem(fault, _remedy(cfg, shape, taken, gpus)),))


def _remedy(cfg: TrainConfig, shape: ModelShape, taken: Sequence[Gpu], gpus: Sequence[Gpu]) -> str:
    apart = bool(taken[0].where)  # on other machines, where this one's variables do not count
    others = [each.name for each in gpus if fault_of(cfg, shape, each) is None][: _n_gpus(cfg)]
    if not apart and len(others) == _n_gpus(cfg):
        return f"it would fit with CUDA_VISIBLE_DEVICES={','.join(others)} before the command"
    settings = settings_that_fit(cfg, shape, taken)
    if not settings:
        return "take a smaller model, or larger GPUs"
    wanted = int(dict(each.split("=") for each in settings).get("engine.n_gpus", cfg.engine.n_gpus))
    where = f" on {wanted} such GPUs" if wanted > (cfg.engine.n_gpus if apart else len(gpus)) else ""
    return f"it would fit{where} with --set {' '.join(settings)}"


def _n_gpus(cfg: TrainConfig) -> int:
    return cfg.engine.n_gpus + cfg.cluster.sampler_gpus


def _check_cpu(cfg: TrainConfig, needed: int, available: int) -> Finding:
    workers = cfg.workers_per_node(cpu=True)
    each = f"{workers} training workers, each with a vLLM," if workers > 1 else "a training worker and its vLLM"
    found = f"{each} may take {_gib(needed)}; {_gib(available)} are available"
    if needed <= available:
        return Finding(found)
    fewer = f"cluster.workers_per_node={workers - 1}" if workers > 1 else "engine.gradient_checkpointing=true"
    remedy = f"end other programs, or lower it with --set {fewer}"
    what = f"the run may take {_gib(needed)}, {_gib(available)} are available, and Ray ends a worker where none is left"
    return Finding(found, (Problem(what, remedy, blocks=False),))


def shape_here(cfg: TrainConfig) -> ModelShape | str:
    """The shape of the run's model, or why nobody knows it."""
    if cfg.model is None or not cfg.model.is_dir():
        return "memory is not estimated: the model is not on this machine"
    try:
        return shape_of(read_json(cfg.model / "config.json"))
    except ValueError as fault:
        return str(fault)
    except KeyError as fault:
        return f"memory is not estimated: {cfg.model / 'config.json'} has no {fault.args[0]}"


def fault_of(cfg: TrainConfig, shape: ModelShape, gpu: Gpu) -> str | None:
    """What does not fit on the GPU; None if everything does."""
    need = need_of(cfg, shape, cpu=False)
    share = int(cfg.engine.gpu_memory_utilization * gpu.total)
    if share < need.sampler:
        return (
            f"vLLM needs {_gib(need.sampler)} of each GPU, and engine.gpu_memory_utilization="
            f"{cfg.engine.gpu_memory_utilization:g} gives it {_gib(share)} of {_gib(gpu.total)}{gpu.where}"
        )
    phase, most = max(phases(cfg, need, gpu.total).items(), key=lambda item: item[1])
    if most <= gpu.free:
        return None
    free = f"{_gib(gpu.free)} of {_gib(gpu.total)} are free{gpu.where}"
    return f"the run needs {_gib(most)} of each GPU in {phase}, and {free}"


def settings_that_fit(cfg: TrainConfig, shape: ModelShape, gpus: Sequence[Gpu]) -> list[str] | None:
    """Changes, as `--set` takes them, with which the run fits on all of these GPUs; None if none are enough.

    They are tried one on top of the other, what costs least first, and those that turn out not to be needed are left
    out.
    """
    tried: Changes = []
    for change in (None, *_changes(cfg, shape)):
        tried += [change] if change else []
        if not _fits(cfg, tried, shape, gpus):
            continue
        for each in tuple(tried):
            without = [other for other in tried if other is not each]
            tried = without if _fits(cfg, without, shape, gpus) else tried
        share = _with_share(_changed(cfg, tried), shape, gpus).engine.gpu_memory_utilization
        if share != cfg.engine.gpu_memory_utilization:
            tried = [("engine.gpu_memory_utilization", share), *tried]
        return [f"{name}={str(value).lower()}" for name, value in tried]
    return None


def _changes(cfg: TrainConfig, shape: ModelShape) -> Iterator[tuple[str, Any]]:
    if cfg.engine.gradient_checkpointing is False:
        yield "engine.gradient_checkpointing", True
    yield f"verl.{BUCKET}", 512
    longest = cfg.data.prompt_tokens + cfg.data.max_response_tokens
    if cfg.micro_batch_tokens(cpu=False) > longest:
        yield "optim.micro_batch_tokens", longest
    for name, given in offloaded(cfg).items():
        if not given:
            yield f"verl.{OFFLOAD}.{name}", True
    if not cfg.lora.rank:
        yield "lora.rank", 16
    rows = (cfg.optim.mini_batch_size or cfg.data.train_batch_size) * cfg.rollout.group_size
    gpus = 2 * cfg.engine.n_gpus
    while gpus <= MOST_GPUS and rows % gpus == 0:
        yield "engine.n_gpus", gpus
        if shape.shared_by(gpus):
            yield "engine.tensor_parallel_size", gpus
        gpus *= 2


def _fits(cfg: TrainConfig, changes: Changes, shape: ModelShape, gpus: Sequence[Gpu]) -> bool:
    return _all_fit(_with_share(_changed(cfg, changes), shape, gpus), shape, gpus)


def _all_fit(cfg: TrainConfig, shape: ModelShape, gpus: Sequence[Gpu]) -> bool:
    return all(fault_of(cfg, shape, gpu) is None for gpu in gpus)


def _changed(cfg: TrainConfig, changes: Changes) -> TrainConfig:
    tree = cfg.model_dump()
    for name, value in changes:
        one: dict[str, Any] = {}
        set_path(one, name, value)
        tree = merged(tree, one)
    server = tree["engine"]["tensor_parallel_size"]
    if tree["engine"]["n_gpus"] % server or tree["cluster"]["sampler_gpus"] % server:
        return cfg  # these changes belong to one another
    return TrainConfig.model_validate(tree)


def _with_share(cfg: TrainConfig, shape: ModelShape, gpus: Sequence[Gpu]) -> TrainConfig:
    """vLLM's share of the GPUs as it is set where that fits, else the largest that does, in whole percent."""
    if _all_fit(cfg, shape, gpus):
        return cfg
    need = need_of(cfg, shape, cpu=False)
    beside = phases(cfg, need, 0)  # without a share
    shared = cfg.trainer.max_off_policy_steps and not cfg.cluster.sampler_gpus
    taken = max(beside.values()) if shared else beside["rollouts"]
    share = min(MOST_SHARE, *(floor(100 * (gpu.free - taken) / gpu.total) / 100 for gpu in gpus))
    if any(share * gpu.total < need.sampler for gpu in gpus):
        return cfg
    return cfg.model_copy(update={"engine": cfg.engine.model_copy(update={"gpu_memory_utilization": share})})


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
