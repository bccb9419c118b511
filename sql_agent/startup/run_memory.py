"""Estimates the memory of a run of the main job before anything loads: of each GPU, or of a CPU's workers together.

The trainer is verl's FSDP2 (weights, gradients and AdamW's moments in float32, shared by the GPUs), the sampler is a
vLLM on the same GPUs. They take turns: while rollouts are played vLLM has its share of the card, while the policy is
updated it has given it back, and during weight sync both hold their weights. So three sums are made, and the largest
counts. Only models that `sql_agent.model_shape` knows; fragmentation is left out. How far the estimate was from what an
H100 showed is in doc/guides/models_and_gpus.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentgrpo.checks import UsageError
from agentgrpo.machine import uses_bfloat16
from sql_agent.model_shape import GIB, ModelShape, kv_cache_bytes
from sql_agent.settings.local import AdapterConfig
from sql_agent.settings.main_job import ClusterConfig, EngineConfig, LoraConfig
from sql_agent.settings.train import TrainConfig

FLOAT32 = 4
# Contexts of both processes, CUDA graphs, NCCL and what torch's allocator holds back: an H100 held 10.0 GiB where
# vLLM's share was 8.0 and the trainer's tensors were smaller than 0.1 (doc/project/benchmarks.md).
PROCESSES = 2 * GIB
# The buffer in which verl sends weights, MiB by default; a larger weight is sent by itself.
BUCKET, BUCKET_MIB = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes", 2048
# verl takes log-probs of so many positions at a time (utils/experimental/torch_functional.py), and its backward pass
# holds 22 bytes of each logit: one copy in bfloat16, five in float32.
POSITIONS, BYTES_OF_A_LOGIT = 512, 22
# Without a kernel for a CPU torch's flex_attention makes the scores of all pairs of tokens: 6.7 to 7.3 float32
# copies of them in the backward pass, its peak (2,048 and 4,096 tokens, 4 and 8 heads).
BYTES_OF_A_SCORE = 29
# A run of the small policy on one CPU worker takes 2.2 GiB, 0.1 of them KV cache, and 1.4 more where each worker
# imports for itself; a second worker and its vLLM 1.5 GiB.
CPU_BASE, CPU_WORKER = 4 * GIB, 3 * GIB // 2
OFFLOAD = "actor_rollout_ref.actor.fsdp_config"
"""verl's keys `param_offload` and `optimizer_offload` are below it."""


@dataclass(frozen=True)
class Load:
    """What the sums read of a run's settings."""

    cpu: bool
    engine: EngineConfig
    cluster: ClusterConfig
    lora: LoraConfig
    verl: dict[str, Any]
    workers: int
    """Training workers of the run."""
    row_tokens: int
    pass_tokens: int
    """The most tokens of one forward and backward pass."""
    rollouts_at_once: int
    awake: bool
    """Whether vLLM keeps its memory during the update."""


def load_of(cfg: TrainConfig, *, cpu: bool) -> Load:
    return Load(
        cpu,
        cfg.engine,
        cfg.cluster,
        cfg.lora,
        cfg.verl,
        workers=cfg.workers(cpu=cpu),
        row_tokens=cfg.data.row_tokens,
        pass_tokens=cfg.micro_batch_tokens(cpu=cpu),
        rollouts_at_once=cfg.rollouts_at_once,
        awake=cfg.trainer.max_off_policy_steps > 0,
    )


@dataclass(frozen=True)
class Need:
    """Bytes on one GPU (on a CPU: of one worker and its vLLM), by purpose."""

    weights: int
    """The trainer's share, float32; with LoRA the frozen ones too."""
    gradients: int
    moments: int
    gathered: int
    """Weights of the layers that are computed, and their gradients before they are shared out."""
    activations: int
    logits: int
    largest: int
    """The largest weight, whole, on its way to the sampler."""
    served: int
    """The sampler's weights."""
    reading: int
    """The sampler's activations while it reads prompts, and logits."""
    row: int
    """KV cache of one longest row, without which vLLM does not start."""

    @property
    def update(self) -> int:
        return self.weights + self.gradients + self.moments + self.gathered + self.activations + self.logits

    @property
    def sampler(self) -> int:
        return self.served + self.reading + self.row


def need_of(load: Load, shape: ModelShape) -> Need:
    """The need of one of the run's workers and of its part of a model server."""
    cpu, engine, lora, workers = load.cpu, load.engine, load.lora, load.workers
    tp = 1 if cpu else engine.tensor_parallel_size
    half = uses_bfloat16(engine.precision, shape.parameters) if cpu else engine.precision != "float32"
    act = 2 if half else 4
    adapter = AdapterConfig(rank=lora.rank, target_modules=lora.target_modules) if lora.rank else None
    added = shape.adapter_parameters(adapter) if adapter else 0
    trained = added or shape.parameters
    embeddings = shape.vocab * shape.hidden * (1 if shape.tied else 2)
    layer = (shape.parameters - embeddings) // shape.layers
    # A CPU computes in autocast on float32 weights. FSDP2 gathers a layer and the next one, and keeps the root's.
    gathered = (FLOAT32 if cpu else act) * (embeddings + 2 * layer)
    if not adapter:
        gathered += (FLOAT32 + act) * max(embeddings, layer)
    batched = max(4096, load.row_tokens)
    return Need(
        weights=FLOAT32 * (shape.parameters + added) // workers,
        gradients=FLOAT32 * trained // workers,
        moments=2 * FLOAT32 * trained // workers,
        gathered=gathered,
        activations=_activations(load, shape, act),
        logits=POSITIONS * BYTES_OF_A_LOGIT * shape.vocab + 2 * act * shape.vocab * shape.hidden,
        largest=FLOAT32 * max(shape.vocab, shape.intermediate) * shape.hidden,
        served=act * shape.parameters // tp,
        reading=batched * act * (4 * shape.intermediate // tp + 3 * shape.hidden)
        + 3 * FLOAT32 * engine.max_num_seqs * shape.vocab,
        row=act * shape.cached_numbers * load.row_tokens // min(tp, shape.kv_heads),
    )


def _activations(load: Load, shape: ModelShape, act: int) -> int:
    """What autograd keeps of a full micro-batch, and what the layer that is being computed needs beside it.

    Each norm keeps its input in float32 and normalised; each linear layer its input; attention queries, keys and values
    (repeated for each query head) and its output; the feed-forward part its gate, its activation and its product.
    """
    cpu, tokens = load.cpu, load.pass_tokens
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    kept = 8 * shape.hidden + act * (4 * shape.hidden + 4 * queries + 4 * shape.intermediate)
    if shape.head_norms:
        kept += (FLOAT32 + act) * (queries + keys)
    # On a GPU several rows share a pass under a mask, which torch's attention turns into numbers in each layer; a CPU's
    # attention (`sql_agent.shared_prefix`) needs none.
    mask = 0 if cpu else act * tokens**2
    working = tokens * act * (4 * shape.intermediate + 3 * shape.hidden) + (0 if cpu else tokens**2 + mask)
    if cpu and load.engine.shared_prompts:
        working += BYTES_OF_A_SCORE * shape.heads * tokens**2
    checkpointing = load.engine.gradient_checkpointing
    if (not cpu) if checkpointing is None else checkpointing:
        residual = FLOAT32 if cpu else act
        return shape.layers * tokens * shape.hidden * residual + tokens * kept + mask + working
    return shape.layers * (tokens * kept + mask) + working


def phases(load: Load, need: Need, total: int | None) -> dict[str, int]:
    """Bytes on one GPU while rollouts are played, while weights are sent, and in the update.

    With `cluster.sampler_gpus` the first is of a GPU of those, which also takes new weights in, and the other two are
    of one that trains.

    Args:
        total: of the card, of which vLLM takes its share; None: it takes what it needs at least.
    Raises:
        UsageError: a key of verl's has a value that verl cannot read.
    """
    share = need.sampler if total is None else int(load.engine.gpu_memory_utilization * total)
    offload, bucket = offloaded(load.verl), _bucket(load.verl)
    resting = (0 if offload["optimizer_offload"] else need.moments) + (0 if offload["param_offload"] else need.weights)
    # the adapter is merged into weights that are on the GPU; without one each weight is sent from where it lies
    sending = resting + (need.weights if offload["param_offload"] and load.lora.rank else 0)
    if load.cluster.sampler_gpus:  # vLLM's share is on other GPUs than the rest; NCCL has two buffers on both sides
        return {
            "rollouts": share + 3 * bucket + need.largest + PROCESSES,
            "weight sync": sending + 2 * bucket + need.largest + PROCESSES,
            "the update": need.update + PROCESSES,
        }
    return {
        "rollouts": share + resting + PROCESSES,
        "weight sync": (share if load.awake else need.served) + sending + bucket + need.largest + PROCESSES,
        "the update": (share if load.awake else 0) + need.update + PROCESSES,
    }


def offloaded(verl: dict[str, Any]) -> dict[str, bool]:
    """What the trainer keeps in the host's memory while it is not updating."""
    return {name: bool(_given(verl, f"{OFFLOAD}.{name}")) for name in ("param_offload", "optimizer_offload")}


def _given(verl: dict[str, Any], key: str) -> Any:
    """The value of verl's key in the settings, None if it is not given."""
    found, above = verl, "verl"
    for name in key.split("."):
        if not isinstance(found, dict):
            raise UsageError(f"{above} is {found!r}, expected keys below it; leave it out, or set verl.{key}")
        if name not in found:
            return None
        found, above = found[name], f"{above}.{name}"
    return found


def _bucket(verl: dict[str, Any]) -> int:
    mib = _given(verl, BUCKET)
    if mib is not None and not isinstance(mib, int | float):
        raise UsageError(f"verl.{BUCKET} is {mib!r}, expected a number of MiB; verl's default is {BUCKET_MIB}")
    return int(mib or BUCKET_MIB) * 2**20


def describe_need(load: Load, need: Need, total: int | None) -> str:
    """In GiB; `total` as in `phases`."""
    sums = ", ".join(f"{_gib(size)} in {phase}" for phase, size in phases(load, need, total).items())
    return (
        f"GiB of each GPU: {sums}; the trainer: weights {_gib(need.weights)}, gradients {_gib(need.gradients)}, "
        f"moments {_gib(need.moments)}, gathered layers {_gib(need.gathered)}, activations {_gib(need.activations)}, "
        f"logits {_gib(need.logits)}; vLLM at least: weights {_gib(need.served)}, reading prompts "
        f"{_gib(need.reading)}, KV cache of one row {_gib(need.row)}"
    )


def cpu_need(load: Load, shape: ModelShape) -> int:
    """Bytes of all workers of one node's CPU, their model servers, and the processes of the run."""
    engine, workers, need = load.engine, load.cluster.workers_per_node, need_of(load, shape)
    number_bytes = 2 if uses_bfloat16(engine.precision, shape.parameters) else FLOAT32
    cache = kv_cache_bytes(engine, load.row_tokens, load.rollouts_at_once, shape, number_bytes)
    # vLLM's layers on a CPU hold their weights twice, as they are loaded and as the kernel wants them
    return CPU_BASE + (workers - 1) * CPU_WORKER + workers * (need.update + 2 * need.served + cache)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}"
