"""Keeps the rewards of a group comparable when one rollout got no score, or no number from a reward function.

The reward model may have been down, or the reward function unavailable. Without one score the group is trained without
any: with a judge its rewards become those of correctness alone, and without a judge the whole group is lost. In the
same way it is trained without the function, or lost if `rollout.reward` has no other entry. The reasons are in
`sql_agent.rewards.without_score`. `metrics` counts the cases (`rollout/unshaped/REASON`, `reward_model/unscored_frac`,
`reward/NAME/none_frac`), the progress line and the report show them, and `stops` ends a run whose scorer stays away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from sql_agent.datatypes import Reward
from sql_agent.rewards import unavailable, without_function, without_score
from sql_agent.source.datatypes import Rollout


def level_rewards(group: Sequence[Rollout]) -> None:
    """Take what one rollout lacks, the score or a function's number, out of every reward of its group."""
    failures = Counter(why for r in group if r.outcome and (why := r.outcome.score_failure))
    if failures:
        [(why, _)] = failures.most_common(1)
        for result in group:
            if result.outcome is not None and result.reward is not None:
                _give(result, without_score(result.outcome.reward, why), why)
    missing = {name: why for r in group if r.outcome for name, why in unavailable(r.outcome.reward).items()}
    for name, why in missing.items():
        for result in group:
            if result.outcome is not None and result.reward is not None:
                _give(result, without_function(result.outcome.reward, name, why), why)


def _give(result: Rollout, reward: Reward, why: str) -> None:
    assert result.outcome is not None
    result.outcome = replace(result.outcome, reward=reward)
    if reward.value is None:
        result.lost = why
    else:
        result.unshaped = why
