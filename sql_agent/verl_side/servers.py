"""What this project's driver replaces of verl's dealings with its model servers: the weight sync and the load balancer.

Open calls end before a weight sync (`actor_rollout_ref.rollout.checkpoint_manager_class`). The trainer sends new
weights when its rollouts have ended, but a call of a late rollout or of a disconnected client may still be open. vLLM
then keeps its prefix cache and returns False. verl ignores that, and the next step would sample on keys and values of
the old weights. Here every open call is aborted and the cache emptied as soon as a batch of rollouts is complete, and a
later call waits until its server has the new weights. With `trainer.max_off_policy_steps` rollouts go on beside the
update: calls are aborted when the new weights are there, and the LLM proxy asks them again. It is told for how long
they are held, since no deadline of a rollout counts that. `sql_agent.verl_side.plugin.model_server` checks vLLM's
return value. Source: verl checkpoint_engine/base.py, `CheckpointEngineManager`; trainer/ppo/ray_trainer.py calls the
two methods in turn.

In place of the load balancer (`rollout.router_config_path`) there is a list of the servers' addresses. verl's serves
its token-level client, which is not used here. It would be one more Ray actor, which needs 16 s of CPU to import verl
and vLLM before it can receive the servers' handles.
"""

from __future__ import annotations

from typing import Any

import ray
from verl.checkpoint_engine import CheckpointEngineManager
from verl.utils.ray_utils import auto_await

from sql_agent.model_address.weight_sync_pause import paused_for_weight_sync
from sql_agent.source.run_context import current


class DrainedWeightSync(CheckpointEngineManager):
    @auto_await
    async def sleep_replicas(self) -> None:
        """Abort open calls and hold back new ones, then free the servers' memory if that is configured."""
        if not current().cfg.trainer.max_off_policy_steps:
            await self.abort_replicas()
            await super().sleep_replicas()

    @auto_await
    async def update_weights(self, global_steps: int | None = None) -> dict[str, Any]:
        """Send the weights, then let the servers answer calls again."""
        run, lag = current(), current().cfg.trainer.max_off_policy_steps
        async with paused_for_weight_sync(run.proxy_url if lag else None):
            if lag:
                await self.abort_replicas()
            metrics = await super().update_weights(global_steps)  # pyright: ignore[reportArgumentType]
            await self.resume_generation_replicas()
        return metrics


class ServerList:
    def __init__(self, servers: dict[str, Any]) -> None:
        self.addresses = sorted(servers)


Router: Any = ray.remote(ServerList)
# verl (workers/rollout/router.py) creates the actor class that it is given with `.remote(servers, config)`.
Router.remote = lambda servers, _config: ServerList(servers)
