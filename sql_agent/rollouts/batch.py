"""Puts the rows of one batch into verl's tensor layout. It is pure torch and imports nothing of verl."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sql_agent.rollouts.datatypes import Trajectory


def to_tensors(
    rows: Sequence[Trajectory | None], rewards: Sequence[float | None], *, pad_id: int
) -> dict[str, torch.Tensor]:
    """Pad prompts on the left and responses on the right, and put each reward on the last response token.

    Rows are as wide as the longest prompt and the longest response of this batch. Position ids begin anew with each
    chain of a row, which keeps the chains apart: verl hands a micro-batch to the model as one packed sequence, and a
    token attends only to those before it whose positions lead up to its own without a gap (transformers,
    `find_packed_sequence_indices`). So a rollout of several conversations is still one row: it has one advantage and
    counts once wherever verl counts rows (its group, a mini-batch, `loss.aggregation`).

    A row without a trajectory or without a reward is lost: it has one pad token on each side, an empty mask, and a
    reward of 0 that no statistic may use (`sql_agent.rollouts.advantages` leaves it out by its empty mask).

    Args:
        rows: one trajectory per rollout, or None.
        rewards: one reward per rollout, or None.
        pad_id: the token id that rows are padded with.
    Returns:
        `prompts` (B, P), `responses`, `response_mask`, `rm_scores`, `rollout_log_probs` (B, T), and `input_ids`,
        `attention_mask`, `position_ids` (B, P + T), as verl's `AgentLoopManager.generate_sequences` returns them.
    """
    kept = [row if reward is not None else None for row, reward in zip(rows, rewards, strict=True)]
    size = len(kept)
    prompt_length = max((len(row.prompt_ids) for row in kept if row), default=1)
    response_length = max((len(row.response_ids) for row in kept if row), default=1)
    prompts = torch.full((size, prompt_length), pad_id, dtype=torch.long)
    responses = torch.full((size, response_length), pad_id, dtype=torch.long)
    response_mask = torch.zeros(size, response_length, dtype=torch.long)
    attention_mask = torch.zeros(size, prompt_length + response_length, dtype=torch.long)
    chain_starts = torch.zeros(size, prompt_length + response_length, dtype=torch.long)
    scores = torch.zeros(size, response_length)
    log_probs = torch.zeros(size, response_length)
    for i, row in enumerate(kept):
        if row is None:
            attention_mask[i, prompt_length - 1 : prompt_length + 1] = 1  # attention over nothing would be NaN
            continue
        p, t = len(row.prompt_ids), len(row.response_ids)
        prompts[i, prompt_length - p :] = torch.tensor(row.prompt_ids)
        responses[i, :t] = torch.tensor(row.response_ids)
        response_mask[i, :t] = torch.tensor(row.response_mask)
        log_probs[i, :t] = torch.tensor(row.log_probs)
        attention_mask[i, prompt_length - p : prompt_length + t] = 1
        scores[i, t - 1] = rewards[i]  # type: ignore[assignment]
        for start in row.chain_starts:
            chain_starts[i, prompt_length + start :] = p + start
    return {
        "prompts": prompts,
        "responses": responses,
        "response_mask": response_mask,
        "rm_scores": scores,
        "rollout_log_probs": log_probs,
        "input_ids": torch.cat([prompts, responses], dim=1),
        "attention_mask": attention_mask,
        "position_ids": (attention_mask.cumsum(dim=-1) - 1).clamp(min=0) - chain_starts,
    }
