"""Exports rLLM's base classes if rLLM is installed, and our stand-ins if it is not.

rLLM removed agents and environments after 0.2.1.post1 (on 2026-04-30), so a newer one counts as not installed. The
stand-ins have the names, attributes and defaults of `rllm/agents/agent.py` and `rllm/environments/base/base_env.py`, as
far as our classes use them. The methods that a subclass has to write are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

RLLM_VERSION = "0.2.1.post1"


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


if not TYPE_CHECKING:
    try:
        from rllm.agents import agent
        from rllm.environments.base.base_env import BaseEnv

        Action, BaseAgent, Step, Trajectory = agent.Action, agent.BaseAgent, agent.Step, agent.Trajectory
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "rllm":
            raise  # rLLM is installed, but a package that it needs is not


class RllmMissingError(ImportError):
    """The caller needs an rLLM with agents and environments, which is not installed."""


def require_rllm() -> None:
    """Check that rLLM is installed; the error says how to install it.

    Raises:
        RllmMissingError: rLLM is not installed, or has no agents and environments.
    """
    if not BaseEnv.__module__.startswith("rllm."):
        raise RllmMissingError(
            f"this needs rLLM {RLLM_VERSION} (`rllm.environments.base.base_env`), which is not installed here; in an "
            f"environment of its own: pip install 'rllm @ git+https://github.com/rllm-org/rllm@v{RLLM_VERSION}' (it is "
            "on no package index, and newer ones have no agents and environments)"
        )
