"""Estimates the memory that local training needs, from a model's config.json, before anything is loaded.

The formulas are for the models that `sql_agent.model_shape` knows. They count what autograd keeps of each layer with a
LoRA adapter, the KV cache, and a tile of logits; libraries such as accelerate only estimate weights. Leaves out CUDA's
own memory (about 0.5 GB), fragmentation, and models of other kinds. doc/project/benchmarks.md has the estimate's error.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal, NamedTuple

from agentgrpo.hub import model_folder
from agentgrpo.machine import memory_limits, uses_bfloat16
from agentgrpo.micro_batches import ON_CPU_SHARED, micro_batch_tokens, pass_for_rows, short_pass
from dbbench_adapter.protocols import Message
from sql_agent.local.model_files import base_folder
from sql_agent.model_check import read_json
from sql_agent.model_shape import ModelShape, shape_of
from sql_agent.settings.groups import AgentConfig, PrecisionName
from sql_agent.settings.local import AdapterConfig, ModelConfig, OptimConfig

Precision = Literal["float32", "autocast", "bfloat16", "4bit"]
"""autocast: weights in float32, matrix products of the update in bfloat16, on a CPU that supports it."""
NF4_BYTES = 0.516
"""Bytes of a parameter: 4 bits, and a scale per 64 of them that is itself 8 bits (double quantisation)."""
TILE_ON_CPU, COPIES_ON_CPU = 2**21, 3
"""Logits that exist at a time (`sql_agent.log_probs`), and copies of them while their gradient is computed."""
VOCAB_TILE, PLACE_TILE, COPIES_ON_GPU = 4096, 4096, 9
"""Tokens of the vocabulary, positions, and copies of their logits, in TRL's function."""
CPU_RUNTIME = 96 * 2**20
"""Bytes beyond the tensors, measured for updates of four sizes."""
ANSWER_TOKENS = 128
"""Assumed tokens of a database's answer to a reply, with the template around it."""
MIN_NEW_TOKENS = 64
"""Lowest limit of a reply that is proposed; a statement needs about this many tokens."""


M_MMAP_THRESHOLD, THRESHOLD_BYTES = -3, 256 * 1024


def give_back_freed_memory() -> None:
    """Have glibc give every freed tensor of 256 KiB or more back to the system.

    By default glibc raises that limit to 32 MiB and leaves holes in its heap; the update of a small model then held 1.5
    times the memory of its tensors. With other C libraries (musl, macOS) nothing is done.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, THRESHOLD_BYTES)


def read_shape(path: str) -> ModelShape:
    """Read the dimensions of a model.

    Args:
        path: a model, or an adapter, whose base is read; a folder or a name in the Hugging Face cache.
    Raises:
        ValueError: there is no config.json, or the model is of another kind.
    """
    return shape_of(read_json(base_folder(model_folder(path, fetch=False)) / "config.json"))


@dataclass(frozen=True)
class Estimate:
    """Bytes of memory by purpose."""

    weights: int
    adapter: int
    """The adapter with its gradients and AdamW's two states."""
    reference: int
    kv_cache: int
    sampling: int
    """One layer's activations while prompts are read, and copies of a row of logits."""
    activations: int
    logits: int
    runtime: int = 0
    """torch's code and scratch memory that are loaded with the first update on a CPU."""

    @property
    def at_sampling(self) -> int:
        return self.weights + self.adapter + self.reference + self.kv_cache + self.sampling

    @property
    def at_update(self) -> int:
        return self.weights + self.adapter + self.reference + self.activations + self.logits + self.runtime

    @property
    def peak(self) -> int:
        return max(self.at_sampling, self.at_update)


class Pass(NamedTuple):
    tokens: int
    """Computed tokens; a shared prompt counts once."""
    rows: int


def largest_pass(prompt: int, own: int, rows: int, group_size: int, limit: int, *, common: int) -> Pass:
    """The largest pass that `sql_agent.local.packed_model.micro_batches_of` makes of these rows.

    Args:
        prompt: tokens that the rows of a group share.
        own: tokens of each row behind them.
        limit: tokens of a pass, which a single row may exceed.
        common: tokens at the beginning of the prompt that the groups share too.
    """
    found = [Pass(prompt + own, 1)]
    for groups in range(1, -(-rows // group_size) + 1):
        prompts = common + groups * (prompt - common)
        fit = min(rows, groups * group_size, (limit - prompts) // own)
        if fit >= groups:
            found.append(Pass(prompts + fit * own, fit))
    return max(found)


def _kept_by_layer(shape: ModelShape, adapter: AdapterConfig, precision: Precision, sequence_tokens: int) -> int:
    """The bytes that autograd keeps of one token in one layer."""
    act = 2 if precision in ("bfloat16", "autocast") else 4
    noise = 4 if precision in ("float32", "autocast") else 1  # dropout keeps floats on a CPU, a byte mask on a GPU
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    adapted = shape.adapted(adapter)
    inputs = {name: shape.linears[name][0] for name in adapted}
    base = 4 * 2 * shape.hidden + act * (4 * queries + 3 * shape.intermediate) + 4 * sequence_tokens
    if shape.head_norms:
        base += 4 * (queries + keys)
    if precision == "autocast":  # each adapter casts its input separately
        lora = (2 + (noise if adapter.dropout else 0)) * sum(inputs.values())
    elif adapter.dropout:
        lora = (4 + noise) * sum(inputs.values())
    elif precision == "bfloat16":
        lora = 4 * sum(inputs.values())  # each adapter casts its input separately
    else:
        # queries, keys and values share their input, and so do gate and up; o's input is the attention's output
        shared = {"q_proj": "attention", "k_proj": "attention", "v_proj": "attention", "down_proj": "down"}
        lora = 4 * sum({shared.get(name, "mlp"): size for name, size in inputs.items() if name != "o_proj"}.values())
    return base + lora + (2 if precision == "autocast" else 4) * adapter.rank * len(adapted)


def available_bytes(device: str) -> int:
    """The free memory of the GPU, or of this machine within the limit of its container.

    Args:
        device: cpu or cuda.
    """
    if device == "cuda":
        import torch

        return torch.cuda.mem_get_info()[0]
    import psutil

    used = psutil.Process().memory_info().rss
    return min([psutil.virtual_memory().available, *(limit - used for limit in memory_limits())])


@dataclass(frozen=True)
class Demand:
    """What decides how much memory a run needs: settings, some of which can be lowered, and the lengths of its rows."""

    shape: ModelShape
    adapter: AdapterConfig
    precision: Precision
    rows: int
    """Episodes sampled side by side, which are trained together."""
    group_size: int
    """The number of these that begin with the same prompt."""
    prompt_tokens: int
    common_tokens: int
    """The beginning that the prompts of all tasks share, such as the schema of a database."""
    replies: int
    max_new_tokens: int
    micro_batch_tokens: int
    gradient_checkpointing: bool
    reference: bool
    """Whether there is a separate reference model, assumed to have the same shape and never in 4 bits."""

    @property
    def estimate(self) -> Estimate:
        """The estimate for the case that every reply reaches its limit."""
        return self.estimate_of(self.sequence_tokens)

    @property
    def sequence_tokens(self) -> int:
        longest = self.prompt_tokens + self.replies * (self.max_new_tokens + ANSWER_TOKENS)
        return min(longest, self.shape.positions)

    def estimate_of(self, sequence_tokens: int) -> Estimate:
        """Estimate the memory of a run whose longest trajectory has this many tokens, prompt included."""
        shape, precision = self.shape, self.precision
        on_cpu = precision in ("float32", "autocast")
        act = 2 if precision == "bfloat16" else 4  # with 4 bits, PEFT keeps everything between the matrices in float32
        others = shape.parameters - shape.linear_parameters
        plain = shape.parameters * (4 if on_cpu else 2)
        weights = int(shape.linear_parameters * NF4_BYTES) + 4 * others if precision == "4bit" else plain
        read, sampled = self.rows * sequence_tokens, max(1, sequence_tokens - self.prompt_tokens)
        prompt = max(0, sequence_tokens - sampled) if on_cpu else 0  # only there it is computed once
        largest = largest_pass(
            prompt,
            sequence_tokens - prompt,
            self.rows,
            self.group_size,
            self.micro_batch_tokens,
            common=min(self.common_tokens, prompt),
        )
        passing = act * (4 * shape.intermediate + 3 * shape.hidden)  # per token, in the layer that is being computed
        kept = _kept_by_layer(shape, self.adapter, precision, sequence_tokens)
        places, in_layer = largest.rows * sampled, largest.tokens * passing
        at_logits = 4 * (
            COPIES_ON_CPU * min(places * shape.vocab, TILE_ON_CPU)
            if on_cpu
            else COPIES_ON_GPU * min(places, PLACE_TILE) * min(shape.vocab, VOCAB_TILE)
        )
        keys = shape.kv_heads * shape.head_dim
        if self.gradient_checkpointing or sequence_tokens > self.micro_batch_tokens:  # a longer row is recomputed
            activations = shape.layers * largest.tokens * shape.hidden * act
            in_layer += largest.tokens * kept
        else:
            activations = shape.layers * largest.tokens * kept
            if precision == "autocast":
                activations += 2 * shape.linear_parameters  # frozen matrices in bfloat16, kept for the backward pass
        return Estimate(
            weights=weights,
            adapter=4 * 4 * shape.adapter_parameters(self.adapter),
            reference=plain if self.reference else 0,
            kv_cache=2 * act * keys * read * shape.layers,
            sampling=read * (passing + 4 * sequence_tokens) + 7 * 4 * self.rows * shape.vocab,
            activations=activations + max(0, in_layer - at_logits),
            logits=at_logits,
            runtime=CPU_RUNTIME if on_cpu else 0,
        )

    def holds(self, tokens: int, available: int) -> bool:
        """Whether memory holds a pass of so many tokens in which nothing is computed twice."""
        return replace(self, micro_batch_tokens=tokens).estimate_of(min(tokens, self.sequence_tokens)).peak <= available

    def lowered(self) -> Iterator[tuple[str, Demand]]:
        """Yield (change, new demand) for one lowered setting after the other; each change adds to those before."""
        now = self
        if now.precision == "bfloat16":
            now = replace(now, precision="4bit")
            yield "load_in_4bit", now
        if not now.gradient_checkpointing:
            now = replace(now, gradient_checkpointing=True)
            yield "gradient_checkpointing", now
        if now.micro_batch_tokens > 1:
            now = replace(now, micro_batch_tokens=1)
            yield "micro_batch_tokens 1 (one trajectory at a time)", now
        while now.max_new_tokens > MIN_NEW_TOKENS:
            now = replace(now, max_new_tokens=max(MIN_NEW_TOKENS, now.max_new_tokens // 2))
            yield f"max_new_tokens {now.max_new_tokens}", now
        while now.rows > 2:
            now = replace(now, rows=max(2, now.rows // 2))
            yield f"{now.rows} episodes sampled together", now


@dataclass(frozen=True)
class Workload:
    """The part of a run that decides its memory."""

    first_prompts: Sequence[Sequence[Message]]
    """Some of the first prompts; the longest one is used."""
    rows: int
    """Episodes that are sampled side by side."""
    group_size: int
    """Episodes of one task."""
    limits: AgentConfig
    optim: OptimConfig


def choose_pass(
    model: ModelConfig,
    adapter: AdapterConfig,
    workload: Workload,
    *,
    device: str,
    prompt_tokens: int,
    common_tokens: int,
    reference: bool,
) -> tuple[int, list[str]]:
    """Choose the tokens of a pass if the settings name none, and warn if the estimate exceeds the free memory.

    Args:
        device: cpu or cuda, whichever the run will use.
        prompt_tokens: tokens of the longest first prompt.
        common_tokens: tokens at the beginning of all first prompts that are the same.
        reference: whether a separate reference model is loaded.
    Returns:
        The tokens, and warnings. The one about memory has the estimate, the free memory, and the settings to lower in
        order until it fits. For a model of another kind, it says that nothing was estimated, and the pass has the
        device's default.
    """
    asked, limits = workload.optim.micro_batch_tokens, workload.limits
    usual = micro_batch_tokens(asked, device, ON_CPU_SHARED)
    try:
        shape = read_shape(model.model_path)
    except ValueError as fault:
        return usual, [str(fault)]
    demand = Demand(
        shape,
        adapter,
        _precision(model, device, shape.parameters),
        workload.rows,
        workload.group_size,
        prompt_tokens,
        common_tokens,
        replies=limits.max_turns or 1,
        max_new_tokens=limits.max_tokens,
        micro_batch_tokens=usual,
        gradient_checkpointing=model.gradient_checkpointing,
        reference=reference,
    )
    available = available_bytes(device)
    longest = min(prompt_tokens + limits.max_tokens, shape.positions)  # most rollouts have no second reply
    tokens = asked or pass_for_rows(longest, device, lambda size: demand.holds(size, available), ON_CPU_SHARED)
    short = short_pass(tokens, prompt_tokens, asked is not None)
    warning = warning_of(replace(demand, micro_batch_tokens=tokens), available)
    return tokens, [*filter(None, (warning, short))]


def training_holds(
    shape: ModelShape, lora_r: int | None, device: str, precision: PrecisionName, row_tokens: int, tokens: int
) -> bool:
    """Whether memory holds a pass of fine-tuning that computes nothing twice, beside weights that are loaded.

    Args:
        lora_r: rank of the trained adapter; None: all weights are trained.
        row_tokens: tokens of the longest row.
        tokens: tokens of the pass.
    """
    autocast = device == "cpu" and uses_bfloat16(precision, shape.parameters)
    kind: Precision = "autocast" if autocast else "float32" if device == "cpu" else "bfloat16"
    adapter = AdapterConfig(rank=lora_r or 1, dropout=0.05 if lora_r else 0)
    trained = shape.adapter_parameters(adapter) if lora_r else shape.parameters
    kept = shape.layers * _kept_by_layer(shape, adapter, kind, row_tokens)
    in_layer = 4 * (4 * shape.intermediate + 3 * shape.hidden)
    # copies of the matrices in bfloat16, and the output layer's gradient before it is added to the embeddings'
    matrices = 2 * shape.linear_parameters * autocast + (0 if lora_r else 4 * shape.vocab * shape.hidden)
    return tokens * (kept + in_layer) + matrices + 3 * 4 * trained + CPU_RUNTIME <= available_bytes(device)


def _precision(model: ModelConfig, device: str, parameters: int) -> Precision:
    if device == "cpu":
        return "autocast" if uses_bfloat16(model.precision, parameters) else "float32"
    return "4bit" if model.load_in_4bit else "bfloat16"


def warning_of(demand: Demand, available: int) -> str | None:
    """A warning if this demand exceeds `available` bytes; None if it fits."""
    expected = demand.estimate
    if expected.peak <= available:
        return None
    steps, fits = [], False
    for flag, asked in demand.lowered():
        fits = asked.estimate.peak <= available
        steps.append(f"{flag}: {_gib(asked.estimate.peak)}")
        if fits:
            break
    parts = ", ".join(f"{name.replace('_', ' ')} {_gib(size)}" for name, size in asdict(expected).items() if size)
    end = "." if fits else "; that is still too much: take a smaller model."
    return (
        f"this run may need {_gib(expected.peak)} of memory, {_gib(available)} are free; it may be killed or stop with "
        f"out of memory. Parts: {parts}. To lower, one on top of the other: {'; '.join(steps)}{end}"
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
