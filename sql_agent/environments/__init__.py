"""What a policy can be trained on, by name. Adding one is a module and a line here; importing this is instant."""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sql_agent.config import TrainConfig
    from sql_agent.environments.base import Environment

ENVIRONMENTS = {
    "dbbench": "sql_agent.environments.dbbench:from_config",
    "medical": "sql_agent.environments.medical:from_config",
}
"""Keyed by the config's `env.type`: the function that makes the environment of a run from its settings."""


def make_environment(cfg: TrainConfig) -> Environment:
    return pkgutil.resolve_name(ENVIRONMENTS[cfg.env.type])(cfg)
