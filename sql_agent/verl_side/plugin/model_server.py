"""Adds checks to verl's model server (workers/rollout/vllm_rollout/vllm_async_server.py, `vLLMHttpServer`).

All our changes are in place before it serves, vLLM's prefix cache is empty when it has new weights, connections that
have not shown the token are limited, and it is known with which weights a reply was sampled.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from sql_agent import upstream_patches as patches

weights_version = 0
"""The train step whose update made the weights that this process samples with; 0: the initial ones."""


class StaleCacheError(RuntimeError):
    """vLLM keeps keys and values of the old weights."""


def _check_before_serving(module: ModuleType) -> None:
    upstream = module.vLLMHttpServer.run_server

    async def run_server(self: Any, args: Any) -> None:
        # A user has it for `vllm serve`; vLLM would take it in place of the size that the run's memory is planned with
        # (platforms/cpu.py, `check_and_update_config`).
        os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)
        await upstream(self, args)  # imports the modules that are checked
        patches.require("server")

    module.vLLMHttpServer.run_server = run_server


def _look_at_answer(module: ModuleType) -> None:
    upstream = module.vLLMHttpServer.clear_kv_cache

    async def clear_kv_cache(self: Any) -> None:
        if self.node_rank == 0 and not await self.engine.reset_prefix_cache(reset_connector=True):
            raise StaleCacheError(
                "vLLM could not empty its prefix cache after a weight sync, since calls are in flight: the next "
                "rollouts would be sampled on keys and values of the old weights. Give the same command again to go on "
                "from the newest checkpoint; if it stops here again, report logs/driver.log: "
                "sql_agent/verl_side/weight_sync.py has left a call in flight"
            )
        await upstream(self)

    module.vLLMHttpServer.clear_kv_cache = clear_kv_cache


def _know_the_weights(module: ModuleType) -> None:
    upstream = module.vLLMHttpServer.set_global_steps

    async def set_global_steps(self: Any, global_steps: int) -> None:
        # Ray copies this class with the globals of its functions; `exact_prompts` reads those of the module.
        from sql_agent.verl_side.plugin import model_server

        await upstream(self, global_steps)
        model_server.weights_version = global_steps

    module.vLLMHttpServer.set_global_steps = set_global_steps


def _limit_connections(module: ModuleType) -> None:
    # as `agentgrpo.http_protocol.guard_upstreams_servers`, which cannot be imported before uvicorn is
    module.HTTP_PROTOCOLS["auto"] = "agentgrpo.http_protocol:GuardedHttpProtocol"
