"""Says what every peer gets alike: the tasks, the policy, the sizes of a step, and the folder for its files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

# Kind of task and reward of `make demo` (sql_agent/configs/demo.yaml).
SKILL, REWARD = "order_by_single_column", "agent_peft"
TRAIN_TASKS, SEED = 1024, 0


@dataclass(frozen=True)
class Sizes:
    """What a step of every peer consists of, and how long a peer is watched."""

    groups: int
    group_size: int
    reply_tokens: int
    rollout_tokens: int
    """Everything after the first prompt: replies and tool results."""
    prompt_tokens: int
    """Room for a first prompt; no task has a longer one."""
    learning_rate: float
    precision: str
    micro_batch_rows: int
    """Rows of a forward and backward pass of a peer that counts rows."""
    micro_batch_tokens: int
    """The same of a peer that counts tokens."""
    steps: int
    seconds: float
    """A peer is watched for so many steps and for so many seconds, whichever is later."""
    held_out: int
    """Held-out tasks; 0: success is not measured, and no weights are saved."""
    limit_s: float
    """A peer that has not done its steps by then has failed."""

    @property
    def rollouts(self) -> int:
        return self.groups * self.group_size


SMALL = Sizes(8, 8, 128, 256, 192, 5e-4, "float32", 64, 16384, steps=8, seconds=120, held_out=96, limit_s=420)
# Two steps of a model that was not fine-tuned solve no held-out task, so none is played.
PRETRAINED = Sizes(4, 8, 128, 128, 640, 3e-5, "bfloat16", 8, 4096, steps=2, seconds=0, held_out=0, limit_s=1800)
# Four rows of TRL's, since eight of this length, all of whose activations it keeps, come close to 24 GiB.
LONG_PROMPTS = replace(PRETRAINED, prompt_tokens=1536, micro_batch_rows=4)


@dataclass(frozen=True)
class Order:
    """What the processes of one peer read from a file."""

    model: Path
    tasks: Path
    """Tasks to train on, as DB-Bench's JSON lines."""
    held_out_tasks: Path
    folder: Path
    """For the files of this peer."""
    sizes: Sizes

    @property
    def weights(self) -> Path:
        return self.folder / "weights"

    def write(self) -> Path:
        file = self.folder / "order.json"
        file.write_text(json.dumps(asdict(self), default=str))
        return file

    @classmethod
    def read(cls, file: Path) -> Self:
        fields = json.loads(file.read_text())
        paths = {name: Path(fields[name]) for name in ("model", "tasks", "held_out_tasks", "folder")}
        return cls(**paths, sizes=Sizes(**fields["sizes"]))


def append_lines(file: Path, lines: Iterable[dict[str, Any]]) -> None:
    """In one write, since a reader counts whole lines."""
    with file.open("a") as out:
        out.write("".join(json.dumps(line) + "\n" for line in lines))


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The whole lines so far; none if the file is not there yet."""
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
