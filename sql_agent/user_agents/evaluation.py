"""Plays a user's own agent against a running model server, without a run, for `sql_agent.evaluate`.

The agent reaches the model as in a run, under a signed address of the LLM proxy's route for rollouts, which this
process serves on loopback. So it samples as in a run, and its record is the same. The turns are not saved.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

from starlette.applications import Starlette

from agentgrpo.agl_without_litellm import agl
from dbbench_adapter.datatypes import Score
from sql_agent.datatypes import OWN_REWARD, RolloutRecord
from sql_agent.environments.rows import RowTask
from sql_agent.model_address.request_guard import give_token
from sql_agent.model_address.rollout_route import ProxyRequestGuard, RolloutRoute
from sql_agent.oracle import serve
from sql_agent.reward_functions import RewardRecord
from sql_agent.reward_functions.ask import RewardFunctions
from sql_agent.rewards import NO_JUDGE, summed_reward
from sql_agent.settings.groups import AgentConfig
from sql_agent.user_agents.datatypes import UserAgent
from sql_agent.user_agents.play import play_agent, policy_of

SERVER = "policy-0"


@contextmanager
def policy_served(base_url: str, model: str, api_key: str, timeout_s: float) -> Iterator[str]:
    """Serve the route; the address is the part before the signature.

    Args:
        base_url: address of the model server, up to and including `/v1`.
        timeout_s: limit of one model call.
    """
    give_token(shared=False, own_store=False)
    RolloutRoute.servers, RolloutRoute.served_model = {SERVER: base_url.rstrip("/")}, model
    RolloutRoute.headers, RolloutRoute.timeout_s = {"Authorization": f"Bearer {api_key}"}, timeout_s

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        yield
        await route.close()

    route = RolloutRoute(Starlette(lifespan=lifespan))
    with serve(ProxyRequestGuard(route)) as address:
        yield address.removesuffix("/v1")


async def evaluate_rollout(
    task: RowTask,
    *,
    agent: UserAgent,
    address: str,
    limits: AgentConfig,
    functions: RewardFunctions,
    weights: Mapping[str, float],
) -> RolloutRecord:
    """Play one rollout; its score is the reward, under `OWN_REWARD`: the agent's own, or the functions' weighted sum.

    Args:
        address: the one that `policy_served` yields.
        weights: weights of the functions, by the name under which each was given.
    """
    started = time.time()
    attempt = agl.Attempt(
        rollout_id=secrets.token_hex(8), attempt_id="1", sequence_id=1, start_time=started, status="running"
    )
    rollout = agl.AttemptedRollout(
        rollout_id=attempt.rollout_id, input=task.row, start_time=started, mode="test", attempt=attempt
    )
    policy = policy_of(address, SERVER, limits, rollout, seed=None)
    record = await play_agent(agent, task, policy, limits, others_reward=bool(functions))
    judged = record.score.value is not None or record.score.reason == NO_JUDGE
    if not functions or not judged:  # a function is not asked about a lost rollout, as in a run
        return record
    earned = summed_reward(record, weights, await functions.ask(RewardRecord.of(record, task.to_dict())))
    errors = "\n".join(filter(None, [record.error, earned.error])) or None
    score = Score(earned.value, earned.reason if earned.value is None else OWN_REWARD)
    return dataclasses.replace(record, score=score, error=errors)
