"""Rows side by side attend as if each were alone."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from sql_agent.verl_plugin.packed_attention import packed_attention


def test_each_row_attends_to_itself_alone():
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 4, 5, 8, generator=generator)
    key, value = (torch.randn(1, 2, 5, 8, generator=generator) for _ in range(2))
    positions = torch.tensor([[0, 1, 2, 0, 1]])  # a row of three tokens, a row of two
    packed, _ = packed_attention(torch.nn.Module(), query, key, value, None, position_ids=positions)

    def alone(row: slice) -> torch.Tensor:
        parts = (tensor[:, :, row] for tensor in (query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)))
        return scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2)

    torch.testing.assert_close(packed, torch.cat([alone(slice(0, 3)), alone(slice(3, 5))], 1))


def test_the_first_token_of_a_row_sees_only_itself():
    value = torch.arange(3.0).reshape(1, 1, 3, 1)
    zeros = torch.zeros(1, 1, 3, 1)
    packed, _ = packed_attention(torch.nn.Module(), zeros, zeros, value, None, position_ids=torch.tensor([[0, 1, 0]]))
    # equal weights: token 0 -> 0, token 1 -> (0 + 1) / 2, token 2 begins a row -> 2
    assert packed.flatten().tolist() == [0.0, 0.5, 2.0]


def test_a_batch_of_rows_is_refused_instead_of_cut_by_the_positions_of_the_first():
    two = torch.zeros(2, 1, 3, 1)
    with pytest.raises(ValueError, match="one sequence; got a batch of 2"):
        packed_attention(torch.nn.Module(), two, two, two, None, position_ids=torch.tensor([[0, 1, 2], [0, 1, 2]]))
