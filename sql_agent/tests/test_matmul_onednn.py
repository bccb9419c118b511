"""Products of matrices by oneDNN: those of torch, however the matrices lie in memory."""

import pytest
import torch

from sql_agent.matmul_onednn import matmul_onednn


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_products_are_torchs_however_the_matrices_lie(dtype):
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape):
        return torch.randint(-3, 4, shape, generator=generator).to(dtype)  # whole numbers: no rounding

    tall, wide, heads = drawn(5, 7), drawn(7, 4), drawn(7, 3, 4)
    for a, b in ((tall, wide), (tall, drawn(4, 7).t()), (drawn(7, 5).t(), wide), (tall, heads[:, 1])):
        assert matmul_onednn(a, b).dtype is dtype
        assert torch.equal(matmul_onednn(a, b), (a.double() @ b.double()).to(dtype))


@pytest.mark.parametrize(("rows", "inner", "columns"), [(0, 3, 2), (2, 0, 3), (2, 3, 0)])
def test_nothing_makes_zeros_or_nothing(rows, inner, columns):
    assert torch.equal(matmul_onednn(torch.ones(rows, inner), torch.ones(inner, columns)), torch.zeros(rows, columns))
