"""Settings of a training run: defaults, then a YAML file, then `--set a.b=c`; the later wins.

`sql_agent.verl_side.config.to_verl` is the only place that turns them into verl's keys. Importing this module is
instant: nothing heavy is imported here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, field_validator, model_validator

from core.passwords import BackendSpec, masked
from core.settings import Settings, parse_yaml, read_settings
from sql_agent.datatypes import AgentConfig, EnvironmentSettings, RewardModelConfig
from sql_agent.environments.registry import check_name
from sql_agent.rewards import REWARDS


class EnvConfig(Settings):
    type: str = "dbbench"
    """What the policy is trained on: dbbench, medical or gsm8k (`sql_agent.environments.registry`), or an environment
    of your own, FILE.py:NAME, module:NAME or an installed package's entry point (`doc/own_environment.md`)."""
    database: Path | None = None
    """SQLite file of `medical`. None: invented entries, made on this machine in data/medical."""
    call_timeout_s: float = Field(default=30.0, gt=0)
    """Wall clock of one call of an own environment's code (a tool, reset, get_reward), in seconds; a call that takes
    longer loses its rollout."""

    @model_validator(mode="after")
    def _known_type(self) -> EnvConfig:
        check_name(self.type)
        if self.database is not None and self.type != "medical":
            raise ValueError(f"env.database belongs to env.type=medical; this run's environment is {self.type}")
        return self


class DataConfig(Settings):
    train_file: Path | None = None
    """Tasks to train on: AgentBench JSONL, LifelongAgentBench entry_dict.json or generated JSONL; None generates."""
    val_file: Path | None = None
    """Held-out tasks. None: generated with words and tables that training never uses, or split off `train_file`."""
    held_out_fraction: float = Field(default=0.2, gt=0, lt=1)
    """Share of tables kept out of training when `train_file` comes without `val_file`; no table is in both."""
    generate: int = Field(default=512, ge=1)
    """Tasks to generate for training when there is no `train_file`."""
    skills: tuple[str, ...] = ()
    """Keep tasks that show one of these skills, to train on and held out; empty keeps all. dbbench only."""
    val_limit: int = Field(default=64, ge=1)
    """Held-out tasks evaluated at each validation, of every kind the same number; the seed draws them, once for a
    run."""
    train_batch_size: int = Field(default=8, ge=1)
    """Tasks per train step. verl: data.train_batch_size"""
    max_prompt_tokens: int = Field(default=512, ge=16)
    """First-turn prompt; longer tasks are left out and counted. verl: data.max_prompt_length"""
    max_response_tokens: int = Field(default=768, ge=16)
    """Everything after the first prompt: sampled turns and tool results; a reply is cut where it is full.
    verl: data.max_response_length"""


class RolloutConfig(Settings):
    group_size: int = Field(default=4, ge=2)
    """Rollouts per task (G). verl: actor_rollout_ref.rollout.n"""
    redraws: int = Field(default=2, ge=0)
    """Times a group whose rewards are all equal is filtered and another task is played instead; 0: never."""
    backend: BackendSpec = "sqlite"
    """Database of the episodes: `sqlite`, `mariadb` (a private server) or `mysql://user:password@host:port`."""
    judge: Literal["strict", "fc"] = "strict"
    """How dbbench's verdict is found: `strict`, or as AgentBench's function-calling version does (`fc`)."""
    reward: str = "agentbench"
    """A preset of `sql_agent.rewards`: agentbench, agent_peft or rllm."""
    n_runners: int = Field(default=2, ge=1)
    """Runner processes."""
    runner_concurrency: int = Field(default=16, ge=1)
    """Rollouts one runner process keeps in flight."""
    poll_s: float = Field(default=0.05, gt=0, lt=0.2)
    """How often the manager and the runners ask the store for news."""
    step_timeout_s: float = Field(default=600.0, gt=0)
    """Deadline of a whole batch of rollouts; what is unfinished then is lost under `step_deadline`."""
    span_timeout_s: float = Field(default=30.0, gt=0)
    """How long a finished rollout may wait for its last spans before it is lost under `missing_spans`: two tries of a
    write that the store does not answer."""
    max_attempts: int = Field(default=2, ge=1)
    """Attempts per rollout; only failures of the infrastructure are tried again."""
    max_lost_fraction: float = Field(default=0.5, ge=0, le=1)
    """A step that loses a larger share of its rollouts stops the run with the most frequent reason."""
    max_broken_fraction: float = Field(default=0.1, ge=0, le=1)
    """Three train steps in a row in which a larger share of the rollouts lost turns to a break (`prefix/broken_frac`)
    stop the run."""
    trajectories_per_step: int = Field(default=4, ge=0)
    """Trajectories saved whole per step, spread over the reward range."""
    tool_parser: str = "hermes"
    """vLLM's tool-call parser for the policy's chat template."""

    @model_validator(mode="after")
    def _known_reward(self) -> RolloutConfig:
        if self.reward not in REWARDS:
            raise ValueError(f"unknown reward preset {self.reward!r}; known: {', '.join(sorted(REWARDS))}")
        return self


class OptimConfig(Settings):
    learning_rate: float = Field(default=5e-4, gt=0)
    """verl: actor_rollout_ref.actor.optim.lr"""
    weight_decay: float = Field(default=0.0, ge=0)
    """verl: actor_rollout_ref.actor.optim.weight_decay"""
    warmup_steps: int = Field(default=0, ge=0)
    """verl: actor_rollout_ref.actor.optim.lr_warmup_steps"""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """verl: actor_rollout_ref.actor.grad_clip"""
    mini_batch_size: int | None = Field(default=None, ge=1)
    """Tasks per optimiser update; None: the whole step at once. verl: actor_rollout_ref.actor.ppo_mini_batch_size"""
    max_tokens_per_micro_batch: int | None = Field(default=None, ge=64)
    """Tokens of one forward and backward pass, at least one longest row; None: 4096 on a CPU, 16384 on a GPU.
    verl: actor_rollout_ref.actor.ppo_max_token_len_per_gpu"""


class LossConfig(Settings):
    clip_ratio: float = Field(default=0.2, gt=0, lt=1)
    """PPO's epsilon. verl: actor_rollout_ref.actor.clip_ratio"""
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of KL(policy, reference) in the loss, k3 estimator; 0 keeps no reference model.
    verl: actor_rollout_ref.actor.kl_loss_coef"""
    entropy_coef: float = Field(default=0.0, ge=0)
    """verl: actor_rollout_ref.actor.entropy_coeff"""
    scale: bool = True
    """Divide advantages by the group's std; False only centres (arXiv:2503.20783).
    verl: algorithm.norm_adv_by_std_in_grpo"""
    aggregation: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"] = "token-mean"
    """How the losses of tokens become one: every token weighs the same (DAPO, arXiv:2503.14476), every rollout does
    (GRPO, arXiv:2402.03300), or a rollout's sum over `data.max_response_tokens` (Dr. GRPO, arXiv:2503.20783).
    verl: actor_rollout_ref.actor.loss_agg_mode"""


class LoraConfig(Settings):
    rank: int = Field(default=0, ge=0)
    """0 trains all weights. verl: actor_rollout_ref.model.lora_rank"""
    alpha: int = Field(default=16, ge=1)
    """verl: actor_rollout_ref.model.lora_alpha"""
    target_modules: str = "all-linear"
    """verl: actor_rollout_ref.model.target_modules"""


class EngineConfig(Settings):
    device: Literal["auto", "cpu", "gpu"] = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """What the trainer and the sampler compute in; weights that are trained, gradients and the optimiser's moments are
    float32 always. `auto`: bfloat16 on a GPU, and on a CPU that multiplies in it (AVX-512 BF16, AMX) for models of
    20 million weights and more; else float32. verl: actor.fsdp_config.mixed_precision, rollout.dtype"""
    gradient_checkpointing: bool | None = None
    """Keep the input of each layer only and compute the rest again in the backward pass: a third more time, a fraction
    of the memory. None: on a GPU, not on a CPU. verl: actor_rollout_ref.model.enable_gradient_checkpointing"""
    n_gpus: int = Field(default=1, ge=1)
    """GPUs of this node; 1 on a CPU. They share the rows of an update evenly. verl: trainer.n_gpus_per_node"""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """GPUs of one model server; divides `n_gpus` and the model's heads.
    verl: actor_rollout_ref.rollout.tensor_model_parallel_size"""
    gpu_memory_utilization: float = Field(default=0.5, gt=0, lt=1)
    """Share of a GPU's memory for vLLM. verl: actor_rollout_ref.rollout.gpu_memory_utilization"""
    kv_cache_gib: int = Field(default=1, ge=1)
    """vLLM's KV cache on a CPU, GiB (VLLM_CPU_KVCACHE_SPACE)."""
    max_num_seqs: int = Field(default=64, ge=1)
    """Requests vLLM batches together. verl: actor_rollout_ref.rollout.max_num_seqs"""
    train_threads: int | None = Field(default=None, ge=1)
    """OpenMP threads of the training worker on a CPU; None: every core (rollouts and updates take turns)."""
    sampler_threads: int = Field(default=1, ge=1)
    """OpenMP threads of vLLM on a CPU; runners, proxy and store share the cores with it."""


class TrainerConfig(Settings):
    steps: int = Field(default=20, ge=1)
    """Train steps of the run, counted from its very first start. verl: trainer.total_training_steps"""
    val_before_train: bool = True
    val_every: int = Field(default=10, ge=0)
    """Validate every so many steps and at the end; 0: never. verl: trainer.test_freq"""
    save_every: int = Field(default=10, ge=0)
    """Checkpoint every so many steps and at the end; 0: never. verl: trainer.save_freq"""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Whole checkpoints that stay; the disk needs room for one more."""
    resume: Literal["auto", "never"] = "auto"
    """`auto` goes on from the newest whole checkpoint of `run_dir`; `never` sets aside what is there."""
    loggers: tuple[Literal["wandb", "swanlab", "tensorboard"], ...] = ()
    """Sinks beside the console line and metrics.jsonl, which are always written."""
    startup_timeout_s: float = Field(default=900.0, gt=0)
    """From the command to model servers that answer."""


class StoreConfig(Settings):
    address: str | None = None
    """Address of a store that is kept outside (`python -m sql_agent.store_server`, or `agl store`). None: the run keeps
    its own."""

    @field_validator("address")
    @classmethod
    def _without_slash(cls, address: str | None) -> str | None:
        if address and "@" in address:
            raise ValueError("the address holds a user or a password; a token is read from AGENTGRPO_STORE_TOKEN")
        return address.rstrip("/") if address else None

    port: int = Field(default=0, ge=0, le=65535)
    """Port of the run's own store on loopback; 0 picks a free one."""


class TrainConfig(Settings):
    model: Path | None = None
    """A Hugging Face folder, or the id of a model on the hub (ORG/NAME), with a chat template, one that writes tool
    calls unless `agent.protocol` is text or lab. None: the small policy, made on this machine."""
    run_dir: Path = Path("runs/sql-agent")
    seed: int = Field(default=0, ge=0, lt=2**32)
    llm_proxy: bool = False
    """Trace turns in the LLM proxy rather than in the runner."""
    store: StoreConfig = StoreConfig()
    env: EnvConfig = EnvConfig()
    data: DataConfig = DataConfig()
    agent: AgentConfig = AgentConfig()
    rollout: RolloutConfig = RolloutConfig()
    reward_model: RewardModelConfig = RewardModelConfig()
    optim: OptimConfig = OptimConfig()
    loss: LossConfig = LossConfig()
    lora: LoraConfig = LoraConfig()
    engine: EngineConfig = EngineConfig()
    trainer: TrainerConfig = TrainerConfig()

    @property
    def environment(self) -> EnvironmentSettings:
        return EnvironmentSettings(
            self.env.type,
            self.agent.protocol,
            self.rollout.judge,
            self.rollout.backend,
            self.env.database,
            self.env.call_timeout_s,
        )

    @model_validator(mode="after")
    def _deadlines_nest(self) -> TrainConfig:
        if self.agent.rollout_timeout_s > self.rollout.step_timeout_s:
            raise ValueError(
                f"agent.rollout_timeout_s ({self.agent.rollout_timeout_s}) is longer than rollout.step_timeout_s "
                f"({self.rollout.step_timeout_s}); a rollout has to end before its step does"
            )
        if self.env.call_timeout_s > self.agent.rollout_timeout_s:
            raise ValueError(
                f"env.call_timeout_s ({self.env.call_timeout_s:g}) is longer than agent.rollout_timeout_s "
                f"({self.agent.rollout_timeout_s:g}); a call has to end before its rollout does"
            )
        scorer = self.reward_model
        if scorer.url and self.agent.rollout_timeout_s + scorer.timeout_s > self.rollout.step_timeout_s:
            raise ValueError(
                f"agent.rollout_timeout_s ({self.agent.rollout_timeout_s}) and reward_model.timeout_s "
                f"({scorer.timeout_s}) together are longer than rollout.step_timeout_s "
                f"({self.rollout.step_timeout_s}); a rollout has to be played and scored before its step ends"
            )
        if scorer.url and scorer.give_up_s > self.rollout.step_timeout_s:
            raise ValueError(
                f"reward_model.give_up_s ({scorer.give_up_s}) is longer than rollout.step_timeout_s "
                f"({self.rollout.step_timeout_s}); a step would end before it says that the reward model is gone"
            )
        return self

    @model_validator(mode="after")
    def _skills_are_known_there(self) -> TrainConfig:
        if self.data.skills and self.env.type != "dbbench":
            raise ValueError(f"data.skills are of env.type=dbbench; tasks of {self.env.type} name none")
        return self

    @model_validator(mode="after")
    def _samples_differ(self) -> TrainConfig:
        if self.agent.temperature == 0:
            raise ValueError("agent.temperature is 0: all rollouts of a group would be equal and teach nothing")
        return self

    @model_validator(mode="after")
    def _trains_the_policy_that_samples(self) -> TrainConfig:
        if self.agent.top_p < 1:
            raise ValueError(
                f"agent.top_p is {self.agent.top_p:g}: the sampler would leave out the less likely tokens, and the "
                "update would take its samples for those of a policy that does not; leave it at 1 (a lower "
                "agent.temperature sharpens both alike)"
            )
        return self

    @model_validator(mode="after")
    def _reply_fits(self) -> TrainConfig:
        if self.agent.max_tokens > self.data.max_response_tokens:
            raise ValueError(
                f"agent.max_tokens ({self.agent.max_tokens}) is longer than data.max_response_tokens "
                f"({self.data.max_response_tokens}); one reply would not fit into the row that is trained"
            )
        return self

    @model_validator(mode="after")
    def _mini_batch_divides(self) -> TrainConfig:
        mini, batch = self.optim.mini_batch_size, self.data.train_batch_size
        if mini is not None and (mini > batch or batch % mini):
            raise ValueError(f"optim.mini_batch_size ({mini}) has to divide data.train_batch_size ({batch})")
        return self

    @model_validator(mode="after")
    def _gpus_share_evenly(self) -> TrainConfig:
        n_gpus, tensor_parallel = self.engine.n_gpus, self.engine.tensor_parallel_size
        if n_gpus % tensor_parallel:
            raise ValueError(
                f"engine.tensor_parallel_size ({tensor_parallel}) has to divide engine.n_gpus ({n_gpus}): every model "
                "server takes so many of them"
            )
        tasks, group = self.optim.mini_batch_size or self.data.train_batch_size, self.rollout.group_size
        if tasks * group % n_gpus:  # verl workers/engine_workers.py, `train_mini_batch`
            name = "optim.mini_batch_size" if self.optim.mini_batch_size else "data.train_batch_size"
            raise ValueError(
                f"engine.n_gpus ({n_gpus}) has to divide {name} ({tasks}) times rollout.group_size ({group}), "
                f"{tasks * group} rows: every GPU trains on as many"
            )
        return self


def load_config(file: Path | None, overrides: list[str] | None = None) -> TrainConfig:
    """Read a YAML file (or the defaults) and apply `a.b=c` overrides, whose values are YAML.

    Raises:
        ValueError: the file is missing or no mapping, an override has no `=`, or a key or value does not fit.
    """
    tree = read_settings(file) if file is not None else {}
    for override in overrides or []:
        path, separator, text = override.partition("=")
        if not separator:
            raise ValueError(
                f"--set {masked(override, whole=True)!r} has no `=`; write it as --set rollout.group_size=8"
            )
        set_path(tree, path.strip(), parse_yaml(text, f"--set {path}"))
    return TrainConfig.model_validate(tree)


def set_path(tree: dict[str, Any], path: str, value: Any) -> None:
    """Set `tree["a"]["b"] = value` for the path "a.b", making the mappings on the way."""
    *parents, leaf = path.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
        if not isinstance(tree, dict):
            raise ValueError(f"--set {path}: {parent!r} is a value, not a group of settings")
    tree[leaf] = value


def dump_config(cfg: TrainConfig) -> str:
    """The resolved config as YAML, which `load_config` reads back to an equal object."""
    return yaml.safe_dump(json.loads(cfg.model_dump_json()), sort_keys=False)
