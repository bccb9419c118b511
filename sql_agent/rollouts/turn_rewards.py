"""Carries rewards of turns from the records of rollouts to the rows of a batch. Leaves out the maths (`advantages`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from sql_agent.rollouts.advantages import ZERO_REWARD, masked_turn_advantages, rewarded_by_turn
from sql_agent.rollouts.datatypes import RolloutResult, Trajectory, Turn
from sql_agent.rollouts.stitch import prefix_break


def turn_ends(turns: Sequence[Turn], row: Trajectory) -> tuple[int, ...]:
    """Return for each turn in the row the number of the row's response tokens up to its end.

    The result is () if the turns belong to several conversations, because then any turn may be missing in the row.

    Args:
        turns: those that the row was stitched from, in order. With one conversation only the last ones may be missing.
    """
    if prefix_break(turns, one_conversation=True):
        return ()
    kept = turns[: row.num_turns]
    return tuple(len(turn.prompt_ids) + len(turn.sampled_ids) - len(row.prompt_ids) for turn in kept)


def place_turn_rewards(scores: torch.Tensor, results: Sequence[RolloutResult]) -> None:
    """Write the reward of each turn onto its last token, in the rows of rollouts that have rewards of turns.

    Args:
        scores: `rm_scores` (B, T), with each rollout's whole reward on its last token; changed in place.
        results: of the B rows.
    """
    for row, result in zip(scores, results, strict=True):
        if result.turn_rewards is not None:
            row.zero_()
            for end, reward in zip(result.turn_ends, result.turn_rewards, strict=True):
                row[end - 1] = reward or ZERO_REWARD


def credit_turns(results: Sequence[RolloutResult], *, scale: bool) -> None:
    """Set the advantages of results whose group has rewards of turns, as `masked_grpo` computes them for the batch.

    Args:
        results: of the rows of the batch; `advantage` is that of the whole rollout so far.
        scale: see `masked_turn_advantages`.
    """
    width = max((len(result.turn_rewards or ()) for result in results), default=0)
    if not width:
        return
    rewards = torch.zeros(len(results), width)
    for row, result in zip(rewards, results, strict=True):
        turns = result.turn_rewards or [result.reward or 0.0]
        row[width - len(turns) :] = torch.tensor([reward or ZERO_REWARD for reward in turns])
    groups = np.array([result.group for result in results])
    judged = torch.tensor([result.reward is not None for result in results])
    by_turn = rewarded_by_turn(rewards, groups)
    advantages = masked_turn_advantages(rewards, judged & by_turn, groups, scale=scale)
    for result, row, changed in zip(results, advantages.tolist(), by_turn.tolist(), strict=True):
        if changed and result.reward is not None:
            turn_advantages = row[width - len(result.turn_rewards or (0.0,)) :]
            result.turn_advantages, result.advantage = turn_advantages, turn_advantages[0]
