"""Plays tasks with the instructions that the resources hold, against a policy that is served already.

Token ids and log-probs are not asked for, so any OpenAI-compatible endpoint serves: nothing is trained on.
"""

from __future__ import annotations

import os
from typing import Any

from sql_agent.datatypes import RolloutRecord
from sql_agent.environments.base import Environment, Taskset
from sql_agent.lightning.agent import SqlLitAgent
from sql_agent.play.served import run_rollout
from sql_agent.settings.train import TrainConfig

# The resource that a rollout reads, an `agl.PromptTemplate`. Its text is played as it stands: it has no placeholders,
# since the environment writes question, tables and schema behind it.
INSTRUCTIONS = "instructions"
POLICY_KEY = "POLICY_API_KEY"


class InstructedLitAgent(SqlLitAgent):
    """Plays a task as `SqlLitAgent` does; validation is greedy, and a rollout has one attempt.

    A lost rollout then keeps its reason. Failed calls of the policy are repeated by its client.
    """

    def __init__(self, cfg: TrainConfig) -> None:
        once = cfg.rollout.model_copy(update={"max_attempts": 1})
        super().__init__(cfg.model_copy(update={"rollout": once}))

    async def _record(
        self, environment: Taskset, task: dict[str, Any], resources: Any, rollout: Any
    ) -> tuple[RolloutRecord, list[Any]]:
        limits = self.cfg.agent
        if rollout.mode == "val":
            limits = limits.model_copy(update={"temperature": 0.0})
        assert self.cfg.base_url is not None and isinstance(environment, Environment)
        record = await run_rollout(
            environment.task(task),
            environment=environment.with_instructions(resources[INSTRUCTIONS].template),
            base_url=self.cfg.base_url,
            model=str(self.cfg.model),
            config=limits,
            api_key=os.environ.get(POLICY_KEY) or "-",
        )
        return record, []
