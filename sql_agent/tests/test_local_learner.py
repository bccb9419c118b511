"""The update: what it does to the adapter, and what it never lets in."""

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch

from sql_agent.local.datatypes import DivergedError
from sql_agent.local.learner import Learner
from sql_agent.local.policy import LocalPolicy, Rows, load_policy
from sql_agent.settings.local import AdapterConfig, LossConfig, OptimConfig
from sql_agent.tests.records import make_row

NO_DROPOUT = AdapterConfig(dropout=0.0)
FAST = OptimConfig(learning_rate=1e-2, weight_decay=0.0)
TRAJECTORIES = [
    make_row((1, 50, 60), (70, 71, 72), (1, 0, 1), (-6.9, 0.0, -6.9), 2),
    make_row((1, 50), (80, 81, 82, 83, 84), (1, 1, 1, 0, 1), (-6.9, -6.9, -6.9, 0.0, -6.9), 2),
    make_row((1, 50, 60, 61), (90,), (1,), (-6.9,), 1),
]
ROWS = [row.credited([advantage]) for row, advantage in zip(TRAJECTORIES, [1.0, -1.0, 0.5], strict=True)]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def policy(random_policy_folder) -> LocalPolicy:
    torch.manual_seed(0)
    return load_policy(random_policy_folder, adapter=NO_DROPOUT, device="cpu")


def gradients(policy: LocalPolicy) -> list[torch.Tensor]:
    return [p.grad.clone() for p in policy.parameters()]


def norm(parts: list[torch.Tensor]) -> float:
    return math.sqrt(sum(float((part**2).sum()) for part in parts))


def weights(policy: LocalPolicy) -> list[torch.Tensor]:
    return [p.detach().clone() for p in policy.parameters()]


def log_prob(policy: LocalPolicy, trajectory: Any) -> float:
    return policy.log_probs(Rows.of([trajectory], pad_id=policy.pad_id)).sum().item()


@pytest.mark.parametrize(
    "loss", [LossConfig(kl_coef=0.0), LossConfig(), LossConfig(name="reinforce")], ids=lambda c: c.name
)
def test_what_did_well_becomes_likelier_and_what_did_badly_less_so(policy, loss):
    before = [log_prob(policy, t) for t in TRAJECTORIES]
    learner = Learner(policy, FAST, loss)
    learner.learn(ROWS, temperature=1.0)
    assert learner.steps == 1
    moved = [log_prob(policy, t) - was for t, was in zip(TRAJECTORIES, before, strict=True)]
    assert moved[0] > 0 > moved[1]


@pytest.mark.parametrize("aggregation", ["seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm"])
def test_micro_batches_change_the_memory_and_not_the_gradient(policy, aggregation):
    loss = LossConfig(aggregation=aggregation, max_tokens=8 if aggregation.endswith("norm") else None)
    found = []
    for tokens in (1, 14, 4096):  # one row at a time; two and one; all three
        learner = Learner(policy, OptimConfig(micro_batch_tokens=tokens, grad_accum=2), loss)
        learner.learn(ROWS, temperature=1.0)
        found.append(gradients(policy))
        learner.optimiser.zero_grad()
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], atol=1e-7, rtol=1e-4)


def test_accumulated_batches_are_one_step_with_their_mean_gradient(policy):
    loss = LossConfig(kl_coef=0.0)
    apart = []
    for part in (slice(0, 1), slice(1, 3)):
        learner = Learner(policy, OptimConfig(grad_accum=2), loss)
        learner.learn(ROWS[part], temperature=1.0)
        apart.append(gradients(policy))
        learner.optimiser.zero_grad()
    learner = Learner(policy, OptimConfig(grad_accum=2, max_grad_norm=1e9), loss)
    learner.learn(ROWS[:1], temperature=1.0)
    assert learner.steps == 0
    seen = []
    learner.optimiser.register_step_pre_hook(lambda *_: seen.append(gradients(policy)))
    learner.learn(ROWS[1:], temperature=1.0)
    assert learner.steps == 1
    torch.testing.assert_close(seen[0], [(a + b) / 2 for a, b in zip(*apart, strict=True)])


@pytest.mark.parametrize(("advantages", "times"), [
    # REINFORCE's gradient is linear in the advantage: g for 1, 3g for 3, 5g for 5
    pytest.param([1.0], 1.0, id="one_of_four"),
    pytest.param([1.0, 3.0], 2.0, id="two_of_four"),  # (1 + 3) / 2; over the full count it would be (1 + 3) / 4
    pytest.param([1.0, 3.0, 5.0], 3.0, id="three_of_four"),  # (1 + 3 + 5) / 3
])  # fmt: skip
def test_what_was_accumulated_when_the_data_ends_is_stepped_with_as_the_mean_of_what_there_was(
    policy, advantages, times
):
    loss, [one] = LossConfig(name="reinforce"), TRAJECTORIES[:1]
    unit = Learner(policy, OptimConfig(learning_rate=1e-12, max_grad_norm=1e9), loss)
    unit.learn([one.credited([1.0])], temperature=1.0)  # a whole step, which leaves the weights where they are
    g = [unit.optimiser.state[p]["exp_avg"] / (1 - 0.9) for p in policy.parameters()]  # AdamW's beta of 0.9
    learner = Learner(policy, OptimConfig(grad_accum=4, max_grad_norm=1e9), loss)
    assert learner.flush() is None
    for advantage in advantages:
        learner.learn([one.credited([advantage])], temperature=1.0)
    assert learner.steps == 0
    metrics = learner.flush()
    assert metrics is not None and learner.steps == 1
    assert metrics["policy/grad_norm"] == pytest.approx(times * norm(g), rel=1e-4)
    moments = [learner.optimiser.state[p]["exp_avg"] for p in policy.parameters()]
    torch.testing.assert_close(moments, [(1 - 0.9) * times * part for part in g])


def test_the_ratio_is_against_the_log_probs_that_were_recorded(policy):
    [one] = TRAJECTORIES[:1]
    now = policy.log_probs(Rows.of([one], pad_id=policy.pad_id))[0, 3:].tolist()
    half = dataclasses.replace(one, log_probs=(0.0,) * 3 + tuple(v + math.log(2) for v in now))
    metrics = Learner(policy, FAST, LossConfig(kl_coef=0.0)).learn([half.credited([1.0])], temperature=1.0)
    assert metrics["policy/ratio_mean"] == pytest.approx(0.5, abs=1e-4)  # recorded as twice as likely as they are now


def test_in_bfloat16_the_ratio_is_1_for_the_recorded_log_probs_are_of_another_precision(random_policy_folder):
    torch.manual_seed(0)
    policy = load_policy(random_policy_folder, adapter=NO_DROPOUT, device="cpu", precision="bfloat16")
    metrics = Learner(policy, FAST, LossConfig(kl_coef=0.0)).learn(ROWS[:1], temperature=1.0)
    assert (metrics["policy/ratio_mean"], metrics["policy/ratio_max"], metrics["policy/clip_frac"]) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("trajectory", "advantage"),
    [
        pytest.param(TRAJECTORIES[0], math.nan, id="nan_advantage"),
        pytest.param(
            make_row((1,), (70,), (1,), (-1e30,), 1), -1.0, id="infinite_ratio"
        ),  # exp(1e30) is inf, and nothing clips it where the advantage is negative
    ],
)
def test_a_step_that_is_no_number_is_left_out_and_the_third_in_a_row_stops(policy, trajectory, advantage):
    learner = Learner(policy, FAST, LossConfig(kl_coef=0.0))
    before = weights(policy)
    for _ in range(2):
        learner.learn([trajectory.credited([advantage])], temperature=1.0)
    assert learner.steps == 0
    learner.learn(ROWS, temperature=1.0)  # a good one starts the count anew
    after = weights(policy)
    assert learner.bad_steps == 2 and not all(map(torch.equal, before, after))
    for _ in range(2):
        learner.learn([trajectory.credited([advantage])], temperature=1.0)
    with pytest.raises(DivergedError, match=r"3 times in a row.*lower learning_rate \(now 0.01\)"):
        learner.learn([trajectory.credited([advantage])], temperature=1.0)
    assert all(map(torch.equal, after, weights(policy)))


def test_a_gradient_that_is_no_number_is_left_out_too(policy):
    learner = Learner(policy, FAST, LossConfig(kl_coef=0.0))
    before = weights(policy)
    first = policy.parameters()[0]
    handle = first.register_hook(lambda gradient: gradient * math.inf)
    learner.learn(ROWS, temperature=1.0)
    assert learner.steps == 0
    handle.remove()
    assert learner.bad_steps == 1 and all(map(torch.equal, before, weights(policy)))
    assert all(p.grad is None for p in policy.parameters())


def test_a_learner_with_the_state_of_another_goes_on_as_that_one(random_policy_folder):
    def fresh() -> tuple[LocalPolicy, Learner]:
        torch.manual_seed(0)
        policy = load_policy(random_policy_folder, adapter=NO_DROPOUT, device="cpu")
        return policy, Learner(policy, OptimConfig(grad_accum=2, learning_rate=1e-2), LossConfig())

    (one, first), (two, second) = fresh(), fresh()
    for _ in range(3):  # the third leaves a gradient under way
        first.learn(ROWS, temperature=1.0)
    with torch.no_grad():
        for target, source in zip(two.parameters(), one.parameters(), strict=True):
            target.copy_(source)
    second.load_state(copy.deepcopy(first.state()))  # as a file would be
    for learner in (first, second):
        learner.learn(ROWS[:2], temperature=1.0)
    assert all(map(torch.equal, weights(one), weights(two)))
    assert (second.steps, second.bad_steps) == (first.steps, first.bad_steps) == (2, 0)


def test_the_optimisers_step_is_fused_and_a_run_that_began_without_goes_on_without(policy):
    """The two round differently, so a resumed run keeps what its checkpoint names."""
    learner = Learner(policy, FAST, LossConfig(kl_coef=0.0))
    learner.learn(ROWS, temperature=1.0)
    state = learner.state()
    (group,) = state["optimiser"]["param_groups"]
    assert group["fused"]
    group["fused"] = None
    learner.load_state(state)
    assert learner.optimiser.param_groups[0]["fused"] is None
    assert learner.learn(ROWS, temperature=1.0)["policy/grad_norm"] > 0
    assert learner.steps == 2
