"""REINFORCE: each token is credited with what followed. Williams 1992, https://doi.org/10.1007/BF00992696."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from agentgrpo.settings import Settings
from sql_agent.credit.losses import LossInputs, LossOutput
from sql_agent.credit.registry import Group, scored


class RewardToGo(Settings):
    """Credits each turn with its own reward and those of later turns, without a baseline."""

    def __call__(self, rewards: Group) -> list[list[float] | None]:
        """One advantage per turn, in reward units; None for a lost rollout.

        Raises:
            ValueError: a reward is NaN or infinite.
        """
        scored(rewards)
        return [None if turns is None else [*accumulate(reversed(turns))][::-1] for turns in rewards]


class LogProb(Settings):
    """Minus advantage times log-prob. Source: verl core_algos.py `compute_policy_loss_reinforce`."""

    def __call__(self, inputs: LossInputs) -> LossOutput:
        return LossOutput(-(inputs.log_probs * inputs.advantages))


def take_baseline(
    skills: Sequence[str], rewards: Sequence[float | None], means: Mapping[str, float], decay: float
) -> tuple[list[float | None], dict[str, float]]:
    """Subtract from each reward its skill's running mean before that episode.

    Args:
        skills: skills of the episodes, in the order in which they were drawn.
        rewards: one per episode; None for one that could not be judged, which changes no mean.
        means: running means by skill; a skill's first reward becomes its first mean and is not reduced.
        decay: weight of the old mean against the new reward, in [0, 1).
    Returns:
        One advantage per episode, None where the reward is None, and the means after the last episode.
    """
    after, advantages = dict(means), list[float | None]()
    for skill, value in zip(skills, rewards, strict=True):
        if value is None:
            advantages.append(None)
            continue
        advantages.append(value - after.get(skill, 0.0))
        after[skill] = decay * after[skill] + (1 - decay) * value if skill in after else value
    return advantages, after
