"""Puts the rows of one batch into verl's tensor layout. It is pure torch and imports nothing of verl."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sql_agent.credit.row import Row

# The tensor of the advantages. `rm_scores` stay the rewards, which verl's metrics and its validation read.
CREDIT = "credit"


def to_tensors(rows: Sequence[Row | None], rewards: Sequence[float | None], *, pad_id: int) -> dict[str, torch.Tensor]:
    """Pad prompts on the left and responses on the right, and put each reward on the last response token.

    Rows are as wide as the longest prompt and the longest response of this batch. Position ids begin anew with each
    chain of a row, which keeps the chains apart: verl hands a micro-batch to the model as one packed sequence, and a
    token attends only to those before it whose positions lead up to its own without a gap (transformers,
    `find_packed_sequence_indices`). So a rollout of several conversations is still one row: it has one advantage and
    counts once wherever verl counts rows (its group, a mini-batch, `loss.aggregation`).

    A row that is None or has no reward is lost: it has one pad token on each side, an empty mask, and a reward of 0
    that no statistic may use.

    Args:
        rows: one per rollout, or None.
        rewards: one per rollout, or None.
        pad_id: the token id that rows are padded with.
    Returns:
        `prompts` (B, P), `responses`, `response_mask`, `rm_scores`, `rollout_log_probs`, `CREDIT` (B, T), and
        `input_ids`, `attention_mask`, `position_ids` (B, P + T), as verl's `AgentLoopManager.generate_sequences`
        returns them.
    """
    kept = [row if reward is not None else None for row, reward in zip(rows, rewards, strict=True)]
    prompt = max((row.prompt_tokens for row in kept if row), default=1)
    width = prompt + max((row.response_tokens for row in kept if row), default=1)
    ids = torch.full((len(kept), width), pad_id, dtype=torch.long)
    attention, sampled, starts = (torch.zeros(len(kept), width, dtype=torch.long) for _ in range(3))
    log_probs, credit, scores = (torch.zeros(len(kept), width) for _ in range(3))
    for i, row in enumerate(kept):
        if row is None:
            attention[i, prompt - 1 : prompt + 1] = 1  # attention over nothing would be NaN
            continue
        begin = prompt - row.prompt_tokens
        place = slice(begin, begin + len(row.ids))
        ids[i, place], attention[i, place] = torch.tensor(row.ids), 1
        sampled[i, place], log_probs[i, place] = torch.tensor(row.sampled), torch.tensor(row.log_probs)
        if row.credit is not None:
            credit[i, place] = torch.tensor(row.credit)
        scores[i, place.stop - 1] = rewards[i]  # type: ignore[assignment]
        for start in row.starts:
            starts[i, begin + start :] = start
    tensors = {
        "prompts": ids[:, :prompt],
        "responses": ids[:, prompt:],
        "response_mask": sampled[:, prompt:],
        "rm_scores": scores[:, prompt:],
        "rollout_log_probs": log_probs[:, prompt:],
        CREDIT: credit[:, prompt:],
        "input_ids": ids,
        "attention_mask": attention,
        "position_ids": (attention.cumsum(dim=-1) - 1).clamp(min=0) - starts,
    }
    return {name: tensor.contiguous() for name, tensor in tensors.items()}
