"""Exports rLLM's base classes if rLLM is installed, and our stand-ins if it is not.

rLLM removed agents and environments after 0.2.1.post1 (on 2026-04-30), so a newer one counts as not installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

RLLM_VERSION = "0.2.1.post1"

if TYPE_CHECKING:
    from dbbench_adapter.rllm.standins import Action, BaseAgent, BaseEnv, Step, Trajectory
else:
    try:
        from rllm.agents.agent import Action, BaseAgent, Step, Trajectory
        from rllm.environments.base.base_env import BaseEnv
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "rllm":
            raise  # rLLM is installed, but a package that it needs is not
        from dbbench_adapter.rllm.standins import Action, BaseAgent, BaseEnv, Step, Trajectory

__all__ = ["Action", "BaseAgent", "BaseEnv", "RllmMissingError", "Step", "Trajectory", "require_rllm"]


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
