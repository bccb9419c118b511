"""Starts the model servers on GPUs of their own where `cluster.sampler_gpus` asks for that.

verl has such servers for the trainers of its experimental folder (experimental/one_step_off_policy/ray_trainer.py makes
`LLMServerManager` without workers), while its V0 trainer always names its workers, so that a server shares the GPU of
each. Everything else that these need is where V0 looks for it: the checkpoint engine of the config sends the weights,
to servers that never sleep.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any


def _serve_apart(module: ModuleType) -> None:
    upstream = module.LLMServerManager.create.__func__

    def create(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs["config"].actor_rollout_ref.rollout.nnodes:
            kwargs |= {"worker_group": None, "rollout_resource_pool": None}
        return upstream(cls, *args, **kwargs)

    module.LLMServerManager.create = classmethod(create)
