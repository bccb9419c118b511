"""Groups without spread give way to other tasks, and every rollout has a seed: pure, and the same in every run.

GRPO learns nothing from a group whose rewards are all equal. Such a group is set aside and another task is played in
its place, a set number of times (dynamic sampling, DAPO, arXiv:2503.14476 sec. 3.2). Which task follows which depends
on the run's seed, the train step and the place in the batch alone, never on what finished first, so that a resumed run
draws what the unbroken one would have. Leaves out the waiting and the playing (`sql_agent.rollouts.manager`).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Any, Literal

NoSpread = Literal["all_right", "all_wrong", "all_equal"]
Task = dict[str, Any]


def no_spread(rewards: Sequence[float | None], success: Sequence[float | None]) -> NoSpread | None:
    """Why a group teaches nothing; None if it does, or if fewer than two of its rollouts have a reward.

    Args:
        rewards: of one group; None where a rollout was lost.
        success: of the same rollouts, 1 where the task is solved, 0 where not; None where nobody judges: a score above
            0 is not right.
    """
    known = [(reward, solved) for reward, solved in zip(rewards, success, strict=True) if reward is not None]
    if len(known) < 2 or len({reward for reward, _ in known}) > 1:
        return None
    solved = {solved for _, solved in known}
    return "all_right" if solved == {1.0} else "all_wrong" if solved == {0.0} else "all_equal"


def spare_tasks(
    tasks: Sequence[Task], taken: Collection[str], *, places: int, draws: int, seed: int, step: int
) -> list[list[Task]]:
    """What each place of a batch may draw after its first task; no task stands twice in a step.

    Args:
        tasks: the training tasks.
        taken: ids of the tasks that the batch begins with.
        places: groups of the batch, P.
        draws: most tasks that a place may draw.
    Returns:
        P lists of at most `draws` tasks, shorter where the tasks run out.
    """
    free = [task for task in tasks if str(task["id"]) not in taken]
    drawn = random.Random(f"{seed} {step}").sample(free, min(len(free), places * draws))
    return [drawn[place::places] for place in range(places)]


def rollout_seed(seed: int, step: int, place: int, draw: int, member: int) -> int:
    """Of one rollout's sampler, 31 bits: the `member`-th of the group that `place` of the batch plays at its `draw`-th
    draw."""
    return random.Random(f"{seed} {step} {place} {draw} {member}").getrandbits(31)
