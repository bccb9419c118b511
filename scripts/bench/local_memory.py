"""Peak memory of local training, measured against its estimate: each point in a process of its own.

`python -m scripts.bench.local_memory SPEC` is that process. It loads a model, samples a group of replies, updates on as
many trajectories of random ids (a short update before makes AdamW's states), and answers one line of JSON. Resident
memory at its highest in each part, less what the imports took. Linux, CPU only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from scripts.bench.children import ROOT, python
from scripts.bench.local_models import config_of, save_random_model
from scripts.bench.report import Row
from sql_agent.local.config import AdapterConfig, LossConfig, OptimConfig
from sql_agent.local.memory import Estimate, estimate, give_back_freed_memory, shape_of

GROUP = 8
NEW_TOKENS = 16
"""Sampled in one reply; the prompt before it makes up the sequence."""
TOLERANCE = 0.15
"""How far the estimate may be off."""


@dataclass(frozen=True)
class Point:
    size: str
    rank: int
    gradient_checkpointing: bool = False
    micro_batch_tokens: int = 4096
    dropout: float = 0.05
    precision: Literal["float32", "bfloat16"] = "float32"
    sequence: int = 512
    """Tokens of a trajectory, half of them sampled."""

    @property
    def name(self) -> str:
        kept = ", checkpointing" if self.gradient_checkpointing else ""
        plain = "" if self.dropout else ", no dropout"
        how = f"{self.sequence} tokens each, {self.precision}, micro-batches of {self.micro_batch_tokens:,} tokens"
        return f"{self.size}, rank {self.rank}, {how}{kept}{plain}"


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
    Point("250M", 16, micro_batch_tokens=2048),
    Point("250M", 16, gradient_checkpointing=True, micro_batch_tokens=2048),
)


def measure(folder: Path, tokenizer: Path, points: Sequence[Point] = POINTS) -> list[Row]:
    """
    Args:
        folder: for the models.
        tokenizer: folder of a model whose tokenizer they get.
    Raises:
        RuntimeError: a process ended without an answer.
    """
    models = {point.size: folder / point.size for point in points}
    for size, path in models.items():
        save_random_model(path, size, tokenizer)
    rows = []
    for point in points:
        rows += rows_of(point, estimate_of(point), _measured(point, models[point.size]))
    return rows


def estimate_of(point: Point) -> Estimate:
    return estimate(
        shape_of(config_of(point.size)),
        AdapterConfig(r=point.rank, dropout=point.dropout),
        precision="autocast" if point.precision == "bfloat16" else "float32",
        group_size=GROUP,
        sequence_tokens=point.sequence,
        sampled_tokens=point.sequence // 2,
        micro_batch_tokens=point.micro_batch_tokens,
        gradient_checkpointing=point.gradient_checkpointing,
        reference=False,
    )


def rows_of(point: Point, expected: Estimate, measured: Mapping[str, int]) -> list[Row]:
    """
    Args:
        measured: bytes, `sampling` and `update`.
    """
    off = expected.at_update / measured["update"] - 1
    return [
        Row(f"{point.name}: update, estimate off by", 100 * abs(off), "%", 100 * TOLERANCE, limit=_parts(expected)),
        Row("... estimated", expected.at_update / 2**20, "MiB"),
        Row("... measured", measured["update"] / 2**20, "MiB"),
        Row("... sampling, estimated", expected.at_sampling / 2**20, "MiB"),
        Row("... sampling, measured", measured["sampling"] / 2**20, "MiB"),
    ]


def _parts(expected: Estimate) -> str:
    return ", ".join(f"{name} {size / 2**20:,.0f}" for name, size in asdict(expected).items() if size)


def _measured(point: Point, model: Path) -> dict[str, int]:
    spec = json.dumps({"point": asdict(point), "model": str(model)})
    command = python("scripts.bench.local_memory", spec)
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    if done.returncode:
        raise RuntimeError(f"{point.name}: the process ended with {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    spec = json.loads(sys.argv[1])
    point = Point(**spec["point"])
    import torch

    from sql_agent.local.datatypes import Sampling
    from sql_agent.local.learner import Learner
    from sql_agent.local.policy import load_policy
    from sql_agent.rollouts.stitch import Trajectory

    give_back_freed_memory()
    torch.manual_seed(0)
    baseline = _new_peak()
    policy = load_policy(
        spec["model"],
        adapter=AdapterConfig(r=point.rank, dropout=point.dropout),
        device="cpu",
        gradient_checkpointing=point.gradient_checkpointing,
        precision=point.precision,
    )
    ids = torch.randint(3, 1000, (GROUP, point.sequence)).tolist()
    _new_peak()
    policy.generate(
        [row[: point.sequence - NEW_TOKENS] for row in ids],
        [Sampling(top_p=0.95)] * GROUP,
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
    )
    sampling = _peak() - baseline
    said = point.sequence // 2
    trajectories = [Trajectory(tuple(row[:-said]), tuple(row[-said:]), (1,) * said, (-7.0,) * said, 1) for row in ids]
    learner = Learner(policy, OptimConfig(micro_batch_tokens=point.micro_batch_tokens), LossConfig())
    learner.learn([Trajectory((5,), (6,), (1,), (-7.0,), 1)] * 2, [1.0, -1.0], temperature=1.0)
    _new_peak()
    learner.learn(trajectories, [1.0, -1.0] * (GROUP // 2), temperature=1.0)
    print(json.dumps({"sampling": sampling, "update": _peak() - baseline}))


def _new_peak() -> int:
    """Forget the highest resident memory so far (proc(5), clear_refs); returns what is resident now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:  # not ru_maxrss: a child inherits its parent's
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM:")))


if __name__ == "__main__":
    main()
