"""What a rollout that has ended earns, by its preset, reward functions, the LLM as judge and the reward model."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping, Sequence

from sql_agent.datatypes import FunctionReward, Reward
from sql_agent.reward_functions.ask import RewardFunctions
from sql_agent.reward_functions.datatypes import LoadedReward, RewardRecord
from sql_agent.rewards import NO_JUDGE, REWARDS, RewardPreset, reward, summed_reward
from sql_agent.settings.groups import RewardModelConfig
from sql_agent.settings.main_job import RolloutConfig
from sql_agent.source.datatypes import Rollout
from sql_agent.source.scoring import RolloutScorer

logger = logging.getLogger(__name__)


class Rewarder:
    """Rewards the rollouts of one event loop, many at once.

    Args:
        functions: those that `rollout.reward` names (`sql_agent.reward_functions.load`).
        threads: functions that may compute at the same time.
        preset: replaces `rollout.reward`, for values that have no name.
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
        counts_pauses: bool = False,
    ) -> None:
        self._rollout, self._reward_model, self._counts_pauses = rollout, reward_model, counts_pauses
        self._functions = RewardFunctions(functions, threads)
        self._preset = preset or REWARDS.get(str(rollout.reward))
        self._scorer: RolloutScorer | None = None

    @property
    def rewards_alone(self) -> bool:
        """Whether a rollout gets a reward even if its environment has no judge."""
        return bool(self._functions) or self._reward_model.url is not None

    async def __call__(self, rollout: Rollout) -> None:
        """Fill in what a rollout that was played earned."""
        record = rollout.record
        if self._scorer is None and self._reward_model.url is not None:
            self._scorer = RolloutScorer(self._reward_model, counts_pauses=self._counts_pauses)
        rollout.scorer = await self._scorer.score(record) if self._scorer else None
        asked = record.score.value is not None or record.score.reason == NO_JUDGE
        self.reward(rollout, await self._functions.ask(RewardRecord.of(record, rollout.task)) if asked else {})

    def reward(self, rollout: Rollout, given: Mapping[str, FunctionReward]) -> None:
        """Reward a rollout whose scorer and functions have answered.

        Args:
            given: the results of the reward functions, by label.
        """
        record, scorer = rollout.record, rollout.scorer
        try:
            if self._preset is not None:
                rollout.earn(reward(record, self._preset, scorer, self._reward_model))
            else:
                rollout.earn(summed_reward(record, self._rollout.weights, given, scorer, self._reward_model))
        except Exception:  # an invalid verdict is the environment's fault and loses this rollout, not the run
            logger.exception("the reward of task %s raised", record.task_id)
            rollout.earn(Reward(None, "reward_error", error=traceback.format_exc()))
        # only a rollout whose own request failed has news about the service
        if self._scorer and scorer is not None and scorer.reason == "scorer_unavailable":
            rollout.scorer_down_s = self._scorer.down_s

    async def aclose(self) -> None:
        if self._scorer is not None:
            await self._scorer.aclose()
            self._scorer = None
