"""Lists the estimators of advantages and the losses. A new one needs a module and a line here.

Each is a frozen settings class whose instances are called: an estimator with the rewards of one group (`Group`),
a loss with `losses.LossInputs`. A trainer's `loss` settings fill the class's fields of the same name. A class is
imported when one is made, so that importing this is instant.
"""

from __future__ import annotations

import importlib
import math
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from agentgrpo.flags import FlagName
from agentgrpo.settings import Settings, VerlKey
from agentgrpo.spelling import did_you_mean

# The rewards of the rollouts of one task under one policy: for each rollout those of its turns, in order, or the one of
# the whole rollout; None for one that could not be judged.
Group = Sequence[Sequence[float] | None]
# From the rewards of a group, of which none, one or all may be judged, to an advantage per turn, or one per rollout;
# None stays None.
Credit = Callable[[Group], list[list[float] | None]]
ESTIMATORS = {
    "grpo": "sql_agent.credit.grpo:GroupRelative",
    "reinforce": "sql_agent.credit.reinforce:RewardToGo",
    "rloo": "sql_agent.credit.rloo:LeaveOneOut",
}
LOSSES = {
    "grpo": "sql_agent.credit.grpo:ClippedRatio",
    "reinforce": "sql_agent.credit.reinforce:LogProb",
    "gspo": "sql_agent.credit.ratios:SequenceRatio",
    "cispo": "sql_agent.credit.ratios:ConstantRatio",
    "sapo": "sql_agent.credit.ratios:SoftGate",
}
# Losses that verl computes by its own function, with its name; the plugin registers the others with verl.
VERLS = {"grpo": "vanilla", "gspo": "gspo", "cispo": "cispo", "sapo": "sapo"}
# Losses of verl's that only the main job has, under verl's names.
VERLS_ONLY: dict[str, str] = dict.fromkeys(
    ("geo_mean", "gpg", "dppo_tv", "dppo_kl", "clip_cov", "kl_cov", "dro"), "verl.trainer.ppo.core_algos"
)


def known(table: Mapping[str, str]) -> AfterValidator:
    def check(name: str) -> str:
        if name not in table:
            known = ", ".join(sorted(table))
            raise ValueError(f"unknown name {name!r}; known: {known}{did_you_mean(name, table.keys())}")
        return name

    return AfterValidator(check)


EstimatorName = Annotated[str, known(ESTIMATORS)]
LossName = Annotated[str, known(LOSSES)]
MainLossName = Annotated[str, known(ChainMap(LOSSES, VERLS_ONLY))]
# How token losses become one number, with verl's names: GRPO's paper, DAPO, Dr. GRPO.
Aggregation = Literal["seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm"]


class CreditSettings(Settings):
    """What estimators and losses read: a class that does is a subclass, and so are both trainers' `loss` settings."""

    clip_ratio: Annotated[
        float, VerlKey("actor_rollout_ref.actor.clip_ratio"), VerlKey("actor_rollout_ref.actor.clip_ratio_low")
    ] = Field(default=0.2, gt=0, lt=1)
    """PPO's epsilon."""
    clip_ratio_high: Annotated[float | None, VerlKey("actor_rollout_ref.actor.clip_ratio_high")] = Field(
        default=None, gt=0
    )
    """The epsilon above 1 of grpo, gspo and cispo, where it differs (clip-higher of DAPO, arXiv:2503.14476, with 0.28).
    None: `clip_ratio`."""
    scale: Annotated[bool, VerlKey("algorithm.norm_adv_by_std_in_grpo"), FlagName(None)] = True
    """Divide advantages by the group's std; False only centres (arXiv:2503.20783)."""
    whiten: bool = False
    """Give the advantages of a step's sampled tokens mean 0 and std 1. With the estimator reinforce that is REINFORCE++
    (arXiv:2501.03262), with grpo and without `scale` its form with a baseline."""


def ratio_range(settings: CreditSettings) -> tuple[float, float]:
    """The ratios of probabilities between which a loss does not clip."""
    high = settings.clip_ratio if settings.clip_ratio_high is None else settings.clip_ratio_high
    return 1 - settings.clip_ratio, 1 + high


def made(row: str, settings: Any) -> Any:
    """Make a row's estimator or loss from a trainer's settings; a field that they do not have keeps its default."""
    module, _, name = row.partition(":")
    made_of = getattr(importlib.import_module(module), name)
    return made_of(**{field: getattr(settings, field) for field in made_of.model_fields if hasattr(settings, field)})


ZeroVariance = Literal["all_right", "all_wrong", "all_equal"]


def scored(rewards: Group) -> list[Sequence[float]]:
    """The rewards of the rollouts that were judged.

    Raises:
        ValueError: a reward is NaN or infinite.
    """
    known = [turns for turns in rewards if turns is not None]
    if not all(math.isfinite(reward) for turns in known for reward in turns):
        raise ValueError(f"rewards must be finite numbers, got {list(rewards)}; None says that one was not judged")
    return known


def zero_variance_of(rewards: Group, success: Sequence[float | None]) -> ZeroVariance | None:
    """Why no two rewards of a group differ; None if two do, or if fewer than two of its rollouts were judged.

    Equal rewards count as right or wrong only with a judge's verdict: a reward model's score above 0 is not "right".

    Args:
        success: of the same rollouts, 1 for a verdict of exactly 1 and 0 for a lower one; None without a verdict.
    Raises:
        ValueError: a reward is NaN or infinite.
    """
    known = scored(rewards)
    if len(known) < 2 or len({reward for turns in known for reward in turns}) > 1:
        return None
    verdicts = {right for right, turns in zip(success, rewards, strict=True) if turns is not None}
    return "all_right" if verdicts == {1.0} else "all_wrong" if verdicts == {0.0} else "all_equal"
