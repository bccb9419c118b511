"""Defines the groups of settings that only the main job has. Importing this module is instant."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from agentgrpo.flags import FlagName
from agentgrpo.passwords import BackendSpec
from agentgrpo.settings import Settings, VerlKey
from agentgrpo.spelling import did_you_mean
from sql_agent.credit.registry import Aggregation, CreditSettings, EstimatorName, MainLossName
from sql_agent.names import FUNCTION, JUDGE, PRESETS, RANKING, label
from sql_agent.settings.groups import Judge, JudgeConfig, PrecisionName, SharedPrompts, address

RESERVED_LABELS = {"mean", "std", "unjudged_frac", "correctness", "base", "shaping", JUDGE, RANKING, *PRESETS}
"""Numbers that are logged as `reward/NAME` and do not belong to a function."""


def known_rewards(reward: str | dict[str, float]) -> str | dict[str, float]:
    weights = {reward: 1.0} if isinstance(reward, str) else reward
    for name in weights:
        if name not in (*PRESETS, JUDGE, RANKING) and not FUNCTION.fullmatch(name):
            raise ValueError(
                f"unknown reward preset {name!r}; known: {', '.join(sorted(PRESETS))}, {JUDGE}, {RANKING}, or a "
                f"function of yours, FILE.py:NAME or module:NAME{did_you_mean(name, [*PRESETS, JUDGE, RANKING])}"
            )
    labels = [label(name) for name in weights]
    for name in weights:
        if labels.count(label(name)) > 1 or (FUNCTION.fullmatch(name) and label(name) in RESERVED_LABELS):
            raise ValueError(f"{name} would be logged as reward/{label(name)}, the name of another number; rename it")
    if not any(weights.values()):
        raise ValueError("no reward has a weight, so nothing would be learnt; name one, as agentbench")
    return next(iter(weights)) if list(weights.values()) == [1.0] else weights


RewardNames = Annotated[str | dict[str, float], AfterValidator(known_rewards)]


class RolloutConfig(Settings):
    group_size: Annotated[int, VerlKey("actor_rollout_ref.rollout.n")] = Field(default=4, ge=2)
    """Rollouts per task (G)."""
    max_resamples: int = Field(default=2, ge=0, validation_alias="redraws")
    """How many times a group whose rewards are all equal is replaced by a group of another task; 0: never."""
    backend: BackendSpec = "sqlite"
    """Database of the episodes: `sqlite`, `mariadb` (a private server) or `mysql://user:password@host:port`."""
    judge: Judge = "strict"
    """How rollouts are judged: `strict`, or as the original does: AgentBench and LifelongAgentBench for dbbench, the
    evaluators of Spider and BIRD for text2sql."""
    reward: RewardNames = "agentbench"
    """Reward of a rollout: a preset of `sql_agent.rewards` (agentbench, agent_peft, rllm, skyrl_sql, execution,
    partial), your own function (FILE.py:NAME or module:NAME), `judge` (an LLM's score), or `ranking` (an LLM's ranking
    of the group). Several are summed, each with its weight: {agentbench: 1, FILE.py:NAME: 0.2}."""
    reward_timeout_s: float = Field(default=30.0, gt=0)
    """Seconds that one call of a reward function may take; after that the rollout is lost under `reward_deadline`."""
    reward_on_error: float | None = None
    """Reward of a rollout on which a reward function raises a ValueError, KeyError or the like, or returns no number.
    Give a value that is no better than a wrong answer's. None: the rollout is lost under `reward_error`."""
    success_reward: Annotated[float | None, FlagName("success-reward")] = None
    """Smallest reward that counts as a success, for your own agent or environment if it does not report success. None:
    its success is unknown, and curves show the reward."""
    train_agents: Annotated[tuple[str, ...], FlagName("train-agents")] = ()
    """Names of the agents in your own agent (`env.agent`) whose turns are trained; empty trains all. Turns of the
    others are sampled from the policy too, and masked."""
    n_runners: Annotated[int, FlagName("n-runners")] = Field(default=2, ge=1)
    """Runner processes."""
    runner_concurrency: int = Field(default=16, ge=1)
    """Rollouts that one runner process runs at once."""
    poll_s: float = Field(default=0.05, gt=0, lt=0.2)
    """Seconds between two polls of the store, by the manager and by the runners."""
    step_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds that a step waits for its rollouts; unfinished ones are then lost under `step_deadline`. For a group that
    began earlier (`trainer.max_off_policy_steps`) they count from the step that waits for it."""
    span_timeout_s: float = Field(default=30.0, gt=0)
    """Seconds that a finished rollout waits for its last spans before it is lost under `missing_spans`. The default is
    two attempts of a write that the store does not answer."""
    max_attempts: int = Field(default=2, ge=1)
    """Attempts per rollout; only failures of the infrastructure are retried."""
    max_lost_fraction: float = Field(default=0.5, ge=0, le=1)
    """A step that loses a larger share of its rollouts stops the run with the most frequent reason."""
    max_broken_fraction: float | None = Field(default=None, ge=0, le=1)
    """Largest share of rollouts with a prompt that did not continue the turn before (`prefix/broken_frac`). Three train
    steps in a row above it stop the run. None: 0.1; 1 with your own agent, whose framework may rewrite its history."""
    trajectories_per_step: int = Field(default=4, ge=0)
    """Trajectories saved whole per step, spread over the reward range."""
    tool_parser: str = "hermes"
    """vLLM's tool-call parser for the policy's chat template."""

    @field_validator("train_agents")
    @classmethod
    def _are_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not all(name.strip() for name in names):
            raise ValueError("an agent's name is empty; write --train-agents clerk,critic")
        return tuple(name.strip() for name in names)

    @property
    def weights(self) -> dict[str, float]:
        """The entries of `reward`, each with its weight."""
        return {self.reward: 1.0} if isinstance(self.reward, str) else self.reward


def check_judge_asked(rollout: RolloutConfig, judge: JudgeConfig) -> None:
    """Check that an LLM as judge is given if, and only if, a reward asks it.

    Raises:
        ValueError: one is there without the other.
    """
    asked = [name for name in (JUDGE, RANKING) if name in rollout.weights]
    if asked and judge.url is None:
        raise ValueError(
            f"rollout.reward names {asked[0]}, and no LLM is given; add --judge-url, --judge-model and --judge-rubric"
        )
    if judge.url is not None and not asked:
        raise ValueError(
            "judge.url is given, and no reward asks the judge; name judge or ranking in --reward too, alone or with a "
            "weight beside others"
        )
    if RANKING in asked and rollout.success_reward is not None:
        raise ValueError(
            "success_reward is given, and the reward is a ranking, which says who is better and never who is right; "
            "leave one of them out"
        )


class OptimConfig(Settings):
    learning_rate: Annotated[float | None, VerlKey("actor_rollout_ref.actor.optim.lr")] = Field(default=None, gt=0)
    """Learning rate. None: by the number of weights. All weights: 1e-6 (verl's) for billions, 3e-5 below a billion,
    5e-4 below 20 million. An adapter (LoRA): 2e-5, 3e-4, 1e-3."""
    weight_decay: Annotated[float, VerlKey("actor_rollout_ref.actor.optim.weight_decay")] = Field(default=0.0, ge=0)
    """AdamW's weight decay."""
    warmup_steps: Annotated[int, VerlKey("actor_rollout_ref.actor.optim.lr_warmup_steps")] = Field(default=0, ge=0)
    """Train steps over which the learning rate rises from 0."""
    max_grad_norm: Annotated[float, VerlKey("actor_rollout_ref.actor.grad_clip")] = Field(default=1.0, gt=0)
    """A gradient with a larger norm is scaled down to this norm."""
    mini_batch_size: Annotated[int | None, VerlKey("actor_rollout_ref.actor.ppo_mini_batch_size")] = Field(
        default=None, ge=1
    )
    """Tasks per optimiser update; None: the whole step at once."""
    micro_batch_tokens: Annotated[int | None, VerlKey("actor_rollout_ref.actor.ppo_max_token_len_per_gpu")] = Field(
        default=None, ge=64, validation_alias="max_tokens_per_micro_batch"
    )
    """Most tokens of one forward and backward pass, at least those of one longest row. The conversations of a rollout
    have to fit into it together. None: 4096 on a CPU, 16384 on a GPU."""


class LossConfig(CreditSettings):
    name: Annotated[MainLossName, VerlKey("actor_rollout_ref.actor.policy_loss.loss_mode")] = "grpo"
    """The policy's loss: grpo (PPO's clipped ratio), gspo, cispo, sapo, reinforce, or another row of
    `sql_agent.credit.registry`; or one of verl's: geo_mean, gpg, dppo_tv, dppo_kl, clip_cov, kl_cov, dro."""
    estimator: EstimatorName = "grpo"
    """The advantage: grpo (relative to the group), rloo (to the others of the group), reinforce (the reward itself), or
    another row of `sql_agent.credit.registry`."""
    kl_coef: Annotated[float, VerlKey("actor_rollout_ref.actor.kl_loss_coef")] = Field(default=0.0, ge=0)
    """Weight of KL(policy, reference) in the loss, k3 estimator; 0 loads no reference model."""
    entropy_coef: Annotated[float, VerlKey("actor_rollout_ref.actor.entropy_coeff")] = Field(default=0.0, ge=0)
    """Weight of the entropy in the loss, which keeps it from falling."""
    aggregation: Annotated[Aggregation, VerlKey("actor_rollout_ref.actor.loss_agg_mode")] = "token-mean"
    """How token losses are averaged: with equal weight per token (DAPO, arXiv:2503.14476), with equal weight per
    rollout (GRPO, arXiv:2402.03300), or as a rollout's sum over `data.max_response_tokens` (Dr. GRPO,
    arXiv:2503.20783). A rollout of several conversations is one rollout: its sampled tokens share its weight."""

    @model_validator(mode="after")
    def _is_averaged_as_it_says(self) -> LossConfig:
        if self.name == "sapo" and self.aggregation != "seq-mean-token-mean":
            raise ValueError(
                f"verl's sapo weighs every rollout the same, and loss.aggregation is {self.aggregation}; give "
                "loss.aggregation=seq-mean-token-mean"
            )
        return self


class LoraConfig(Settings):
    rank: Annotated[int, VerlKey("actor_rollout_ref.model.lora_rank")] = Field(default=0, ge=0)
    """Rank of the LoRA adapter; 0 trains all weights."""
    alpha: Annotated[int, VerlKey("actor_rollout_ref.model.lora_alpha")] = Field(default=16, ge=1)
    """The adapter's output is scaled by alpha / rank."""
    target_modules: Annotated[str, VerlKey("actor_rollout_ref.model.target_modules")] = "all-linear"
    """Linear layers that get an adapter; all-linear: all but the output layer."""

    @model_validator(mode="after")
    def _has_a_rank(self) -> LoraConfig:
        # the settings of a run, which are saved whole, have a rank of 0 beside the rest
        if (given := sorted(self.model_fields_set)) and "rank" not in given:
            raise ValueError(
                f"lora.{given[0]} is for an adapter, and lora.rank, which makes one, is left out; add "
                f"lora.rank=16, or leave lora.{given[0]} out"
            )
        return self


class ClusterConfig(Settings):
    ray_address: Annotated[str | None, FlagName("ray-address")] = None
    """The Ray cluster to join, HOST:PORT or `auto` (doc/guides/cluster.md). It has to require a token
    (RAY_AUTH_MODE=token). None: RAY_ADDRESS of the environment; without it the run starts its own Ray on loopback."""
    nodes: Annotated[int, VerlKey("trainer.nnodes")] = Field(default=1, ge=1)
    """Nodes of the cluster that train, each with `engine.n_gpus` GPUs, or `workers_per_node` workers on a CPU. They
    share the run's folder."""
    interface: str | None = None
    """Network interface of Gloo and NCCL, with the same name on every node. None: the one that Ray uses."""
    runner_cpus: float = Field(default=1.0, ge=0)
    """CPUs that each runner requests from the cluster; runners are spread over all nodes."""
    workers_per_node: Annotated[int, VerlKey("trainer.n_gpus_per_node")] = Field(default=1, ge=1)
    """Training workers (FSDP2 ranks) on a CPU, each with a model server beside it; on GPUs `engine.n_gpus`. They share
    the rows of an update evenly, and the cores."""
    sampler_gpus: Annotated[int, VerlKey("actor_rollout_ref.rollout.n_gpus_per_node")] = Field(default=0, ge=0)
    """GPUs for the model servers alone, beside those that train; weights go there by NCCL. With
    `trainer.max_off_policy_steps` above 0, rollouts and updates then run side by side. 0: a model server beside each
    training worker, on its GPU. Above 0 is experimental: no GPU has run it (doc/guides/models_and_gpus.md)."""


class EngineConfig(Settings):
    device: Annotated[Literal["auto", "cpu", "gpu"], FlagName("device")] = "auto"
    """auto: GPUs if there are any, else the CPU."""
    precision: Annotated[
        PrecisionName,
        VerlKey("actor_rollout_ref.actor.fsdp_config.mixed_precision"),
        VerlKey("actor_rollout_ref.rollout.dtype"),
    ] = "auto"
    """Precision of the trainer's and the sampler's computation. Trained weights, gradients and the optimiser's moments
    are always float32. `auto`: bfloat16 on a GPU, and for models of 20 million weights or more on a CPU that multiplies
    in it (AVX-512 BF16, AMX); else float32."""
    gradient_checkpointing: Annotated[bool | None, VerlKey("actor_rollout_ref.model.enable_gradient_checkpointing")] = (
        None
    )
    """Keep only the input of each layer and recompute the rest in the backward pass: a third more time, a fraction of
    the memory. None: on a GPU, not on a CPU."""
    shared_prompts: SharedPrompts | None = None
    """How an update computes once the prompts and turns that rollouts of a group share. None: by torch's own attention
    on a CPU, a part at a time; on a GPU each rollout is computed in full. flex_attention: by torch's flex_attention,
    the rollouts of a group at once under a block mask (experimental: checked on a CPU, where it is slow; a GPU has not
    run it)."""
    n_gpus: Annotated[int, VerlKey("trainer.n_gpus_per_node")] = Field(default=1, ge=1)
    """GPUs of this node; 1 on a CPU (`cluster.workers_per_node`). They share the rows of an update evenly."""
    tensor_parallel_size: Annotated[int, VerlKey("actor_rollout_ref.rollout.tensor_model_parallel_size")] = Field(
        default=1, ge=1
    )
    """GPUs of one model server; divides `n_gpus` and the model's heads."""
    gpu_memory_utilization: Annotated[float, VerlKey("actor_rollout_ref.rollout.gpu_memory_utilization")] = Field(
        default=0.5, gt=0, lt=1
    )
    """Share of a GPU's memory for vLLM."""
    kv_cache_gib: int = Field(default=1, ge=1)
    """Largest KV cache of vLLM on a CPU, in GiB (vLLM: kv_cache_memory_bytes). It is never larger than two longest rows
    for each of `max_num_seqs` requests or, if that is more, for each rollout in flight."""
    max_num_seqs: Annotated[int, VerlKey("actor_rollout_ref.rollout.max_num_seqs")] = Field(default=64, ge=1)
    """Most requests that vLLM batches together."""
    train_threads: int | None = Field(default=None, ge=1)
    """OpenMP threads of a training worker on a CPU; None: the cores, shared among the workers. Rollouts and updates
    take turns, unless `trainer.max_off_policy_steps` is set."""
    sampler_threads: int = Field(default=1, ge=1)
    """OpenMP threads of each vLLM on a CPU; runners, proxy and store share the cores with it."""


class TrainerConfig(Settings):
    steps: Annotated[int, VerlKey("trainer.total_training_steps")] = Field(default=20, ge=1)
    """Train steps of the run, counted from its first start."""
    minutes: Annotated[float | None, FlagName("minutes")] = Field(default=None, gt=0)
    """Time limit of this start in minutes, with start-up and validations. After each step the run plans as many of
    `steps` as fit, at least two. None: all."""
    max_off_policy_steps: int = Field(default=0, ge=0, le=16, validation_alias="max_lag")
    """Train steps by which rollouts may be older than the weights that they train. That many more batches run at once,
    also during update and validation, which pays if single rollouts are slow. A step waits for the rollouts that are
    due; none is dropped. Importance weights of tokens, truncated at 2 (verl's `algorithm.rollout_correction`), correct
    for the age. 0: rollouts and updates take turns. Needs `llm_proxy`."""
    val_before_train: bool = True
    """Validate once before the first step."""
    val_every: Annotated[int, VerlKey("trainer.test_freq")] = Field(default=10, ge=0)
    """Validate every N steps and at the end; 0: never."""
    save_every: Annotated[int, VerlKey("trainer.save_freq")] = Field(default=10, ge=0)
    """Save a checkpoint every N steps and at the end; 0: never."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Whole checkpoints to keep; the disk needs room for one more."""
    resume: Annotated[Literal["auto", "never"], FlagName("resume")] = "auto"
    """`auto` resumes from the newest whole checkpoint of `run_dir`; `never` moves the files there aside and starts
    again."""
    loggers: tuple[Literal["wandb", "swanlab", "tensorboard", "trackio"], ...] = ()
    """Sinks beside the console line and metrics.jsonl, which are always written."""
    startup_timeout_s: float = Field(default=900.0, gt=0)
    """Seconds from the start of the command until the model servers answer."""


class ApoConfig(Settings):
    """Configures agent-lightning's APO, which rewrites the agent's instructions; only `algorithm=apo` reads it."""

    base_url: Annotated[str | None, FlagName("apo-base-url"), address("OPENAI_API_KEY")] = None
    """With `algorithm=apo`: OpenAI-compatible address up to /v1 of the model that writes critiques and edits. The
    environment variable OPENAI_API_KEY holds its key."""
    gradient_model: Annotated[str | None, FlagName("apo-model")] = None
    """Name at that address of the model that writes critiques of the instructions. APO: gradient_model"""
    apply_edit_model: str | None = None
    """Name at that address of the model that rewrites the instructions; None: the same. APO: apply_edit_model"""
    beam_rounds: int = Field(default=2, ge=1)
    """Rounds of the search. APO: beam_rounds"""
    beam_width: int = Field(default=2, ge=1)
    """Best instructions that a round starts from. APO: beam_width"""
    branch_factor: int = Field(default=2, ge=1)
    """Rewritten instructions that a round makes of each of them. APO: branch_factor"""
    gradient_batch_size: int = Field(default=4, ge=1)
    """Rollouts that a critique is written from. APO: gradient_batch_size"""
    val_batch_size: int = Field(default=16, ge=1)
    """Selection tasks on which a round compares its instructions. APO: val_batch_size"""
    selection_tasks: int = Field(default=32, ge=1)
    """Training tasks that are set aside to measure the best instructions of each round; the best over all rounds is the
    result. APO's val_dataset"""
    diversity_temperature: float = Field(default=1.0, ge=0)
    """Temperature of critiques and edits. APO: diversity_temperature"""
    timeout_s: float = Field(default=120.0, gt=0)
    """Wall-clock seconds of one critique or edit, which is retried twice."""
    max_chars: int = Field(default=6000, ge=100)
    """Most characters of instructions; longer ones are rejected."""

    @property
    def max_calls(self) -> int:
        """How many critiques and edits the search asks for at most; each may be tried three times."""
        return 2 * self.beam_rounds * self.beam_width * self.branch_factor


class StoreConfig(Settings):
    address: Annotated[str | None, FlagName("external-store-address")] = None
    """Address of an external store (`python -m sql_agent.store_server`, or `agl store`). It needs AGL_MANAGED_STORE=0,
    which alone means http://localhost:9999. None: the run starts its own."""

    @field_validator("address")
    @classmethod
    def _without_slash(cls, address: str | None) -> str | None:
        if address and "@" in address:
            raise ValueError(
                "the address holds a user or a password; leave it out, a token is read from AGENTGRPO_STORE_TOKEN"
            )
        return address.rstrip("/") if address else None

    port: int = Field(default=0, ge=0, le=65535)
    """Port of the run's own store on loopback; 0 picks a free one."""
