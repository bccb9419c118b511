"""The keys of verl's that `--set verl.KEY=VALUE` may give; every other one is refused.

verl accepts hundreds of keys, and under masked rows, rewards of turns and an LLM proxy in front of its servers many of
them do nothing or harm: `algorithm.use_kl_in_reward` adds the KL of each token to the reward of its turn,
`rollout.top_k` samples from another policy than is trained. So a key is refused until somebody has found out that it
does here what verl's page says, and has added it with the module of verl that reads it.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

_CORE, _LOSSES, _TRAINER = "verl.trainer.ppo.core_algos", "verl.workers.utils.losses", "verl.trainer.ppo.ray_trainer"
_ENGINE, _OPTIMIZER = "verl.workers.engine.fsdp.transformer_impl", "verl.workers.config.optimizer"
_WORKERS, _SERVER = "verl.workers.engine_workers", "verl.workers.rollout.vllm_rollout.vllm_async_server"
_MODEL, _CORRECTION = "verl.workers.config.model", "verl.trainer.ppo.rollout_corr_helper"

# Each key, the module of verl 0.9.1 that reads it, and what it does. A key that ends with a dot stands for all keys
# below it.
ALLOWED_KEYS = {
    "actor_rollout_ref.actor.calculate_entropy": (_TRAINER, "Puts the entropy into the update's metrics."),
    "actor_rollout_ref.actor.clip_ratio_c": (
        _CORE,
        "Dual clip: bounds the loss of a negative advantage (verl's default 3.0).",
    ),
    "actor_rollout_ref.actor.fsdp_config.offload_policy": (
        _ENGINE,
        "FSDP2 only: keeps parameters, gradients and optimiser in CPU memory while it trains.",
    ),
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload": (
        _ENGINE,
        "Keeps the optimiser's state in CPU memory between updates.",
    ),
    "actor_rollout_ref.actor.fsdp_config.param_offload": (
        _ENGINE,
        "Keeps the parameters in CPU memory between updates.",
    ),
    "actor_rollout_ref.actor.fsdp_config.reshard_after_forward": (
        _ENGINE,
        "Frees gathered parameters after the forward pass: less memory, more communication.",
    ),
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile": (
        _ENGINE,
        "Compiles parts of the update with torch.compile.",
    ),
    "actor_rollout_ref.actor.kl_loss_type": (
        _LOSSES,
        "Estimator of the KL term: kl (k1), abs, mse (k2), low_var_kl (k3) or full.",
    ),
    "actor_rollout_ref.actor.loss_scale_factor": (
        _TRAINER,
        "Divisor of the aggregation seq-mean-token-sum-norm; null: the response length.",
    ),
    "actor_rollout_ref.actor.optim.betas": (_OPTIMIZER, "AdamW's betas."),
    "actor_rollout_ref.actor.optim.lr_scheduler_type": (_ENGINE, "Schedule of the learning rate: constant or cosine."),
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": (_ENGINE, "Share of the steps that warm up."),
    "actor_rollout_ref.actor.optim.min_lr_ratio": (
        _ENGINE,
        "Lowest learning rate of the cosine schedule, as a share of the highest.",
    ),
    "actor_rollout_ref.actor.optim.num_cycles": (_ENGINE, "Cycles of the cosine schedule."),
    "actor_rollout_ref.actor.optim.optimizer": (_OPTIMIZER, "Name of the optimiser's class."),
    "actor_rollout_ref.actor.optim.optimizer_impl": (_OPTIMIZER, "Module that the optimiser is imported from."),
    "actor_rollout_ref.actor.optim.override_optimizer_config": (_OPTIMIZER, "Further arguments of the optimiser."),
    "actor_rollout_ref.actor.optim.zero_indexed_step": (_ENGINE, "Whether the schedule counts steps from 0."),
    "actor_rollout_ref.actor.policy_loss.clip_cov_lb": (_CORE, "loss.name=clip_cov: lower bound of the covariance."),
    "actor_rollout_ref.actor.policy_loss.clip_cov_ratio": (
        _CORE,
        "loss.name=clip_cov: share of tokens that are clipped.",
    ),
    "actor_rollout_ref.actor.policy_loss.clip_cov_ub": (_CORE, "loss.name=clip_cov: upper bound of the covariance."),
    "actor_rollout_ref.actor.policy_loss.dro_beta": (_CORE, "loss.name=dro: weight of the quadratic penalty, above 0."),
    "actor_rollout_ref.actor.policy_loss.kl_cov_ratio": (_CORE, "loss.name=kl_cov: share of tokens with a KL penalty."),
    "actor_rollout_ref.actor.policy_loss.ppo_kl_coef": (_CORE, "loss.name=kl_cov: weight of that penalty."),
    "actor_rollout_ref.actor.ppo_epochs": (_TRAINER, "Passes over the rows of a step."),
    "actor_rollout_ref.actor.shuffle": (_TRAINER, "Takes the rows in another order in each pass."),
    "actor_rollout_ref.actor.tau_neg": (_CORE, "SAPO's temperature of negative advantages."),
    "actor_rollout_ref.actor.tau_pos": (_CORE, "SAPO's temperature of positive advantages."),
    "actor_rollout_ref.actor.use_kl_loss": (_LOSSES, "Computes the KL term although loss.kl_coef is 0."),
    "actor_rollout_ref.model.enable_activation_offload": (_ENGINE, "Keeps activations in CPU memory."),
    "actor_rollout_ref.model.exclude_modules": (_ENGINE, "Layers that get no adapter."),
    "actor_rollout_ref.model.fused_kernel_options.impl_backend": (
        _ENGINE,
        "Kernels of use_fused_kernels: torch, triton or liger.",
    ),
    "actor_rollout_ref.model.override_config.": (
        _MODEL,
        "Fields of the model's config. The attention only on GPUs without engine.shared_prompts.",
    ),
    "actor_rollout_ref.model.use_fused_kernels": (_ENGINE, "Fuses the output layer with the log-probs: less memory."),
    "actor_rollout_ref.ref.fsdp_config.param_offload": (
        _ENGINE,
        "Keeps the reference policy in CPU memory; FSDP2 does so in any case.",
    ),
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": (
        _WORKERS,
        "Most tokens of one pass of the reference policy.",
    ),
    "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes": (
        _WORKERS,
        "Size of the pieces in which weights are sent to vLLM.",
    ),
    "actor_rollout_ref.rollout.cudagraph_capture_sizes": (_SERVER, "Batch sizes for which vLLM captures CUDA graphs."),
    "actor_rollout_ref.rollout.disable_log_stats": (_SERVER, "Whether vLLM prints no statistics."),
    "actor_rollout_ref.rollout.enable_chunked_prefill": (_SERVER, "Whether vLLM splits long prompts."),
    "actor_rollout_ref.rollout.enable_prefix_caching": (_SERVER, "Whether vLLM keeps what prompts share."),
    "actor_rollout_ref.rollout.enforce_eager": (_SERVER, "Turns CUDA graphs off: a faster start, slower sampling."),
    "actor_rollout_ref.rollout.engine_kwargs.vllm.": (
        _SERVER,
        "Arguments of vllm serve. Address, key, middleware, context length and the form of log-probs stay as they are.",
    ),
    "actor_rollout_ref.rollout.free_cache_engine": (_SERVER, "Whether vLLM frees its KV cache during the update."),
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": (
        _WORKERS,
        "Most tokens of one pass that computes log-probs.",
    ),
    "actor_rollout_ref.rollout.max_num_batched_tokens": (_SERVER, "Most tokens of one pass of vLLM."),
    "actor_rollout_ref.rollout.scheduling_policy": (_SERVER, "vLLM's order of requests: fcfs or priority."),
    "algorithm.rollout_correction.rollout_is": (
        _CORRECTION,
        "Truncated importance sampling between sampler and trainer: token or sequence.",
    ),
    "algorithm.rollout_correction.rollout_is_batch_normalize": (
        _CORRECTION,
        "Scales the importance weights of a batch to mean 1.",
    ),
    "algorithm.rollout_correction.rollout_is_threshold": (_CORRECTION, "Upper bound of the importance weights."),
    "data.shuffle": ("verl.trainer.ppo.utils", "false: tasks in the file's order."),
    "trainer.balance_batch": (_TRAINER, "Gives every worker rows with about as many tokens."),
    "trainer.experiment_name": (_TRAINER, "Name of the run in a tracker."),
    "trainer.project_name": (_TRAINER, "Name of the project in a tracker."),
    "trainer.ray_wait_register_center_timeout": (_TRAINER, "Seconds that workers may take to start."),
}

_VLLM = "actor_rollout_ref.rollout.engine_kwargs.vllm."
# Keys below an allowed one that are refused: the run relies on the address, the guard, the length and the sampling of
# its model servers.
FIXED_BELOW = tuple(
    f"{_VLLM}{name}."
    for name in ("api_key", "generation_config", "host", "logprobs_mode", "max_model_len", "middleware", "port")
)


def check_keys(keys: Iterable[str], *, packed: bool) -> None:
    """Check the keys of a run.

    Args:
        packed: the workers compute the rows of a group together (`sql_agent.verl_side.plugin.packed_engine`).
    Raises:
        ValueError: a key may not be set; the message names the allowed key that is most like it.
    """
    for key in keys:
        if packed and "attn_implementation" in key:  # any other than ours lets the rows of a group see one another
            raise ValueError(
                f"verl.{key} chooses the attention, and on a CPU, or with engine.shared_prompts, the workers compute "
                "the rows of a group together, with an attention of their own; leave the key out, or train on GPUs "
                "without engine.shared_prompts"
            )
        if key.endswith("ulysses_sequence_parallel_size"):
            raise ValueError(
                f"verl.{key} splits each row over several workers (sequence parallelism), which the engine of a CPU "
                "cannot, since it computes the rows of a group together, and which was not tried on GPUs; share the "
                "rows themselves: cluster.workers_per_node on a CPU, engine.n_gpus on GPUs"
            )
        below = any(key.startswith(known) and key != known for known in ALLOWED_KEYS if known.endswith("."))
        fixed = f"{key.replace('-', '_')}.".startswith(FIXED_BELOW)  # vLLM takes its arguments in both spellings
        if fixed or not (below or key in ALLOWED_KEYS):
            raise ValueError(
                f"verl.{key} is not known to work here, and some keys of verl silently do nothing or harm; the key "
                f"most like it that may be set is verl.{_nearest(key)} (all: doc/reference/verl_keys.md)"
            )


def _nearest(key: str) -> str:
    # `agentgrpo.spelling` may find none; here one is always named
    nearest = max(ALLOWED_KEYS, key=lambda known: SequenceMatcher(None, key, known).ratio())
    return f"{nearest}NAME" if nearest.endswith(".") else nearest
