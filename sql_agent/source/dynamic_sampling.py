"""Drops scores that a group has in part, filters groups of zero variance, draws their replacements, credits the others.

GRPO learns nothing from a group whose rewards are all equal, so a replacement task is played instead of it, a limited
number of times (dynamic sampling, DAPO, arXiv:2503.14476 sec. 3.2; verl calls it `filter_groups`). The replacement
depends only on the run's seed, the train step and the slot in the batch, not on which rollout finished first, so a
resumed run draws the same tasks as an uninterrupted one, if no group was open between two steps. The waiting and the
playing are in `sql_agent.source.source`.

The rewards of a group have to be comparable when one rollout got no score, or no number from a reward function, because
the reward model was down or the function unavailable. Without one score the group is trained without any: with a judge
its rewards become those of correctness alone, and without a judge the whole group is lost. In the same way it is
trained without the function, or lost if `rollout.reward` has no other entry. The reasons are in
`sql_agent.rewards.without_score`. `metrics` counts the cases (`rollout/unshaped/REASON`, `reward_model/unscored_frac`,
`reward/NAME/none_frac`), the progress line and the report show them, and `stops` ends a run whose scorer stays away.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean, variance

from sql_agent.credit.registry import Credit, ZeroVariance, zero_variance_of
from sql_agent.datatypes import Reward
from sql_agent.rewards import unavailable, without_function, without_score
from sql_agent.source.datatypes import PendingGroup, Rollout, Task


def drop_scores_of_group(group: Sequence[Rollout]) -> list[Rollout]:
    """The group without what one of its rollouts lacks, the score or a function's number, in any reward."""
    dropped, failures = list(group), Counter(why for r in group if (why := r.score_failure))
    if failures:
        [(why, _)] = failures.most_common(1)
        dropped = [_reshaped(r, why, partial(without_score, why=why)) for r in dropped]
    for name, why in {name: why for r in dropped for name, why in unavailable(r.earned).items()}.items():
        dropped = [_reshaped(r, why, partial(without_function, name=name, why=why)) for r in dropped]
    return dropped


def _reshaped(result: Rollout, why: str, without: Callable[[Reward], Reward]) -> Rollout:
    if result.reward is None:
        return result
    earned = without(result.earned)
    if earned.value is None:
        return replace(result, earned=earned, lost=earned.reason)
    return replace(result, earned=earned, unshaped=why)


def zero_variance(group: Sequence[Rollout]) -> ZeroVariance | None:
    """Why a group has zero variance (`sql_agent.credit.registry.zero_variance_of`)."""
    return zero_variance_of([result.rewards for result in group], [result.success for result in group])


def zero_advantage(group: Sequence[Rollout], estimator: Credit) -> ZeroVariance | None:
    """Why the estimator gives no rollout of a group an advantage; None if it gives one, or if too few were judged."""
    cause = zero_variance(group)
    credited = estimator([result.rewards for result in group]) if cause else []
    return None if any(any(advantages) for advantages in credited if advantages) else cause


def needs_resampling(slot: PendingGroup, estimator: Credit) -> bool:
    """Whether the newest group of a slot has ended and teaches nothing, and a replacement task is left."""
    if not slot.replacements or not all(result.settled for result in slot.groups[-1]):
        return False
    return zero_advantage(drop_scores_of_group(slot.groups[-1]), estimator) is not None


def draw_replacement(slot: PendingGroup) -> None:
    """Add a group for the slot's next replacement task, whose rollouts are still to be played."""
    newest, task = slot.groups[-1], slot.replacements.pop(0)
    slot.groups.append([Rollout(result.group, task, draw=len(slot.groups)) for result in newest])


def slots_to_take(pool: Sequence[PendingGroup], groups: int, step: int) -> list[PendingGroup]:
    """The slots that a train step takes, those that have not ended included, for which it waits.

    Every later step takes as many, so a step takes what is due, and as many of what is due soon as the steps until then
    could not take any more. The others are those that have ended, the oldest first.

    Args:
        pool: what is open, the oldest first.
    Returns:
        At most `groups` slots, the oldest first.
    """
    by_end = sorted(pool, key=lambda slot: not slot.has_ended)
    taken = set[PendingGroup]()
    for due in sorted({slot.due for slot in pool}):
        until = [slot for slot in by_end if slot.due <= due]
        lacking = len(until) - groups * max(due - step, 0) - len(taken)
        taken.update([slot for slot in until if slot not in taken][: max(lacking, 0)])
        if len(taken) >= groups:
            break
    taken.update([slot for slot in by_end if slot not in taken][: max(groups - len(taken), 0)])
    return [slot for slot in pool if slot in taken][:groups]


def filter_groups(draws: Sequence[Sequence[Rollout]], estimator: Credit) -> list[list[Rollout]]:
    """The groups that were played for a slot, without scores that are missing in part.

    All but the one that is trained on are marked as `filtered`, each with its cause: one that teaches is trained on, if
    any does, else the one with the fewest lost rollouts.
    """
    groups = [drop_scores_of_group(group) for group in draws]
    causes = [zero_advantage(group, estimator) for group in groups]
    known = [sum(result.reward is not None for result in group) for group in groups]
    best = max(range(len(groups)), key=lambda draw: (known[draw] > 1 and causes[draw] is None, known[draw]))
    return [
        [replace(result, filtered=None if draw == best else causes[draw] or "lost") for result in group]
        for draw, group in enumerate(groups)
    ]


def credit_group(group: Sequence[Rollout], estimator: Credit, *, zeros: bool = True) -> None:
    """Set the advantages of one group's results, and the credit of their rows; a lost one keeps None.

    Args:
        zeros: False: a group whose advantages are all 0 keeps None, so that it is not trained on.
    """
    rewards = [result.rewards for result in group]
    found = estimator(rewards)
    by_turn = any(len(advantages) > 1 for advantages in found if advantages)
    if not zeros and not any(any(advantages) for advantages in found if advantages):
        return
    for result, advantages in zip(group, found, strict=True):
        if advantages is not None and result.row is not None:
            result.advantage, result.turn_advantages = advantages[0], advantages if by_turn else None
            result.row = result.row.credited(advantages)


def credit_groups(
    groups: Sequence[Sequence[Rollout]], estimator: Credit, *, whiten: bool = False, zeros: bool = True
) -> None:
    """Credit the groups of a step, see `credit_group`.

    Args:
        whiten: give the advantages of all sampled tokens of the step mean 0 and std 1, which takes a group of zeros
            for what it is. Source: arXiv:2501.03262, verl torch_functional.py `masked_whiten`.
    """
    for group in groups:
        credit_group(group, estimator, zeros=zeros or whiten)
    if whiten:
        _whiten([rollout for group in groups for rollout in group if rollout.advantage is not None], zeros=zeros)


def _whiten(rollouts: Sequence[Rollout], *, zeros: bool) -> None:
    pairs = [(rollout, rollout.row) for rollout in rollouts if rollout.row is not None]
    credits = [c for _, row in pairs for c, sampled in zip(row.credit or (), row.sampled, strict=True) if sampled]
    equal = len({*credits}) < 2  # rounding would leave more than 0 of them
    mean, scale = (0.0, 0.0) if equal else (fmean(credits), 1 / math.sqrt(variance(credits) + 1e-8))
    for rollout, row in pairs:
        if equal and not zeros:
            rollout.advantage = rollout.turn_advantages = None
            continue
        turns = rollout.turn_advantages or [rollout.advantage or 0.0]
        whitened = [scale * (advantage - mean) for advantage in turns]
        rollout.advantage, rollout.row = whitened[0], row.credited(whitened)
        rollout.turn_advantages = rollout.turn_advantages and whitened


def replacement_tasks(
    tasks: Sequence[Task], taken: Collection[str], *, slots: int, max_resamples: int, seed: int, step: int
) -> list[list[Task]]:
    """The tasks that each slot of a batch may play after its first; no task is played twice in a step.

    Args:
        tasks: the training tasks.
        taken: ids of the tasks that the batch begins with.
        slots: groups of the batch, P.
        max_resamples: the largest number of replacements of one slot.
    Returns:
        P lists of at most `max_resamples` tasks, shorter where the tasks run out.
    """
    free = [task for task in tasks if str(task["id"]) not in taken]
    drawn = random.Random(f"{seed} {step}").sample(free, min(len(free), slots * max_resamples))
    return [drawn[slot::slots] for slot in range(slots)]


def rollout_seed(seed: int, step: int, slot: int, draw: int, member: int) -> int:
    """The sampler's seed (31 bits) of rollout `member` in the group that `slot` plays at draw number `draw`."""
    return random.Random(f"{seed} {step} {slot} {draw} {member}").getrandbits(31)
