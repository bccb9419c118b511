"""Log-probs in one call, equal to verl's row by row."""

import math

import pytest
import torch


def test_hand_worked():
    from sql_agent.verl_plugin.log_probs import logprobs_from_logits

    # softmax of (0, ln 3) is (1/4, 3/4)
    logits = torch.tensor([[[0.0, math.log(3)], [0.0, math.log(3)]]])
    log_probs = logprobs_from_logits(logits, torch.tensor([[0, 1]]))
    torch.testing.assert_close(log_probs, torch.tensor([[math.log(1 / 4), math.log(3 / 4)]]))


@pytest.mark.slow
def test_equal_to_verls_with_the_same_gradient():
    from verl.utils.torch_functional import logprobs_from_logits_v2

    from sql_agent.verl_plugin.log_probs import logprobs_from_logits

    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 7, 50, generator=generator, requires_grad=True)
    labels = torch.randint(0, 50, (3, 7), generator=generator)
    ours, theirs = logprobs_from_logits(logits, labels), logprobs_from_logits_v2(logits, labels)
    torch.testing.assert_close(ours, theirs)
    (gradient,) = torch.autograd.grad(ours.sum(), logits)
    (expected,) = torch.autograd.grad(theirs.sum(), logits)
    torch.testing.assert_close(gradient, expected)
