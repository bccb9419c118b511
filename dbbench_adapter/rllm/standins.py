"""The part of rLLM's agent and environment interfaces that ours stand on, for where rLLM is not installed.

Written after rllm 0.2.1.post1 (`rllm/agents/agent.py`, `rllm/environments/base/base_env.py`): the same names,
attributes and defaults, nothing of what engines and trainers do with them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Action:
    action: Any = None


@dataclass
class Step:
    """One model call: `reward`, `done` and `info` are filled by the engine."""

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


class BaseAgent(ABC):
    @abstractmethod
    def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any): ...

    @abstractmethod
    def update_from_model(self, response: str, **kwargs: Any) -> Action: ...

    @abstractmethod
    def reset(self): ...

    @property
    def chat_completions(self) -> list[dict[str, str]]:
        return []

    @property
    def trajectory(self) -> Trajectory:
        return Trajectory()

    def get_current_state(self) -> Step | None:
        return self.trajectory.steps[-1] if self.trajectory.steps else None


class BaseEnv(ABC):
    @property
    def idx(self) -> Any:
        """Its place in the batch; the engine sets it."""
        return getattr(self, "_idx", None)

    @idx.setter
    def idx(self, value: Any) -> None:
        self._idx = value

    @abstractmethod
    def reset(self) -> tuple[Any, dict[str, Any]]: ...

    @abstractmethod
    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]: ...

    def close(self) -> None:  # noqa: B027 (to be overridden where there is something to close)
        pass

    @staticmethod
    @abstractmethod
    def from_dict(info: dict[str, Any]) -> BaseEnv: ...

    @staticmethod
    def is_multithread_safe() -> bool:
        return True
