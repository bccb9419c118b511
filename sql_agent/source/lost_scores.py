"""Keeps the rewards of a group comparable when one rollout got no score, or no number from a reward function.

The reward model may have been down, or the reward function unavailable. Without one score the group is trained without
any: with a judge its rewards become those of correctness alone, and without a judge the whole group is lost. In the
same way it is trained without the function, or lost if `rollout.reward` has no other entry. The reasons are in
`sql_agent.rewards.without_score`. `metrics` counts the cases (`rollout/unshaped/REASON`, `reward_model/unscored_frac`,
`reward/NAME/none_frac`), the progress line and the report show them, and `stops` ends a run whose scorer stays away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from sql_agent.datatypes import Reward
from sql_agent.rewards import unavailable, without_function, without_score
from sql_agent.source.datatypes import Rollout


def level_rewards(group: Sequence[Rollout]) -> None:
    """Take what one rollout lacks, the score or a function's number, out of every reward of its group."""
    failures = Counter(why for r in group if (why := r.score_failure))
    if failures:
        [(why, _)] = failures.most_common(1)
        _level(group, why, partial(without_score, why=why))
    for name, why in {name: why for r in group for name, why in unavailable(r.earned).items()}.items():
        _level(group, why, partial(without_function, name=name, why=why))


def _level(group: Sequence[Rollout], why: str, without: Callable[[Reward], Reward]) -> None:
    for result in group:
        if result.reward is not None:
            result.earn(without(result.earned))
            if not result.lost:
                result.unshaped = why
