"""Log-probs and entropies a tile of the vocabulary at a time: those of the whole logits, and so are the gradients."""

import math

import pytest
import torch

from sql_agent import log_probs
from sql_agent.log_probs import LogProbs


def by_whole_logits(hidden, weight, labels, temperature):
    every = (hidden @ weight.t() / temperature).log_softmax(-1)
    return every.gather(-1, labels[:, None])[:, 0], -(every.exp() * every).sum(-1), every.argmax(-1) == labels


def test_hand_worked():
    # logits ln 1, ln 2, ln 1 over a vocabulary of three: probabilities 1/4, 1/2, 1/4
    weight = torch.tensor([[0.0], [math.log(2)], [0.0]])
    found, entropy, likeliest = LogProbs.apply(torch.ones(2, 1), weight, torch.tensor([1, 2]), 1.0)
    assert found.tolist() == pytest.approx([math.log(0.5), math.log(0.25)])
    # 2 * 1/4 ln 4 + 1/2 ln 2
    assert entropy.tolist() == pytest.approx([1.5 * math.log(2)] * 2)
    assert likeliest.tolist() == [True, False]


@pytest.mark.parametrize("tile", [3 * 5, 2**21], ids=["tiles_of_five_the_last_of_one", "one_tile"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("of", [(1, 0), (0, 1), (1, 1)], ids=["log_probs", "entropies", "both"])
def test_values_and_gradients_are_those_of_the_whole_logits(tile, temperature, of, monkeypatch):
    monkeypatch.setattr(log_probs, "TILE", tile)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 4, generator=generator).requires_grad_()
    weight = (3 * torch.randn(11, 4, generator=generator)).requires_grad_()
    labels, weights = torch.tensor([0, 10, 4]), torch.tensor([1.0, -2.0, 0.5])
    found = []
    for compute in (by_whole_logits, LogProbs.apply):
        values = compute(hidden, weight, labels, temperature)
        loss = sum((each * weights).sum() for each, wanted in zip(values, of, strict=False) if wanted)
        found.append((*values, *torch.autograd.grad(loss, (hidden, weight))))
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-5)


def test_logits_far_apart_overflow_nowhere(monkeypatch):
    monkeypatch.setattr(log_probs, "TILE", 2 * 2)
    weight = torch.tensor([[-500.0], [0.0], [500.0], [499.0]])  # the largest is in the second tile of two
    values, entropy, _ = LogProbs.apply(torch.ones(2, 1), weight, torch.tensor([2, 0]), 1.0)
    # p = 1 / (1 + 1/e): log p = -ln(1 + 1/e) = -0.31326
    assert values.tolist() == pytest.approx([-0.31326, -1000.31326], abs=1e-4)
    # ln(1 + 1/e) + (1/e) / (1 + 1/e)
    assert entropy.tolist() == pytest.approx([0.31326 + 0.26894] * 2, abs=1e-4)


def test_no_position_is_a_differentiable_nothing():
    hidden, weight = torch.ones(0, 4, requires_grad=True), torch.ones(7, 4, requires_grad=True)
    values, entropies, _ = LogProbs.apply(hidden, weight, torch.zeros(0, dtype=torch.long), 0.7)
    (values.sum() + entropies.sum()).backward()
    assert (values.shape, entropies.shape, hidden.grad.shape) == ((0,), (0,), (0, 4))
    assert torch.equal(weight.grad, torch.zeros(7, 4))


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")
def test_rounded_factors_keep_eight_bits_and_leave_torchs_setting_as_it_was(monkeypatch):
    monkeypatch.setattr(log_probs, "TILE", 50 * 70)  # five tiles, the last one narrow, whose memory is one
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(50, 64, generator=generator), torch.randn(300, 64, generator=generator) / 8
    labels = torch.randint(300, (50,), generator=generator)
    before = torch.backends.mkldnn.matmul.fp32_precision
    found = []
    for rounded in (False, True):
        leaves = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        values = LogProbs.apply(*leaves, labels, 1.0, rounded)
        found.append((*values[:2], *torch.autograd.grad(values[0].sum(), leaves)))
    torch.testing.assert_close(found[1], found[0], atol=0.02, rtol=0.02)
    if torch.cpu._is_amx_tile_supported():
        assert not torch.equal(found[1][0], found[0][0])
    assert torch.backends.mkldnn.matmul.fp32_precision == before
