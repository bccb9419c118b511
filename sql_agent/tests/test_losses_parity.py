"""Our losses are verl's and TRL's where both mean the same, on random inputs in float64, gradients too.

TRL's are run as they stand in `GRPOTrainer`, with a stand-in for the trainer that gives the log-probs in the model's
place. Where they differ on purpose, the difference is pinned here and written down in doc/concepts/losses.md.
"""

import math
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from sql_agent.credit.losses import LossInputs, log_prob_ratio
from sql_agent.credit.registry import LOSSES, Aggregation, made
from sql_agent.local.weighted_loss import kl_k3, token_weights, weighted_loss
from sql_agent.tests.test_estimators import of_rollouts
from sql_agent.tests.test_losses import grpo_loss, reinforce_loss

pytestmark = pytest.mark.slow

CLIP, BETA, MAX_TOKENS = 0.2, 0.04, 9
EXACT = {"rtol": 0, "atol": 1e-6}
CHECKED = {**EXACT, "check_dtype": False}
SEEDS = range(5)


class Batch:
    """Random log-probs of 8 sequences of 9 tokens, of which each sampled 1 to 9, in turns; ratios 0.4 to 2.5."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.old = -3 * torch.rand(8, 9, generator=generator, dtype=torch.float64)
        drift = torch.rand(2, 8, 9, generator=generator, dtype=torch.float64)
        self.new = (self.old + math.log(2.5) * (2 * drift[0] - 1)).requires_grad_()
        self.ref = self.old + 2 * drift[1] - 1
        self.mask = torch.rand(8, 9, generator=generator) < 0.6
        self.mask[:, 0] = True
        self.advantages = torch.randn(8, generator=generator, dtype=torch.float64)

    def weights(self, aggregation: Aggregation) -> Tensor:
        return token_weights(self.mask.double(), aggregation, max_tokens=MAX_TOKENS)

    def gradient(self, loss: Tensor) -> Tensor:
        return torch.autograd.grad(loss, self.new)[0]


def verl_config(aggregation: str, **settings: Any) -> Any:
    from verl.workers.config import ActorConfig

    return ActorConfig(
        strategy="fsdp",
        rollout_n=4,
        ppo_micro_batch_size_per_gpu=8,
        clip_ratio=CLIP,
        global_batch_info={"loss_scale_factor": MAX_TOKENS},
        loss_agg_mode=aggregation,
        **settings,
    )


def verl_loss(batch: Batch, aggregation: str, beta: float = 0.0, **settings: Any) -> tuple[Tensor, dict[str, float]]:
    """verl's GRPO loss, put together as its `workers/utils/losses.py` does."""
    from verl.trainer.ppo.core_algos import agg_loss, compute_policy_loss_vanilla, kl_penalty

    config = verl_config(aggregation, **settings)
    advantages = batch.advantages.unsqueeze(1).expand(8, 9)
    loss, metrics = compute_policy_loss_vanilla(batch.old, batch.new, advantages, batch.mask, aggregation, config)
    kl = kl_penalty(batch.new, batch.ref, "low_var_kl")
    return loss + beta * agg_loss(kl, batch.mask, aggregation, **config.global_batch_info), metrics


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("beta", [0.0, BETA])
@pytest.mark.parametrize("aggregation", ["seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm"])
def test_grpo_loss_is_verls(aggregation, beta, seed):
    batch = Batch(seed)
    theirs, metrics = verl_loss(batch, aggregation, beta, clip_ratio_c=1e9)
    ours, stats = grpo_loss(
        batch.new, batch.old, batch.advantages, batch.mask, batch.weights(aggregation),
        clip_ratio=CLIP, kl_coef=beta, ref_log_probs=batch.ref,
    )  # fmt: skip
    assert_close(ours, theirs, **CHECKED)
    assert_close(batch.gradient(ours), batch.gradient(theirs), **EXACT)
    assert_close(stats.clip_frac, metrics["actor/pg_clipfrac"], rtol=0, atol=1e-6)
    assert stats.clipped > 0


def test_verl_caps_the_loss_of_a_bad_token_that_became_likelier_and_we_do_not():
    # advantage -1, ratio e^2 = 7.39: the loss is 7.39 here, 3 there, where the gradient ends
    batch = Batch(0)
    with torch.no_grad():
        batch.new.copy_(batch.old + 2)
    batch.advantages.fill_(-1)
    theirs, _ = verl_loss(batch, "token-mean")
    ours, _ = grpo_loss(
        batch.new, batch.old, batch.advantages, batch.mask, batch.weights("token-mean"), clip_ratio=CLIP
    )
    assert_close((theirs.item(), ours.item()), (3.0, math.exp(2)), **EXACT)
    assert not batch.gradient(theirs).any()


def test_verl_clamps_ratio_and_k3_far_out_and_we_do_not():
    from verl.trainer.ppo.core_algos import kl_penalty

    near, far = torch.tensor([-1.0, -1.0]), torch.tensor([-31.0, 5.0])
    # k3 = e^x - x - 1 with x = -30 and 6: 29 and 396.4, there 20 - 1 = 19 by the clamp at 20, then at most 10
    assert_close(kl_penalty(near, far, "k3"), torch.tensor([10.0, 10.0]))
    assert_close(kl_k3(near, far), torch.tensor([29.0, math.exp(6) - 7]))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_kl_estimator_is_verls(seed):
    from verl.trainer.ppo.core_algos import kl_penalty

    batch = Batch(seed)
    expected, result = kl_penalty(batch.new, batch.ref, "k3"), kl_k3(batch.new, batch.ref)
    assert_close(result, expected, **EXACT)
    assert_close(batch.gradient(result.sum()), batch.gradient(expected.sum()), **EXACT)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("aggregation", ["seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm"])
def test_reinforce_loss_is_verls(aggregation, seed):
    from verl.trainer.ppo.core_algos import compute_policy_loss_reinforce

    batch = Batch(seed)
    theirs, _ = compute_policy_loss_reinforce(
        batch.old, batch.new, batch.advantages.unsqueeze(1), batch.mask, aggregation, verl_config(aggregation)
    )
    ours = reinforce_loss(batch.new, batch.advantages, batch.weights(aggregation))
    assert_close(ours, theirs, **CHECKED)
    assert_close(batch.gradient(ours), batch.gradient(theirs), **EXACT)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("high", [None, 0.03])
@pytest.mark.parametrize(("name", "verls", "settings"), [
    pytest.param("grpo", "vanilla", {"clip_ratio_c": 1e9}, id="clip_higher"),
    pytest.param("gspo", "gspo", {}, id="gspo"),
    pytest.param("cispo", "cispo", {}, id="cispo"),
    pytest.param("sapo", "sapo", {}, id="sapo"),
])  # fmt: skip
def test_losses_that_bound_the_ratio_are_verls(name, verls, settings, high, seed):
    """Two rows have no token. The epsilon is small, since a sequence's mean ratio is near 1."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    batch, aggregation = Batch(seed), "seq-mean-token-mean"
    batch.mask[5:7] = False
    advantages = batch.advantages.unsqueeze(1) * torch.linspace(1, 2, 9)  # with rewards of turns they differ in a row
    config = verl_config(aggregation, clip_ratio_low=0.02, clip_ratio_high=high or 0.02, **settings)
    theirs, metrics = get_policy_loss_fn(verls)(batch.old, batch.new, advantages, batch.mask, aggregation, config)
    inputs = LossInputs(batch.new, batch.old, advantages, batch.mask)
    loss = made(LOSSES[name], SimpleNamespace(clip_ratio=0.02, clip_ratio_high=high))
    ours, stats = weighted_loss(loss, inputs, batch.weights(aggregation))
    assert_close(ours, theirs, **CHECKED)
    assert_close(batch.gradient(ours), batch.gradient(theirs), **EXACT)
    assert_close(stats.clip_frac, metrics["actor/pg_clipfrac"], rtol=0, atol=1e-6)
    assert (stats.clipped > 0) is (name != "sapo")


@pytest.mark.parametrize("aggregation", ["seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm"])
def test_rows_without_a_token_count_for_nothing_as_verls_do_unless_it_is_told_the_number_of_rows(aggregation):
    from verl.trainer.ppo.core_algos import agg_loss

    batch = Batch(0)
    batch.mask[5:7] = False
    ours = (batch.weights(aggregation) * batch.ref).sum()
    theirs = agg_loss(batch.ref, batch.mask, aggregation, loss_scale_factor=MAX_TOKENS)
    told = agg_loss(batch.ref, batch.mask, aggregation, loss_scale_factor=MAX_TOKENS, global_batch_size=8)
    assert_close(ours, theirs, **CHECKED)
    assert_close(told, ours if aggregation == "token-mean" else ours * 6 / 8, **CHECKED)


def test_verl_divides_by_the_width_of_the_batch_where_we_ask_for_the_constant():
    from verl.trainer.ppo.core_algos import agg_loss

    ones, aggregation = torch.ones(2, 4), "seq-mean-token-sum-norm"
    # 4 / 4 tokens; padded to a width of 8: 4 / 8
    padded, mask = torch.nn.functional.pad(ones, (0, 4)), torch.nn.functional.pad(ones, (0, 4))
    assert_close(
        (agg_loss(ones, ones, aggregation), agg_loss(padded, mask, aggregation)), (torch.tensor(1.0), torch.tensor(0.5))
    )
    for values in (ones, padded):
        assert_close((token_weights(values, aggregation, max_tokens=4) * values).sum(), torch.tensor(1.0))


@pytest.mark.parametrize("aggregation", ["seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_verl_multiplies_by_the_mask_in_its_means_over_sequences(aggregation):
    from verl.trainer.ppo.core_algos import agg_loss

    batch = Batch(0)
    assert agg_loss(batch.ref.masked_fill(~batch.mask, math.nan), batch.mask, aggregation).isnan()


def test_the_policys_own_log_probs_as_old_ones_have_no_gradient_in_verl_and_reinforces_here():
    batch = Batch(0)
    batch.old = batch.new
    theirs, _ = verl_loss(batch, "token-mean")
    ours, _ = grpo_loss(
        batch.new, batch.new, batch.advantages, batch.mask, batch.weights("token-mean"), clip_ratio=CLIP
    )
    assert not batch.gradient(theirs).any()
    reinforced = reinforce_loss(batch.new, batch.advantages, batch.weights("token-mean"))
    assert_close(batch.gradient(ours), batch.gradient(reinforced), **EXACT)


def trl_trainer(
    tmp_path, loss_type: str = "grpo", beta: float = 0.0, *, reweighted_kl: bool = False, **settings: Any
) -> Any:
    """What TRL's methods read of the trainer. Its settings are TRL's own defaults but for those given."""
    from trl import GRPOConfig

    args = GRPOConfig(
        str(tmp_path), loss_type=loss_type, beta=beta, epsilon=CLIP, max_completion_length=MAX_TOKENS,
        per_device_train_batch_size=8, num_generations=8, use_cpu=True, bf16=False, report_to="none",
        use_bias_correction_kl=reweighted_kl, **settings,
    )  # fmt: skip
    return SimpleNamespace(
        args=args,
        loss_type=args.loss_type,
        beta=args.beta,
        epsilon_low=args.epsilon,
        epsilon_high=args.epsilon,
        scale_rewards=args.scale_rewards,
        max_completion_length=args.max_completion_length,
        importance_sampling_level=args.importance_sampling_level,
        top_entropy_quantile=args.top_entropy_quantile,
        off_policy_mask_threshold=args.off_policy_mask_threshold,
        multi_objective_aggregation=args.multi_objective_aggregation,
        mask_truncated_completions=args.mask_truncated_completions,
        num_iterations=args.num_iterations,
        num_generations=args.num_generations,
        current_gradient_accumulation_steps=args.gradient_accumulation_steps,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        model=SimpleNamespace(training=True, is_gradient_checkpointing=False),
        accelerator=SimpleNamespace(
            device=torch.device("cpu"), num_processes=1, process_index=0,
            gather=lambda values: values, reduce=lambda values, reduction: values,
        ),
        _metrics={"train": defaultdict(list)},
    )  # fmt: skip


def trl_loss(trainer: Any, batch: Batch, rows: slice = slice(None), *, recorded: bool = True) -> Tensor:
    """`GRPOTrainer._compute_loss` on some rows of the batch, with what was not sampled as tool results."""
    from trl import GRPOTrainer

    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (batch.new[rows], torch.zeros(8, 9)[rows], None)
    inputs = {
        "prompt_ids": torch.zeros(8, 2)[rows],
        "prompt_mask": torch.ones(8, 2)[rows],
        "completion_ids": torch.zeros(8, 9)[rows],
        "completion_mask": torch.ones(8, 9)[rows],
        "tool_mask": batch.mask.double()[rows],
        "advantages": batch.advantages[rows],
        "ref_per_token_logps": batch.ref[rows],
        "num_items_in_batch": batch.mask.sum(),
    }
    if recorded:
        inputs["old_per_token_logps"] = batch.old[rows]
    return GRPOTrainer._compute_loss(trainer, trainer.model, inputs)


TRL_NAMES = [
    ("seq-mean-token-mean", "grpo"),
    ("token-mean", "bnpo"),
    ("token-mean", "dapo"),
    ("seq-mean-token-sum-norm", "dr_grpo"),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("beta", [0.0, BETA])
@pytest.mark.parametrize(("aggregation", "loss_type"), TRL_NAMES)
def test_grpo_loss_is_trls(tmp_path, aggregation, loss_type, beta, seed):
    batch, trainer = Batch(seed), trl_trainer(tmp_path, loss_type, beta)
    theirs = trl_loss(trainer, batch)
    ours, stats = grpo_loss(
        batch.new, batch.old, batch.advantages, batch.mask, batch.weights(aggregation),
        clip_ratio=CLIP, kl_coef=beta, ref_log_probs=batch.ref if beta else None,
    )  # fmt: skip
    assert_close(ours, theirs, **CHECKED)
    assert_close(batch.gradient(ours), batch.gradient(theirs), **EXACT)
    assert_close([stats.clip_frac], trainer._metrics["train"]["clip_ratio/region_mean"], **EXACT)
    assert_close([stats.kl_k3] if beta else [], trainer._metrics["train"]["kl"], **EXACT)


def test_trls_default_multiplies_the_kl_by_the_ratio_and_we_do_not(tmp_path):
    batch, weights = Batch(0), Batch(0).weights("seq-mean-token-mean")
    theirs = trl_loss(trl_trainer(tmp_path, beta=BETA, reweighted_kl=True), batch)
    ours, _ = grpo_loss(
        batch.new,
        batch.old,
        batch.advantages,
        batch.mask,
        weights,
        clip_ratio=CLIP,
        kl_coef=BETA,
        ref_log_probs=batch.ref,
    )
    extra = BETA * (log_prob_ratio(batch.new, batch.old) - 1) * kl_k3(batch.new, batch.ref)
    assert_close(theirs, ours + (weights * extra).sum(), **CHECKED)
    assert not torch.isclose(theirs, ours, **EXACT)


def test_without_recorded_log_probs_trl_takes_the_policys_own_and_so_do_we(tmp_path):
    batch = Batch(0)
    theirs = trl_loss(trl_trainer(tmp_path), batch, recorded=False)
    weights = batch.weights("seq-mean-token-mean")
    ours, _ = grpo_loss(batch.new, batch.new, batch.advantages, batch.mask, weights, clip_ratio=CLIP)
    assert_close(ours, theirs, **CHECKED)
    assert_close(batch.gradient(ours), batch.gradient(theirs), **EXACT)


@pytest.mark.parametrize(
    ("aggregation", "loss_type", "adds_up"),
    [
        ("seq-mean-token-mean", "grpo", True),  # micro-batches of as many rows, each with a token
        ("seq-mean-token-sum-norm", "dr_grpo", True),
        ("token-mean", "dapo", True),
        ("token-mean", "bnpo", False),  # a mean of each micro-batch's mean: their tokens weigh differently
    ],
)
def test_micro_batches_add_up_as_trls_do_but_for_bnpo(tmp_path, aggregation, loss_type, adds_up):
    batch, trainer = Batch(0), trl_trainer(tmp_path, loss_type, BETA, gradient_accumulation_steps=4)
    micro_batches = [slice(start, start + 2) for start in range(0, 8, 2)]
    theirs = sum(trl_loss(trainer, batch, rows) for rows in micro_batches)
    weights = batch.weights(aggregation)
    ours = sum(
        grpo_loss(
            batch.new[rows], batch.old[rows], batch.advantages[rows], batch.mask[rows], weights[rows],
            clip_ratio=CLIP, kl_coef=BETA, ref_log_probs=batch.ref[rows],
        )[0]
        for rows in micro_batches
    )  # fmt: skip
    assert isinstance(theirs, Tensor) and isinstance(ours, Tensor)
    assert torch.isclose(ours, theirs, **EXACT).item() is adds_up


@pytest.mark.parametrize(
    ("aggregation", "loss_type"), [("seq-mean-token-mean", "grpo"), ("seq-mean-token-sum-norm", "dr_grpo")]
)
def test_trl_counts_rows_without_a_token_as_sequences_and_we_do_not(tmp_path, aggregation, loss_type):
    batch = Batch(0)
    batch.mask[5:7] = False
    theirs = trl_loss(trl_trainer(tmp_path, loss_type), batch)
    ours, _ = grpo_loss(batch.new, batch.old, batch.advantages, batch.mask, batch.weights(aggregation), clip_ratio=CLIP)
    assert_close(theirs, ours * 6 / 8, **CHECKED)


@pytest.mark.parametrize("anything", [math.nan, -math.inf])
def test_trl_multiplies_by_the_mask_so_what_was_not_sampled_spoils_its_loss_and_not_ours(tmp_path, anything):
    batch = Batch(0)
    batch.old[~batch.mask] = anything
    ours, _ = grpo_loss(
        batch.new, batch.old, batch.advantages, batch.mask, batch.weights("token-mean"), clip_ratio=CLIP
    )
    assert ours.isfinite()
    assert trl_loss(trl_trainer(tmp_path, "bnpo"), batch).isnan()


def trl_advantages(tmp_path, rewards: list[float | None], scale_rewards: str) -> list[float]:
    """`GRPOTrainer._generate_and_score_completions` with one token of each, and these rewards."""
    from trl import GRPOTrainer

    count = len(rewards)
    judged = torch.tensor([[math.nan if reward is None else reward] for reward in rewards], dtype=torch.float64)
    trainer = trl_trainer(tmp_path, scale_rewards=scale_rewards)
    trainer.__dict__.update(
        num_generations=count,
        environment_factories=None, environments=None, tools=None, ref_model=None,
        _is_vlm=False, pad_to_multiple_of=None, log_multimodal=False,
        _tokenizer=SimpleNamespace(pad_token_id=0),
        _generate=lambda _: ([[1]] * count, [[2]] * count, None, [""] * count, None, {}, None, None),
        _calculate_rewards=lambda *_: judged,
        reward_weights=torch.ones(1, dtype=torch.float64), reward_funcs=[None], reward_func_names=["judge"],
        _logs=defaultdict(list, rewards=defaultdict(list)), _pending_extra_logs={}, _pending_metrics={},
    )  # fmt: skip
    output = GRPOTrainer._generate_and_score_completions(trainer, [{"prompt": "?"}] * count)
    return output["advantages"].tolist()


GROUPS = [[1.0, -1.0, -0.8, -0.2], [1.0, None, -0.3], [None, 0.5], [0.1, 0.1, 0.1]]


@pytest.mark.parametrize("rewards", GROUPS)
def test_centred_advantages_are_trls_with_the_unjudged_left_out(tmp_path, rewards):
    theirs = trl_advantages(tmp_path, rewards, "none")
    ours = of_rollouts(rewards, scale=False)
    np.testing.assert_allclose([value or 0.0 for value in ours], theirs, **EXACT)


@pytest.mark.parametrize("rewards", GROUPS)
def test_scaled_advantages_are_trls_but_for_its_larger_eps(tmp_path, rewards):
    theirs = trl_advantages(tmp_path, rewards, "group")
    std = float(np.std([reward for reward in rewards if reward is not None], ddof=1)) if len(rewards) > 2 else 1.0
    # ours / (std + 1e-6) there / (std + 1e-4): 1e-4 less of it at a std of 1
    ours = [(value or 0.0) * (std + 1e-6) / (std + 1e-4) for value in of_rollouts(rewards)]
    np.testing.assert_allclose(ours, theirs, **EXACT)
