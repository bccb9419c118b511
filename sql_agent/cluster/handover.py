"""Hands the environment of the command, secrets among it, to the run's actors on all nodes.

Ray writes `runtime_env.env_vars` in clear into a log on every node, which every user of that node can read. So a named
actor keeps the environment, and whoever needs it asks; Ray lets nobody in without the cluster's token.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from typing import Any

from agentgrpo.processes import RUN_ID

NAME = "secrets"
ANSWER_S = 60.0
_SECRETS = ("_TOKEN", "_API_KEY", "_PASSWORD")
# What belongs to one node or one process.
_THEIR_OWN = ("RAY_", "CUDA_VISIBLE_DEVICES", "TMPDIR", "PYTHONPATH", "LD_PRELOAD")


class Secrets:
    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment

    def environment(self) -> dict[str, str]:
        return self._environment


def keep() -> Any:
    """Start the actor on this node, which is the driver's, and return its handle; it ends with the driver."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor: Any = ray.remote(Secrets)
    return actor.options(name=NAME, num_cpus=0, scheduling_strategy=here).remote(handed_over(os.environ))


def handed_over(environment: Mapping[str, str]) -> dict[str, str]:
    """What of the command's environment is meant for other nodes and processes, too."""
    return {name: value for name, value in environment.items() if not name.startswith(_THEIR_OWN)}


def take() -> None:
    """Fill this actor's environment from that of the command; but for secrets, the node's own values stay.

    Raises:
        ValueError: the run has ended; Ray finds no such actor.
        ray.exceptions.GetTimeoutError: the driver's node does not answer.
    """
    import ray

    given: Any = ray.get(ray.get_actor(NAME).environment.remote(), timeout=ANSWER_S)
    fill(os.environ, given)


def fill(own: MutableMapping[str, str], given: Mapping[str, str]) -> None:
    for name, value in given.items():
        if name == RUN_ID or name.endswith(_SECRETS):  # the shell of `ray start` may have had older ones
            own[name] = value
        else:
            own.setdefault(name, value)
