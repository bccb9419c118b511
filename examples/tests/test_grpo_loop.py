"""The readable loop is the trainer: equal rollouts for equal seeds, and equal weights for equal rollouts."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from agentgrpo.chat.replies import Conversation
from sql_agent.environments.dbbench import DbBench, generated
from sql_agent.local.datatypes import Sampling
from sql_agent.local.learner import Learner
from sql_agent.local.policy import LocalPolicy, load_model, load_policy
from sql_agent.local.rollouts import Player
from sql_agent.settings.local import AdapterConfig, LossConfig, OptimConfig

FILE = Path(__file__).parents[1] / "grpo_loop" / "loop.py"
TASKS = generated(3, "train", [], seed=5)


@pytest.fixture(scope="module")
def loop():
    spec = importlib.util.spec_from_file_location("grpo_loop", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def whole(folder: Path) -> LocalPolicy:
    return LocalPolicy(load_model(folder, device="cpu"), AutoTokenizer.from_pretrained(folder))


def with_adapter(folder: Path) -> LocalPolicy:
    torch.manual_seed(1)
    return load_policy(folder, adapter=AdapterConfig(r=4, dropout=0.0), device="cpu")


@pytest.fixture(scope="module")
def rollouts(loop, small_policy):
    policy = whole(small_policy)
    torch.manual_seed(7)
    with DbBench("strict") as environment:
        conversation = Conversation(policy.tokenizer, environment.tools)
        tasks = [task for task in TASKS for _ in range(loop.GROUP_SIZE)]
        return loop.play(tasks, policy, environment, conversation, Sampling(temperature=1.0))


def test_it_can_be_read():
    assert len(FILE.read_text().splitlines()) <= 200


def test_its_rollouts_are_those_of_the_local_trainer(loop, rollouts, small_policy):
    policy = whole(small_policy)
    torch.manual_seed(7)
    with DbBench("strict") as environment:
        tasks = [rollout.task for rollout in rollouts]
        theirs = Player(policy, environment, loop.LIMITS).play(tasks, [Sampling(temperature=1.0)] * len(tasks))
    assert [rollout.reward for rollout in rollouts] == [record.score.value for record, _ in theirs]
    assert [rollout.row([0.5]) for rollout in rollouts] == [row.credited([0.5]) for _, row in theirs]
    assert {rollout.reward for rollout in rollouts} == {0.0, 1.0}  # there is something to learn


@pytest.mark.parametrize("kind", [whole, with_adapter])
def test_its_update_is_that_of_the_local_trainer(loop, rollouts, small_policy, kind):
    """Three groups of eight; the sums of a step are taken in another order, so weights differ by rounding."""
    ours, theirs = kind(small_policy), kind(small_policy)
    groups = [rollouts[start : start + loop.GROUP_SIZE] for start in range(0, len(rollouts), loop.GROUP_SIZE)]
    rows = [row for group in groups for row in loop.credit(group)]
    # SGD: the step of AdamW is the sign of a gradient where it is small, which rounding may turn
    loss = loop.update(ours, torch.optim.SGD(ours.parameters(), lr=1.0), rows)
    before = [parameter.detach().clone() for parameter in theirs.parameters()]
    learner = Learner(theirs, OptimConfig(max_grad_norm=loop.MAX_GRAD_NORM), LossConfig(beta=0))
    learner.optimiser = torch.optim.SGD(theirs.parameters(), lr=1.0)
    metrics = learner.learn(rows, temperature=1.0)
    assert loss == pytest.approx(metrics["policy/loss"], abs=1e-6)
    for own, their in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(own, their, rtol=0, atol=1e-6)
    assert (
        max(float((now - then).detach().abs().max()) for now, then in zip(theirs.parameters(), before, strict=True))
        > 1e-2
    )
