"""The names, attributes and defaults of rLLM 0.2.1.post1's `rllm/agents/agent.py`, as far as the bridge uses them."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Action:
    action: Any = None


@dataclass
class Step:
    chat_completions: list[dict[str, str]] = field(default_factory=list)
    observation: Any = None
    action: Any = None
    model_response: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    reward: float = 0.0
    done: bool = False


@dataclass
class Trajectory:
    steps: list[Step] = field(default_factory=list)
    reward: float = 0.0


class BaseAgent:
    @property
    def trajectory(self):
        """It has no setter in rLLM either."""
        return Trajectory()

    def get_current_state(self):
        return self.trajectory.steps[-1] if self.trajectory.steps else None
