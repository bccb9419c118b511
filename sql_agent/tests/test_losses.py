"""Losses by hand: each number below is worked in the comment above it. Equality with verl and TRL: the parity tests."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from sql_agent.credit.grpo import ClippedRatio, GroupRelative
from sql_agent.credit.losses import LossInputs, log_prob_ratio
from sql_agent.credit.ratios import ConstantRatio, SequenceRatio, SoftGate
from sql_agent.credit.reinforce import LogProb
from sql_agent.local.weighted_loss import LossStats, kl_k3, token_weights, weighted_loss
from sql_agent.settings.local import LossConfig

LN2 = math.log(2)
AGGREGATIONS = ["seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm"]
NOTHING_THERE = [math.nan, math.inf, -math.inf]


def logs(*probabilities: list[float]) -> torch.Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def grpo_loss(log_probs, old, advantages_B, mask, weights, *, clip_ratio=0.2, **kl):
    """The loss and stats of sequences with one advantage each."""
    advantages = advantages_B.unsqueeze(1).expand(log_probs.shape)
    inputs = LossInputs(log_probs, old, advantages, mask)
    return weighted_loss(ClippedRatio(clip_ratio=clip_ratio), inputs, weights, **kl)


def reinforce_loss(log_probs, advantages_B, weights):
    advantages = advantages_B.unsqueeze(1).expand(log_probs.shape)
    inputs = LossInputs(log_probs, torch.zeros_like(log_probs), advantages, weights != 0)
    return weighted_loss(LogProb(), inputs, weights)[0]


# Ratio and KL


def test_the_ratio_compares_with_the_recorded_log_probs_which_get_no_gradient():
    new, old = logs([0.6, 0.25]).requires_grad_(), logs([0.4, 0.5]).requires_grad_()
    ratio = log_prob_ratio(new, old)
    assert_close(ratio.detach(), rows([1.5, 0.5]))
    ratio.sum().backward()
    assert_close(new.grad, rows([1.5, 0.5]))  # d exp(x) = exp(x)
    assert old.grad is None


def test_kl_per_token():
    result = kl_k3(logs([0.25, 0.5, 0.5]), logs([0.5, 0.5, 0.25]))
    assert_close(result, rows([2 - 1 - LN2, 0, 0.5 - 1 + LN2]))  # q/p = 2, 1, 1/2


def test_mean_and_gradient_of_the_kl_estimator_over_what_the_policy_samples():
    """p = (1/2, 1/2), q = (1/4, 3/4), p = softmax(x)."""
    logits = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    log_p, log_q = logits.log_softmax(0), torch.tensor([1 / 4, 3 / 4], dtype=torch.float64).log()
    expected_value = (log_p.exp().detach() * kl_k3(log_p, log_q)).sum()
    expected_value.backward()
    # unbiased: KL(p, q) = ln 2 / 2 + ln(2/3) / 2 = ln(4/3) / 2; the gradient is that of KL(q, p), p_i - q_i
    assert_close(expected_value.item(), math.log(4 / 3) / 2)
    assert_close(logits.grad, torch.tensor([0.25, -0.25], dtype=torch.float64))


@settings(max_examples=60)
@given(st.lists(st.floats(-30, 0, width=32), min_size=1, max_size=20), st.floats(-1e-3, 1e-3))
def test_k3_is_never_negative_not_even_by_rounding(log_probs, step):
    policy = torch.tensor(log_probs)
    for reference in (policy + step, policy.flip(0)):
        assert (kl_k3(policy, reference) >= 0).all()


# Weights

MASK = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        # two sequences that sampled: half for each, shared by its tokens
        ("seq-mean-token-mean", [[1 / 4, 1 / 4, 0], [1 / 2, 0, 0], [0, 0, 0]]),
        ("token-mean", [[1 / 3, 1 / 3, 0], [1 / 3, 0, 0], [0, 0, 0]]),
        # 1 / (2 sequences * 10 tokens)
        ("seq-mean-token-sum-norm", [[1 / 20, 1 / 20, 0], [1 / 20, 0, 0], [0, 0, 0]]),
    ],
)
def test_token_weights(aggregation, expected):
    for mask in (MASK, MASK.bool(), MASK.to(torch.bfloat16)):
        assert_close(token_weights(mask, aggregation, max_tokens=10), torch.tensor(expected))
    assert_close(token_weights(MASK.double(), aggregation, max_tokens=10), rows(*expected))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_batch_in_which_nothing_was_sampled_weighs_nothing(aggregation):
    assert_close(token_weights(torch.zeros(2, 3), aggregation, max_tokens=10), torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("mask", "aggregation", "max_tokens", "words"),
    [
        (MASK[0], "token-mean", None, r"shape \(sequences, tokens\), got \(3,\)"),
        (
            MASK,
            "mean",
            None,
            "unknown aggregation 'mean'; known: seq-mean-token-mean, token-mean, seq-mean-token-sum-norm",
        ),
        (MASK, "seq-mean-token-sum-norm", None, "divides by max_tokens, 1 or more, got None; pass the most"),
        (MASK, "seq-mean-token-sum-norm", 0, "got 0"),
    ],
)
def test_weights_that_cannot_be_made_say_why(mask, aggregation, max_tokens, words):
    with pytest.raises(ValueError, match=words):
        token_weights(mask, aggregation, max_tokens=max_tokens)


# REINFORCE

WEIGHTS = rows([1 / 4, 1 / 4, 0], [1 / 2, 0, 0])


def test_reinforce_loss_and_gradient():
    log_probs = rows([-1.0, -3.0, -9.0], [-2.0, -9.0, -9.0]).requires_grad_()
    # -(1 * (-1 - 3) / 4 + -0.5 * -2 / 2) = -(-1 + 0.5)
    loss = reinforce_loss(log_probs, torch.tensor([1.0, -0.5]), WEIGHTS)
    assert_close(loss.item(), 0.5)
    loss.backward()
    assert_close(log_probs.grad, rows([-1 / 4, -1 / 4, 0], [1 / 4, 0, 0]))  # minus weight * advantage


# GRPO: row 0 has advantage +1 and ratios 1.5, 0.9, row 1 has advantage -1 and ratio 0.5

NEW, OLD, REF = (
    logs([0.6, 0.45, 1], [0.25, 1, 1]),
    logs([0.4, 0.5, 1], [0.5, 1, 1]),
    logs([1.2, 0.45, 1], [0.125, 1, 1]),
)
ADVANTAGES = torch.tensor([1.0, -1.0], dtype=torch.float64)
SAMPLED = MASK[:2]


def test_grpo_loss_clips_where_the_policy_has_gone_far_enough():
    log_probs = NEW.clone().requires_grad_()
    loss, stats = grpo_loss(log_probs, OLD, ADVANTAGES, SAMPLED, WEIGHTS, clip_ratio=0.2)
    # -min(1.5, 1.2) / 4 - min(0.9, 0.9) / 4 - min(-0.5, -0.8) / 2 = -0.3 - 0.225 + 0.4
    assert_close(loss.item(), -0.125)
    assert stats.tokens == 3 and stats.clipped == 2 and stats.kl_k3 is None
    # (1.5 + 0.9 + 0.5) / 3
    assert_close((stats.clip_frac, stats.ratio_mean, stats.ratio_max), (2 / 3, 2.9 / 3, 1.5))
    loss.backward()
    assert_close(log_probs.grad, rows([0, -0.9 / 4, 0], [0, 0, 0]))  # minus weight * ratio * advantage, unless clipped


def test_grpo_loss_does_not_clip_what_went_the_wrong_way():
    # the same ratios with the signs turned: max(1.5, 1.2) / 4 + max(0.9, 0.9) / 4 - min(0.5, 0.8) / 2
    loss, stats = grpo_loss(NEW, OLD, -ADVANTAGES, SAMPLED, WEIGHTS, clip_ratio=0.2)
    assert_close(loss.item(), 1.5 / 4 + 0.9 / 4 - 0.5 / 2)
    assert stats.clipped == 0


def loss_of(loss, log_probs):
    advantages = ADVANTAGES.unsqueeze(1).expand(log_probs.shape)
    return weighted_loss(loss, LossInputs(log_probs, OLD, advantages, SAMPLED), WEIGHTS)


@pytest.mark.parametrize(
    ("loss", "expected", "gradient", "clipped"),
    [
        # row 1 as with one epsilon; the ratio 1.5 of row 0 ends at 1.3: -1.3 / 4 - 0.9 / 4 + 0.8 / 2
        pytest.param(ClippedRatio(clip_ratio_high=0.3), -0.15, ([0, -0.9 / 4, 0], [0, 0, 0]), 2, id="clip_higher"),
        # row 0: sqrt(1.5 x 0.9) = 1.16190 for both tokens; row 1 ends at 0.8
        pytest.param(
            SequenceRatio(), -1.161895 / 2 + 0.8 / 2, ([-1.161895 / 4, -1.161895 / 4, 0], [0, 0, 0]), 1, id="gspo"
        ),
        # -(1.2 ln 0.6 + 0.9 ln 0.45) / 4 + 0.8 ln 0.25 / 2; the gradient is minus weight x clipped ratio x advantage
        pytest.param(
            ConstantRatio(),
            -(1.2 * math.log(0.6) + 0.9 * math.log(0.45)) / 4 + 0.8 * math.log(0.25) / 2,
            ([-1.2 / 4, -0.9 / 4, 0], [0.8 / 2, 0, 0]),
            2,
            id="cispo",
        ),
        # gates 4 sigmoid(0.5) = 2.48984, 4 sigmoid(-0.1) = 1.90008 and 4 / 1.05 sigmoid(-0.525) = 1.41594; the gradient
        # is weight x advantage x ratio x 4 s (1 - s), with s (1 - s) = 0.235004, 0.249376 and 0.233534
        pytest.param(
            SoftGate(),
            -(2.489837 + 1.900083) / 4 + 1.415938 / 2,
            ([-1.5 * 0.940015 / 4, -0.9 * 0.997504 / 4, 0], [0.5 * 0.934138 / 2, 0, 0]),
            0,
            id="sapo",
        ),
    ],
)
def test_losses_that_bound_the_ratio_otherwise(loss, expected, gradient, clipped):
    log_probs = NEW.clone().requires_grad_()
    found, stats = loss_of(loss, log_probs)
    assert found.item() == pytest.approx(expected, abs=1e-5)
    assert stats.clipped == clipped
    found.backward()
    assert_close(log_probs.grad, rows(*gradient), rtol=0, atol=1e-5)


def test_grpo_loss_adds_kl_coef_times_k3():
    log_probs = NEW.clone().requires_grad_()
    # q/p = 2, 1 and 1/2: k3 = 1 - ln 2, 0 and ln 2 - 1/2; (1 - ln 2) / 4 + (ln 2 - 1/2) / 2 = ln 2 / 4
    loss, stats = grpo_loss(
        log_probs, OLD, ADVANTAGES, SAMPLED, WEIGHTS, clip_ratio=0.2, kl_coef=0.1, ref_log_probs=REF
    )
    assert_close(loss.item(), -0.125 + 0.1 * LN2 / 4)
    assert_close(stats.kl_k3, 0.5 / 3)  # (1 - ln 2 + 0 + ln 2 - 1/2) / 3, by tokens and not by weights
    loss.backward()
    # d k3 = 1 - q/p: -1, 0, 1/2
    assert_close(log_probs.grad, rows([-0.1 / 4, -0.9 / 4, 0], [0.1 / 2 / 2, 0, 0]))


def test_kl_coef_0_measures_the_kl_and_leaves_the_loss():
    loss, stats = grpo_loss(NEW, OLD, ADVANTAGES, SAMPLED, WEIGHTS, clip_ratio=0.2, ref_log_probs=REF)
    assert_close((loss.item(), stats.kl_k3), (-0.125, 0.5 / 3))
    endless = torch.full_like(REF, math.inf)  # 0 * inf would be NaN
    loss, stats = grpo_loss(NEW, OLD, ADVANTAGES, SAMPLED, WEIGHTS, clip_ratio=0.2, ref_log_probs=endless)
    assert loss.item() == pytest.approx(-0.125)


def test_the_first_update_has_ratio_1_and_reinforces_gradient():
    new = NEW.clone().requires_grad_()
    loss, stats = grpo_loss(new, new, ADVANTAGES, SAMPLED, WEIGHTS, clip_ratio=0.2)
    (ours,) = torch.autograd.grad(loss, new)
    (expected,) = torch.autograd.grad(reinforce_loss(new, ADVANTAGES, WEIGHTS), new)
    assert_close(ours, expected)
    assert stats == LossStats(tokens=3, clipped=0, ratio_sum=3.0, ratio_max=1.0)


def test_only_the_policys_log_probs_get_a_gradient():
    policy, old, advantages, ref = (values.clone().requires_grad_() for values in (NEW, OLD, ADVANTAGES, REF))
    loss, _ = grpo_loss(policy, old, advantages, SAMPLED, WEIGHTS, clip_ratio=0.2, kl_coef=0.1, ref_log_probs=ref)
    (loss + reinforce_loss(policy, advantages, WEIGHTS)).backward()
    assert policy.grad is not None
    assert (old.grad, advantages.grad, ref.grad) == (None, None, None)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.floats(-1, 1))
def test_equal_rewards_have_no_gradient(seed, reward):
    generator = torch.Generator().manual_seed(seed)
    new, old = -torch.rand(2, 4, 5, generator=generator)
    new.requires_grad_()
    mask = torch.rand(4, 5, generator=generator) < 0.7
    advantages = torch.tensor(GroupRelative()([[reward]] * 4)).squeeze(1)
    weights = token_weights(mask, "seq-mean-token-mean")
    for loss in (
        grpo_loss(new, old, advantages, mask, weights, clip_ratio=0.2)[0],
        reinforce_loss(new, advantages, weights),
    ):
        (gradient,) = torch.autograd.grad(loss, new)
        assert not gradient.any()


@pytest.mark.parametrize("anything", NOTHING_THERE)
def test_what_was_not_sampled_touches_neither_loss_nor_gradient(anything):
    outside = SAMPLED == 0

    def spoilt(values: torch.Tensor) -> torch.Tensor:
        return values.masked_fill(outside, anything)

    clean, dirty = NEW.clone().requires_grad_(), spoilt(NEW).requires_grad_()
    settings_of_both = {"clip_ratio": 0.2, "kl_coef": 0.1}
    expected, expected_stats = grpo_loss(
        clean, OLD, ADVANTAGES, SAMPLED, WEIGHTS, ref_log_probs=REF, **settings_of_both
    )
    loss, stats = grpo_loss(
        dirty, spoilt(OLD), ADVANTAGES, SAMPLED, WEIGHTS, ref_log_probs=spoilt(REF), **settings_of_both
    )
    expected, loss = (
        expected + reinforce_loss(clean, ADVANTAGES, WEIGHTS),
        loss + reinforce_loss(dirty, ADVANTAGES, WEIGHTS),
    )
    assert (loss.item(), stats) == (expected.item(), expected_stats)
    assert torch.equal(torch.autograd.grad(loss, dirty)[0], torch.autograd.grad(expected, clean)[0])


def test_the_advantage_of_a_row_without_a_token_may_be_anything():
    empty_row = torch.tensor([[0, 1, 0], [0, 0, 0]])
    log_probs = NEW.clone().requires_grad_()
    advantages = torch.tensor([1.0, math.nan], dtype=torch.float64)
    loss, stats = grpo_loss(
        log_probs, OLD, advantages, empty_row, token_weights(empty_row, "token-mean"), clip_ratio=0.2
    )
    assert_close(loss.item(), -0.9)
    assert_close(torch.autograd.grad(loss, log_probs)[0], rows([0, -0.9, 0], [0, 0, 0]))
    assert_close((stats.tokens, stats.ratio_sum, stats.ratio_max), (1, 0.9, 0.9))


@pytest.mark.parametrize("broken", NOTHING_THERE)
def test_a_sampled_token_that_is_no_number_is_not_hidden(broken):
    old = OLD.clone()
    old[1, 0] = -broken
    loss, stats = grpo_loss(NEW, old, ADVANTAGES, SAMPLED, WEIGHTS, clip_ratio=0.2, kl_coef=0.1, ref_log_probs=old)
    assert not math.isfinite(loss.item())
    assert stats.kl_k3 is not None and not math.isfinite(stats.kl_k3)


# Micro-batches


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_micro_batches_add_up_to_the_batch(aggregation):
    generator = torch.Generator().manual_seed(0)
    new, old, ref = -torch.rand(3, 7, 5, generator=generator, dtype=torch.float64)
    mask = torch.rand(7, 5, generator=generator) < 0.6
    mask[3] = False  # the third micro-batch is a row in which nothing was sampled
    advantages = torch.randn(7, generator=generator, dtype=torch.float64)
    weights = token_weights(mask.double(), aggregation, max_tokens=11)

    def loss_of(rows: slice) -> tuple[torch.Tensor, LossStats]:
        policy = new[rows].requires_grad_()
        return grpo_loss(
            policy,
            old[rows],
            advantages[rows],
            mask[rows],
            weights[rows],
            clip_ratio=0.2,
            kl_coef=0.1,
            ref_log_probs=ref[rows],
        )

    whole_loss, whole = loss_of(slice(None))
    losses, stats = zip(*map(loss_of, [slice(0, 2), slice(2, 3), slice(3, 4), slice(4, 7)]), strict=True)
    assert_close(sum(losses), whole_loss, rtol=0, atol=1e-12)
    total = sum(stats, LossStats())
    assert (total.tokens, total.clipped, total.ratio_max) == (whole.tokens, whole.clipped, whole.ratio_max)
    assert_close((total.clip_frac, total.ratio_mean, total.kl_k3), (whole.clip_frac, whole.ratio_mean, whole.kl_k3))


def test_stats_of_nothing_are_unknown_and_change_no_sum():
    nothing = torch.zeros(2, 3)
    loss, stats = grpo_loss(
        NEW, OLD, ADVANTAGES, nothing, token_weights(nothing, "token-mean"), clip_ratio=0.2, ref_log_probs=REF
    )
    assert loss.item() == 0
    assert (stats.tokens, stats.kl_k3) == (0, None)
    assert all(math.isnan(value) for value in (stats.clip_frac, stats.ratio_mean, stats.ratio_max))
    something = LossStats(tokens=4, clipped=1, ratio_sum=4.4, ratio_max=1.3, kl_k3_sum=0.2)
    assert stats + something == something + stats == something


def test_stats_lose_no_broken_ratio_and_no_missing_reference():
    fine, broken = LossStats(1, 0, 1.0, 1.0, 0.5), LossStats(1, 0, math.nan, math.nan, None)
    for total in (fine + broken, broken + fine):
        assert math.isnan(total.ratio_max) and math.isnan(total.ratio_mean)
        assert total.kl_k3 is None


def test_a_loss_that_clips_nothing_measures_ratio_and_kl():
    inputs = LossInputs(NEW, OLD, ADVANTAGES.unsqueeze(1).expand(2, 3), SAMPLED)
    loss, stats = weighted_loss(LogProb(), inputs, WEIGHTS, kl_coef=0.1, ref_log_probs=REF)
    # log(0.6 x 0.45) / 4 with advantage 1, log(1/4) / 2 with -1
    assert_close(loss.item(), -math.log(0.27) / 4 + math.log(0.25) / 2 + 0.1 * LN2 / 4)
    assert (stats.tokens, stats.clipped) == (3, 0)
    assert_close((stats.ratio_mean, stats.kl_k3), (2.9 / 3, 0.5 / 3))


# What does not fit


@pytest.mark.parametrize(
    ("settings_class", "changed", "words"),
    [
        (ClippedRatio, {"clip_ratio": 0.0}, "greater than 0"),
        (ClippedRatio, {"clip_ratio": 1.0}, "less than 1"),
        (LossConfig, {"kl_coef": -0.1}, "greater than or equal to 0"),
        (LossConfig, {"kl_coef": math.nan}, "finite number"),
        (LossConfig, {"kl_coef": math.inf}, "finite number"),
    ],
)
def test_settings_out_of_range_say_what_is_in_it(settings_class, changed, words):
    with pytest.raises(ValueError, match=words):
        settings_class(**changed)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"log_probs": NEW[0]}, r"log_probs need the shape \(sequences, tokens\), got \(3,\)"),
        ({"advantages": NEW[:1]}, r"advantages needs the shape of log_probs, \(2, 3\), got \(1, 3\)"),
        ({"old_log_probs": OLD[:, 1:]}, r"old_log_probs needs the shape of log_probs, \(2, 3\), got \(2, 2\)"),
        ({"mask": MASK}, r"mask needs the shape of log_probs, \(2, 3\), got \(3, 3\)"),
    ],
)
def test_inputs_that_do_not_fit_say_what_does(changed, words):
    fits = {"log_probs": NEW, "old_log_probs": OLD, "advantages": NEW, "mask": SAMPLED}
    with pytest.raises(ValueError, match=words):
        LossInputs(**{**fits, **changed})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"kl_coef": 0.04}, "kl_coef 0.04 needs ref_log_probs"),
        ({"weights": WEIGHTS[:1]}, "weights needs the shape"),
        ({"ref_log_probs": REF[:1]}, "ref_log_probs needs the shape"),
    ],
)
def test_what_does_not_fit_to_the_inputs_says_what_does(changed, words):
    with pytest.raises(ValueError, match=words):
        weighted_loss(ClippedRatio(), LossInputs(NEW, OLD, NEW, SAMPLED), **{"weights": WEIGHTS, **changed})
