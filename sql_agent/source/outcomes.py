"""Says what a rollout that has ended is worth: its preset, reward functions, the LLM as judge and the reward model."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from sql_agent.datatypes import FunctionReward, Reward, RolloutRecord, ScorerResult
from sql_agent.reward_functions.ask import RewardFunctions
from sql_agent.reward_functions.datatypes import LoadedReward, RewardRecord
from sql_agent.rewards import NO_JUDGE, REWARDS, RewardPreset, reward, summed_reward
from sql_agent.settings.groups import RewardModelConfig
from sql_agent.settings.main_job import RolloutConfig
from sql_agent.source.datatypes import RolloutOutcome, Task
from sql_agent.source.scoring import RolloutScorer

logger = logging.getLogger(__name__)


class Rewarder:
    """Rewards the rollouts of one event loop, many at once.

    Args:
        functions: those that `rollout.reward` names (`sql_agent.reward_functions.load`).
        threads: functions that may compute at the same time.
        preset: replaces `rollout.reward`, for values that have no name.
        one_conversation: see `RolloutOutcome`.
        counts_pauses: see `RewardClient`.
    """

    def __init__(
        self,
        rollout: RolloutConfig,
        reward_model: RewardModelConfig,
        functions: Sequence[LoadedReward] = (),
        *,
        threads: int,
        preset: RewardPreset | None = None,
        one_conversation: bool = True,
        counts_pauses: bool = False,
    ) -> None:
        self._rollout, self._reward_model, self._one_conversation = rollout, reward_model, one_conversation
        self._counts_pauses = counts_pauses
        self._functions = RewardFunctions(functions, threads)
        self._preset = preset or REWARDS.get(str(rollout.reward))
        self._scorer: RolloutScorer | None = None

    @property
    def rewards_alone(self) -> bool:
        """Whether a rollout gets a reward even if its environment has no judge."""
        return bool(self._functions) or self._reward_model.url is not None

    async def __call__(self, record: RolloutRecord, task: Task) -> RolloutOutcome:
        if self._scorer is None and self._reward_model.url is not None:
            self._scorer = RolloutScorer(self._reward_model, counts_pauses=self._counts_pauses)
        scored = await self._scorer.score(record) if self._scorer else None
        asked = record.score.value is not None or record.score.reason == NO_JUDGE
        given = await self._functions.ask(RewardRecord.of(record, task)) if asked else {}
        return self.outcome(record, scored, given)

    def outcome(
        self,
        record: RolloutRecord,
        scored: ScorerResult | None,
        given: Mapping[str, FunctionReward] = MappingProxyType({}),
    ) -> RolloutOutcome:
        """The outcome of a rollout whose scorer and functions have answered.

        Args:
            given: the results of the reward functions, by label.
        """
        try:
            worth = self._worth(record, scored, given)
        except Exception:  # an invalid verdict is the environment's fault and loses this rollout, not the run
            logger.exception("the reward of task %s raised", record.task_id)
            worth = Reward(None, "reward_error", error=traceback.format_exc())
        # only a rollout whose own request failed has news about the service
        unanswered = scored is not None and scored.reason == "scorer_unavailable"
        down_s = self._scorer.down_s if self._scorer and unanswered else 0.0
        return RolloutOutcome(record, worth, scored, down_s, time.time(), self._one_conversation)

    def _worth(self, record: RolloutRecord, scored: ScorerResult | None, given: Mapping[str, FunctionReward]) -> Reward:
        if self._preset is not None:
            return reward(record, self._preset, scored, self._reward_model)
        return summed_reward(record, self._rollout.weights, given, scored, self._reward_model)

    async def aclose(self) -> None:
        if self._scorer is not None:
            await self._scorer.aclose()
            self._scorer = None
