"""Measures peak memory of local training against its estimate, each point in its own process.

The process loads a model, samples a group of replies and updates on as many trajectories of random ids (a short update
before makes AdamW's states). It measures the highest resident memory in each part, less that of the imports. It runs on
Linux, on the CPU only.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from bench.parts.report import Row
from sql_agent.local.memory import Demand, Estimate, give_back_freed_memory
from sql_agent.model_shape import shape_of
from sql_agent.settings.local import AdapterConfig, LossConfig, OptimConfig

# Names are approximate numbers of parameters. The output layer is tied to the embedding. 135M is SmolLM2's shape.
SIZES: dict[str, dict[str, Any]] = {
    "1M": {"model_type": "qwen3", "hidden_size": 128, "layers": 4, "heads": 4, "kv_heads": 2, "vocab_size": 1024},
    "60M": {"model_type": "qwen2", "hidden_size": 512, "layers": 16, "heads": 8, "kv_heads": 2, "vocab_size": 32000},
    "135M": {"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "layers": 30, "heads": 9,
             "kv_heads": 3, "vocab_size": 49152},
    "250M": {"model_type": "qwen3", "hidden_size": 1024, "layers": 16, "heads": 16, "kv_heads": 8, "vocab_size": 32000},
}  # fmt: skip

# All logits are multiplied by this; their standard deviation is 0.3 to 0.6 without it. The guesses are then as sure as
# a trained model's: a flat distribution over all tokens would make top-p work harder.
SURENESS = 12.0
GROUP = 8
# Tokens sampled in one reply; the prompt before it fills the rest of the sequence.
NEW_TOKENS = 16
# The estimate may be off by this share.
TOLERANCE = 0.15


@dataclass(frozen=True)
class Point:
    size: str
    rank: int
    gradient_checkpointing: bool = False
    micro_batch_tokens: int = 4096
    dropout: float = 0.05
    precision: Literal["float32", "bfloat16"] = "float32"
    sequence: int = 512
    """Tokens of a trajectory."""
    shared: int = 0
    """Tokens of the prompt, if all trajectories have the same; a pass computes it once. 0: half of each trajectory is a
    prompt of its own."""

    @property
    def sampled(self) -> int:
        return self.sequence - (self.shared or self.sequence // 2)

    @property
    def name(self) -> str:
        kept = ", checkpointing" if self.gradient_checkpointing else ""
        plain = "" if self.dropout else ", no dropout"
        each = f"{self.sequence} tokens each" + (f", {self.shared} of them shared" if self.shared else "")
        how = f"{each}, {self.precision}, micro-batches of {self.micro_batch_tokens:,} tokens"
        return f"{self.size}, rank {self.rank}, {how}{kept}{plain}"

    @property
    def adapter(self) -> AdapterConfig:
        return AdapterConfig(rank=self.rank, dropout=self.dropout)


POINTS = (
    Point("1M", 8),
    Point("60M", 8),
    Point("60M", 64),
    Point("60M", 16, dropout=0.0),
    Point("60M", 16, gradient_checkpointing=True),
    Point("60M", 16, micro_batch_tokens=1024),
    Point("135M", 16, micro_batch_tokens=1024, sequence=768),
    Point("135M", 16, micro_batch_tokens=1024, sequence=768, precision="bfloat16"),
    Point("135M", 16, micro_batch_tokens=1024, sequence=768, precision="bfloat16", gradient_checkpointing=True),
    Point("135M", 16, micro_batch_tokens=2048, sequence=768, shared=384),
    Point("135M", 16, micro_batch_tokens=2048, sequence=768, shared=384, precision="bfloat16"),
    Point("135M", 16, micro_batch_tokens=2048, sequence=768, shared=640),
    Point("135M", 16, True, micro_batch_tokens=2048, sequence=768, shared=640, precision="bfloat16"),
    Point("250M", 16, micro_batch_tokens=2048),
    Point("250M", 16, gradient_checkpointing=True, micro_batch_tokens=2048),
)


def measure(model: Path, folder: Path) -> list[Row]:
    """Measure every point.

    Args:
        model: the model whose tokenizer the random ones get.
        folder: the folder for the random models.
    """
    models = {size: save_random_model(folder / size, size, model) for size in {point.size for point in POINTS}}
    rows = []
    for point in POINTS:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            rows += rows_of(point, estimate_of(point), process.submit(peaks, point, models[point.size]).result())
    return rows


def config_of(size: str) -> dict[str, Any]:
    own = SIZES[size]
    return {
        "model_type": own["model_type"],
        "hidden_size": own["hidden_size"],
        "intermediate_size": own.get("intermediate_size", 3 * own["hidden_size"]),
        "num_hidden_layers": own["layers"],
        "num_attention_heads": own["heads"],
        "num_key_value_heads": own["kv_heads"],
        "head_dim": own["hidden_size"] // own["heads"],
        "vocab_size": own["vocab_size"],
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    }


def save_random_model(folder: Path, size: str, tokenizer: Path) -> Path:
    """Write a causal LM in float32, always the same, with another model's tokenizer, which has fewer ids."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config_of(size)), trust_remote_code=False)
    torch.nn.init.constant_(model.model.norm.weight, SURENESS)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False).save_pretrained(folder)
    return folder


def estimate_of(point: Point) -> Estimate:
    return Demand(
        shape_of(config_of(point.size)),
        point.adapter,
        "autocast" if point.precision == "bfloat16" else "float32",
        rows=GROUP,
        group_size=GROUP if point.shared else 1,
        prompt_tokens=point.sequence - point.sampled,
        common_tokens=0,
        replies=1,
        max_new_tokens=point.sampled,
        micro_batch_tokens=point.micro_batch_tokens,
        gradient_checkpointing=point.gradient_checkpointing,
        reference=False,
    ).estimate_of(point.sequence)


def rows_of(point: Point, expected: Estimate, measured: Mapping[str, int]) -> list[Row]:
    """Compare the measured bytes with the estimate.

    Args:
        measured: the bytes of `sampling` and `update`.
    """
    off = expected.at_update / measured["update"] - 1
    parts = ", ".join(f"{name} {size / 2**20:,.0f}" for name, size in asdict(expected).items() if size)
    return [
        Row(f"{point.name}: update, estimate off by", 100 * abs(off), "%", 100 * TOLERANCE, limit=parts),
        Row("... estimated", expected.at_update / 2**20, "MiB"),
        Row("... measured", measured["update"] / 2**20, "MiB"),
        Row("... sampling, estimated", expected.at_sampling / 2**20, "MiB"),
        Row("... sampling, measured", measured["sampling"] / 2**20, "MiB"),
    ]


def peaks(point: Point, model: Path) -> dict[str, int]:
    """Sample and update in this process; return the highest resident memory of each, in bytes."""
    import torch

    from sql_agent.credit.row import Row as TrainedRow
    from sql_agent.local.datatypes import Sampling
    from sql_agent.local.learner import Learner
    from sql_agent.local.policy import load_policy

    give_back_freed_memory()
    torch.manual_seed(0)
    baseline = _new_peak()
    policy = load_policy(
        model,
        adapter=point.adapter,
        device="cpu",
        gradient_checkpointing=point.gradient_checkpointing,
        precision=point.precision,
    )
    first, *others = torch.randint(3, 1000, (GROUP, point.sequence)).tolist()
    ids = [first, *(first[: point.shared] + row[point.shared :] for row in others)]
    _new_peak()
    policy.generate(
        [row[: point.sequence - NEW_TOKENS] for row in ids],
        [Sampling(top_p=0.95)] * GROUP,
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
    )
    sampling = _peak() - baseline
    said, shown = point.sampled, point.sequence - point.sampled
    mask, log_probs = (0,) * shown + (1,) * said, (0.0,) * shown + (-7.0,) * said
    rows = [
        TrainedRow(tuple(row), mask, log_probs, prompt_tokens=shown, num_turns=1).credited([credit])
        for row, credit in zip(ids, [1.0, -1.0] * (GROUP // 2), strict=True)
    ]
    learner = Learner(policy, OptimConfig(micro_batch_tokens=point.micro_batch_tokens), LossConfig())
    small = TrainedRow((5, 6), (0, 1), (0.0, -7.0), prompt_tokens=1, num_turns=1)
    learner.learn([small.credited([1.0]), small.credited([-1.0])], temperature=1.0)
    _new_peak()
    learner.learn(rows, temperature=1.0)
    return {"sampling": sampling, "update": _peak() - baseline}


def _new_peak() -> int:
    """Reset the highest resident memory (proc(5), clear_refs); return the current one, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:  # ru_maxrss would not do, since a child inherits its parent's
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM:")))
