"""Plays a task of the environment as agent-lightning's agent: its turns and its end become the spans of the rollout.

Leaves out how many rollouts a process plays at once (`sql_agent.lightning.runner`).
"""

from __future__ import annotations

import asyncio
import functools
import os
from contextlib import suppress
from typing import Any

from agentgrpo.agl_without_litellm import agl
from dbbench_adapter.datatypes import Score
from dbbench_adapter.engines import BackendUnavailable
from sql_agent.datatypes import RolloutRecord
from sql_agent.environments.base import Environment, Taskset, make_taskset
from sql_agent.lightning.spans import outcome_span, turn_span
from sql_agent.model_address.request_guard import RUN_TOKEN
from sql_agent.model_address.weight_sync_pause import ask_held
from sql_agent.model_servers.turns import TURN
from sql_agent.play.served import run_rollout
from sql_agent.reward_functions.load import load_functions
from sql_agent.rewards import NO_JUDGE
from sql_agent.settings.train import TrainConfig
from sql_agent.source.datatypes import Rollout
from sql_agent.source.scoring import Rewarder
from sql_agent.user_agents.play import play_agent, policy_of
from sql_agent.user_agents.tasks import AgentTasks

RETRY_PAUSE_S = 3.0
"""Pause before a rollout goes back into the queue after an infrastructure failure; a server may be restarting."""


class RolloutLostError(RuntimeError):
    """Says that the infrastructure failed during a rollout; the store gives the rollout another attempt."""


class SqlLitAgent(agl.LitAgent[dict[str, Any]]):
    """Plays one task of the environment against the endpoint that the resources name, and reports reward and reason.

    The input is the task's `to_dict()`. The metadata names the served model and, for validation, the temperature.
    """

    def __init__(self, cfg: TrainConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.rewarder = Rewarder(
            cfg.rollout,
            cfg.reward_model,
            load_functions(cfg.rollout, cfg.judge, cfg.run_dir),
            threads=cfg.rollout.runner_concurrency,
        )
        self._entering: asyncio.Task[Taskset] | None = None

    @functools.cached_property
    def made(self) -> Taskset:
        """The environment of this process before it is entered, which may fail."""
        return make_taskset(self.cfg.environment)

    async def environment(self) -> Taskset:
        """Return the environment, which the first rollout of the process enters.

        Rollouts that start together share one try.

        Raises:
            BackendUnavailable: this try failed; the next rollout tries again.
        """
        if self._entering is None or (self._entering.done() and self._entering.exception() is not None):
            self._entering = asyncio.create_task(asyncio.to_thread(self.made.__enter__))
        return await asyncio.shield(self._entering)

    async def aclose(self) -> None:
        await self.rewarder.aclose()
        if self._entering is not None:
            with suppress(BackendUnavailable):  # a server may have started meanwhile
                (await self._entering).__exit__(None, None, None)
            self._entering = None
            del self.made

    async def rollout_async(self, task: dict[str, Any], resources: Any, rollout: Any) -> list[Any]:
        try:
            return await self._play(task, resources, rollout)
        except asyncio.CancelledError:  # agent-lightning would report it as success
            raise RolloutLostError("it was cancelled, or its runner was told to end") from None

    async def _play(self, task: dict[str, Any], resources: Any, rollout: Any) -> list[Any]:
        try:
            environment = await self.environment()
        except BackendUnavailable as failure:
            asked, lost = self.made.task(task), Score(None, "db_unavailable")
            record = RolloutRecord(asked.id, asked.kind, "db_unavailable", lost, error=str(failure))
            turns = []
        else:
            record, turns = await self._record(environment, task, resources, rollout)
        return [*turns, await self._ended(record, rollout)]

    async def _record(
        self, environment: Taskset, task: dict[str, Any], resources: Any, rollout: Any
    ) -> tuple[RolloutRecord, list[Any]]:
        """Play the task; returns the spans of its turns too, if the LLM proxy does not write them."""
        metadata = rollout.metadata or {}
        llm = resources["main_llm"]
        agent = self.cfg.agent
        if "temperature" in metadata:
            agent = agent.model_copy(update={"temperature": metadata["temperature"]})
        ids = rollout.rollout_id, rollout.attempt.attempt_id
        held_s = functools.partial(ask_held, llm.endpoint) if self.cfg.trainer.max_off_policy_steps else None
        if isinstance(environment, AgentTasks):
            model, seed = metadata.get("model", llm.model), metadata.get("seed")
            holds = self.cfg.trainer.max_off_policy_steps
            policy = policy_of(llm.get_base_url(None, None), model, agent, rollout, seed=seed, holds=holds)
            alone = self.rewarder.rewards_alone
            asked = environment.task(task)
            return await play_agent(environment.agent, asked, policy, agent, others_reward=alone, held_s=held_s), []
        turns: list[Any] = []

        def keep_turn(reply: Any) -> None:
            turns.append(turn_span(reply.model_extra[TURN], *ids, len(turns) + 1))

        assert isinstance(environment, Environment)
        record = await run_rollout(
            environment.task(task),
            environment=environment,
            base_url=metadata.get("base_url") or llm.get_base_url(*ids),
            model=metadata.get("model", llm.model),
            config=agent,
            api_key=os.environ.get(RUN_TOKEN) or "-",
            # The ids are in the answer, so this process writes the spans. The server tells two rollouts apart by `user`
            # that have the same text in different tokens.
            extra_body={"user": rollout.attempt.attempt_id, "return_token_ids": True, "logprobs": True},
            on_reply=keep_turn,
            seed=metadata.get("seed"),
            max_response_tokens=self.cfg.data.max_response_tokens,
            held_s=held_s,
        )
        return record, turns

    async def _ended(self, record: RolloutRecord, rollout: Any) -> Any:
        """The last span of a rollout, with its reward.

        Raises:
            RolloutLostError: the rollout is to be played again.
        """
        last_attempt = rollout.attempt.sequence_id >= self.cfg.rollout.max_attempts
        # a second attempt after a deadline would end after the step's deadline
        ended = record.stop_reason in ("timeout", "environment_error")  # code that raised or hung will do so again
        final = ended or record.score.reason == NO_JUDGE or last_attempt
        if record.score.value is None and not final:
            await asyncio.sleep(RETRY_PAUSE_S)
            raise RolloutLostError(f"{record.score.reason}: {record.error}")
        played = Rollout("", rollout.input, played=record, one_conversation=self.cfg.env.agent is None)
        await self.rewarder(played)
        if record.comparison is not None:
            self.runner.get_store().keep_comparison(rollout.attempt, record.comparison)
        return outcome_span(played, rollout.rollout_id, rollout.attempt.attempt_id)
