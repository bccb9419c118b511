"""An estimator, a loss and a task sampler are added, as an exercise: each a class or a function, and a row."""

import functools
import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from agentgrpo.settings import Settings
from sql_agent.credit.losses import LossInputs, LossOutput, log_prob_ratio
from sql_agent.credit.registry import ESTIMATORS, LOSSES, VERLS, VERLS_ONLY, CreditSettings, Group, made, scored
from sql_agent.environments.rows import RowTask
from sql_agent.local.presets import Preset, estimator_of
from sql_agent.local.weighted_loss import token_weights, weighted_loss
from sql_agent.names import SAMPLERS
from sql_agent.settings.load import load_config
from sql_agent.settings.local import BatchGrpoConfig, LossConfig
from sql_agent.source.dynamic_sampling import credit_group
from sql_agent.tests.records import make_outcome, make_result
from sql_agent.verl_side.config import LOSS, Files, to_verl, worker_environment


class Signed(Settings):
    """Credits a rollout with 1 above its group's mean, and -1 below it."""

    def __call__(self, rewards: Group) -> list[list[float] | None]:
        known = [sum(turns) for turns in scored(rewards)]
        mean = sum(known) / len(known)
        return [turns and [float((sum(turns) > mean) - (sum(turns) < mean))] for turns in rewards]  # type: ignore[misc]


class Pulled(CreditSettings):
    """REINFORCE's loss, clipped where the ratio is; `kl_coef` is another setting that it reads."""

    kl_coef: float = 0.0

    def __call__(self, inputs: LossInputs) -> LossOutput:
        ratio = log_prob_ratio(inputs.log_probs, inputs.old_log_probs)
        return LossOutput(-inputs.advantages * inputs.log_probs, ratio > 1 + self.clip_ratio)


def hardest_first(tasks, seed, epoch):
    """The tasks with the longest question first."""
    return sorted(tasks, key=lambda task: -len(task.question))


@pytest.fixture(autouse=True)
def rows(monkeypatch):
    monkeypatch.setitem(SAMPLERS, "hardest_first", f"{__name__}:hardest_first")
    monkeypatch.setitem(ESTIMATORS, "signed", f"{__name__}:Signed")
    monkeypatch.setitem(LOSSES, "pulled", f"{__name__}:Pulled")


def test_a_row_is_a_setting_of_both_trainers():
    main = load_config(None, ["loss.estimator=signed", "loss.name=pulled", "loss.clip_ratio=0.3"]).loss
    local = LossConfig(estimator="signed", name="pulled")
    assert made(ESTIMATORS[main.estimator], main)([[1.0], [0.0], None, [0.5]]) == [[1], [-1], None, [0]]
    assert estimator_of(local)([[1.0], [0.0], None, [0.5]]) == [[1], [-1], None, [0]]
    assert made(LOSSES[main.name], main) == Pulled(clip_ratio=0.3)
    assert made(LOSSES[local.name], local) == Pulled(kl_coef=0.04)


def test_tasks_are_drawn_in_the_order_of_a_row():
    tasks = [RowTask(name, "k", {"prompt": name}) for name in ("a", "long", "longest", "mid")]
    cfg = BatchGrpoConfig(run_dir=Path("x"), batch_size=3, num_epochs=2, sampler="hardest_first")
    batches = [[task.id for _, task in Preset(cfg, tasks, []).draw(batch)] for batch in range(4)]
    assert batches == [["longest", "long", "mid"], ["a"]] * 2


def test_a_rollout_of_the_main_job_gets_its_advantage():
    group = [make_result("g", make_outcome(reward)) for reward in (1.0, 0.0, 0.5)]
    credit_group(group, Signed())
    assert [result.advantage for result in group] == [1.0, -1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "verls"), [("grpo", "vanilla"), ("reinforce", "reinforce"), ("pulled", "pulled"), ("gspo", "gspo")]
)
def test_verl_takes_its_own_clipped_loss_and_otherwise_ours(name, verls, tmp_path):
    cfg = load_config(None, [f"loss.name={name}", "optim.learning_rate=1e-4"])
    tree = to_verl(cfg, Files(tmp_path, tmp_path, tmp_path), cpu=False)
    assert tree["actor_rollout_ref"]["actor"]["policy_loss"] == {"loss_mode": verls}


def test_local_training_has_no_loss_that_only_verl_computes():
    with pytest.raises(ValueError, match="unknown name 'geo_mean'; known: "):
        LossConfig(name="geo_mean")


def test_every_loss_of_verls_can_be_named():
    core = pytest.importorskip("verl.trainer.ppo.core_algos")
    assert {*VERLS.values(), *VERLS_ONLY} == core.POLICY_LOSS_REGISTRY.keys() - {"bypass_mode", "reinforce"}


def test_a_loss_that_verl_averages_in_its_own_way_is_not_given_another():
    with pytest.raises(ValueError, match=r"loss.aggregation is token-mean; give loss.aggregation=seq-mean-token-mean"):
        load_config(None, ["loss.name=sapo"])
    assert load_config(None, ["loss.name=sapo", "loss.aggregation=seq-mean-token-mean"]).loss.name == "sapo"


@pytest.mark.parametrize("setting", ["loss.name=grop", "loss.estimator=grop"])
def test_a_misspelt_row_is_refused_with_the_known_ones(setting):
    with pytest.raises(ValueError, match=r"unknown name 'shufled'; known: hardest_first, in_order, shuffled"):
        BatchGrpoConfig(run_dir=Path("x"), sampler="shufled")
    with pytest.raises(ValueError, match=r"unknown name 'grop'; known: .*grpo, .*reinforce.*; did you mean grpo"):
        load_config(None, [setting])


AGGREGATIONS = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


@pytest.mark.slow  # imports verl
@pytest.mark.parametrize(("name", "aggregation"), [*itertools.product(["reinforce", "pulled"], AGGREGATIONS)])
def test_a_loss_is_the_same_in_verl_as_in_the_local_trainer(name, aggregation):
    from sql_agent.verl_side.plugin.credit import policy_loss

    generator = torch.Generator().manual_seed(0)
    new, old, advantages = -torch.rand(3, 5, 7, generator=generator, dtype=torch.float64)
    mask = torch.rand(5, 7, generator=generator) < 0.6
    new.requires_grad_()
    config = SimpleNamespace(clip_ratio=0.2, kl_coef=0.0, global_batch_info={"loss_scale_factor": 9})
    inputs = {"old_log_prob": old, "log_prob": new, "advantages": advantages, "response_mask": mask}
    registered = functools.partial(policy_loss, made(LOSSES[name], config))  # as the plugin registers it
    theirs, metrics = registered(**inputs, loss_agg_mode=aggregation, config=config, rollout_is_weights=None)
    weights = token_weights(mask.double(), aggregation, max_tokens=9)
    ours, stats = weighted_loss(made(LOSSES[name], config), LossInputs(new, old, advantages, mask), weights)
    assert_close(ours, theirs)
    for loss in (theirs, ours):
        (gradient,) = torch.autograd.grad(loss, new)
        assert not gradient[~mask].any()
    assert_close(metrics.get("actor/pg_clipfrac", 0.0), stats.clip_frac)


@pytest.mark.slow  # imports verl
def test_a_loss_reads_the_settings_of_the_run_in_verls_processes(monkeypatch):
    """`kl_coef` has another name in verl's own config, which so cannot fill it."""
    from verl.trainer.ppo import core_algos

    from sql_agent.verl_side.plugin import credit

    cfg = load_config(None, ["loss.kl_coef=0.5", "loss.clip_ratio=0.3"])
    monkeypatch.setenv(LOSS, worker_environment(cfg, cpu=False)[LOSS])
    monkeypatch.setattr(core_algos, "POLICY_LOSS_REGISTRY", dict(core_algos.POLICY_LOSS_REGISTRY))
    credit.register()
    assert core_algos.get_policy_loss_fn("pulled").args == (Pulled(clip_ratio=0.3, kl_coef=0.5),)
