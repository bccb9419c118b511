"""What a group does when one of its rollouts got no score from the reward model, because it was down for example.

The group is trained without scores: with a judge its rewards become those of correctness alone, without one the whole
group is lost. `sql_agent.rewards.without_score` has the reasons. Counted in `metrics` (`rollout/unshaped/REASON`,
`reward_model/unscored_frac`), shown by the progress line and the report; `stops` ends a run whose scorer stays away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from sql_agent.rewards import without_score
from sql_agent.rollouts.datatypes import RolloutResult


def level_rewards(group: Sequence[RolloutResult]) -> None:
    """Take the reward model's score out of every reward of a group in which a rollout lost its score."""
    failures = Counter(why for r in group if r.outcome and (why := r.outcome.score_failure))
    if not failures:
        return
    [(why, _)] = failures.most_common(1)
    for result in group:
        if result.outcome is None or result.reward is None:
            continue
        result.outcome = replace(result.outcome, reward=without_score(result.outcome.reward, why))
        if result.outcome.reward.value is None:
            result.lost = why
        else:
            result.unshaped = why
