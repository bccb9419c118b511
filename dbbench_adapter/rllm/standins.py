"""Copies the part of rLLM's agent and environment classes that ours use, for machines without rLLM.

The names, attributes and defaults are those of rllm 0.2.1.post1 (`rllm/agents/agent.py`,
`rllm/environments/base/base_env.py`). The methods that a subclass has to write are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Action:
    action: Any = None


@dataclass
class Step:
    """One model call; the engine fills `reward`, `done` and `info`."""

    chat_completions: list[dict[str, str]] = field(default_factory=list)
    observation: Any = None
    action: Any = None
    model_response: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    reward: float = 0.0
    done: bool = False


@dataclass
class Trajectory:
    task: Any = None
    steps: list[Step] = field(default_factory=list)
    reward: float = 0.0


class BaseAgent:
    @property
    def trajectory(self) -> Trajectory:
        """The trajectory so far; rLLM's property has no setter either."""
        return Trajectory()

    def get_current_state(self) -> Step | None:
        return self.trajectory.steps[-1] if self.trajectory.steps else None


class BaseEnv:
    idx: Any = None
    """The task's place in the batch; the engine sets it."""
