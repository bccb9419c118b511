"""RLOO: rewards are compared with those of the group's others. arXiv:2402.14740."""

from __future__ import annotations

from agentgrpo.settings import Settings
from sql_agent.credit.registry import Group, scored


class LeaveOneOut(Settings):
    """Credits each rollout with its reward less the mean of the others.

    Source: arXiv:2402.14740 sec. 3.2, verl core_algos.py `compute_rloo_outcome_advantage`. Differences: verl gives a
    lone rollout its raw reward, here it gets 0. Equal rewards are exactly 0 here, in verl what rounding leaves. Rewards
    of turns are added up first.
    """

    def __call__(self, rewards: Group) -> list[list[float] | None]:
        """One advantage per rollout, in reward units; None for a lost one.

        Raises:
            ValueError: a reward is NaN or infinite.
        """
        known = [sum(turns) for turns in scored(rewards)]
        if len({*known}) < 2:
            return [None if turns is None else [0.0] for turns in rewards]
        total, others = sum(known), len(known) - 1
        return [None if turns is None else [sum(turns) - (total - sum(turns)) / others] for turns in rewards]
