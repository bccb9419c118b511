"""What a group does when one of its rollouts got no score from the reward model, because it was down for example, or no
number from a reward function that was unavailable.

The group is trained without scores: with a judge its rewards become those of correctness alone, without one the whole
group is lost. Likewise it is trained without the function; where `rollout.reward` has no other entry, it is lost.
`sql_agent.rewards.without_score` has the reasons. Counted in `metrics` (`rollout/unshaped/REASON`,
`reward_model/unscored_frac`, `reward/NAME/none_frac`), shown by the progress line and the report; `stops` ends a run
whose scorer stays away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from sql_agent.datatypes import Reward
from sql_agent.rewards import unavailable, without_function, without_score
from sql_agent.rollouts.datatypes import RolloutResult


def level_rewards(group: Sequence[RolloutResult]) -> None:
    """Take the reward model's score out of every reward of a group in which a rollout lost its score, and a function's
    number out of every reward of a group in which it was unavailable for one."""
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


def _give(result: RolloutResult, reward: Reward, why: str) -> None:
    assert result.outcome is not None
    result.outcome = replace(result.outcome, reward=reward)
    if reward.value is None:
        result.lost = why
    else:
        result.unshaped = why
