"""Defines the settings of a training run: defaults, then a YAML file, then `--set a.b=c`; later ones have precedence.

Where a small model is trained, `configs/small.yaml` replaces some defaults. `sql_agent.verl_side.config.to_verl` is the
only place that turns settings into verl's keys. Importing this module is instant.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, field_validator, model_validator

from agentgrpo.cpu_features import LARGE
from agentgrpo.nearest import did_you_mean
from agentgrpo.passwords import BackendSpec, masked
from agentgrpo.settings import Settings, merged, parse_yaml, read_settings
from dbbench_adapter.engines import DatabaseSpec
from sql_agent.credit.tables import EstimatorName, MainLossName
from sql_agent.datatypes import (
    AgentConfig,
    DataConfig,
    EnvironmentSettings,
    JudgeConfig,
    RewardModelConfig,
    address,
)
from sql_agent.learning_rates import BILLION
from sql_agent.names import ENVIRONMENTS, FUNCTION, JUDGE, PRESETS, check_name, functions, label

MOST_CALLS = 512
"""Connections that may begin together at a server of a run (`agentgrpo.http_protocol.MAX_NEW_UNKNOWN`)."""
SMALL, PRETRAINED = (Path(__file__).with_name("configs") / f"{name}.yaml" for name in ("small", "pretrained"))


class EnvConfig(Settings):
    type: str = "dbbench"
    """What the policy is trained on: dbbench, text2sql, medical or gsm8k (`sql_agent.names`), an
    environment of your own, FILE.py:NAME, module:NAME or an installed package's entry point
    (`doc/own_environment.md`), or agent: an agent of your own, see `agent`."""
    agent: str | None = None
    """An agent of your own, FILE.py:NAME or module:NAME, that plays the rows of `data.train_file` itself: one of
    openai-agents, of LangGraph or of agent-lightning (`doc/own_agent.md`)."""
    database: DatabaseSpec | None = None
    """SQLite file of text2sql, its folder with DB_ID/DB_ID.sqlite, or mysql://user:password@host:port/database; SQLite
    file of medical (None: invented entries, made on this machine in data/medical)."""
    call_timeout_s: float = Field(default=30.0, gt=0)
    """Wall clock of one call of an own environment's code (a tool, reset, get_reward), in seconds; a call that takes
    longer loses its rollout."""

    @model_validator(mode="after")
    def _known_type(self) -> EnvConfig:
        check_name(self.type)
        if (self.type == "agent") != (self.agent is not None):
            raise ValueError(
                "env.agent and env.type=agent belong together, and --agent FILE.py:NAME sets both; leave --env out, or "
                "--agent"
            )
        if self.database is not None and self.type not in ("medical", "text2sql"):
            raise ValueError(
                f"env.database belongs to env.type=text2sql or medical, this run's is {self.type}; leave it out"
            )
        return self


class RolloutConfig(Settings):
    group_size: int = Field(default=4, ge=2)
    """Rollouts per task (G). verl: actor_rollout_ref.rollout.n"""
    redraws: int = Field(default=2, ge=0)
    """Times a group whose rewards are all equal is filtered and another task is played instead; 0: never."""
    backend: BackendSpec = "sqlite"
    """Database of the episodes: `sqlite`, `mariadb` (a private server) or `mysql://user:password@host:port`."""
    judge: Literal["strict", "text", "fc", "lab", "spider", "bird"] = "strict"
    """How the verdict is found: `strict`; on dbbench as AgentBench's text and function-calling versions (`text`, `fc`)
    or LifelongAgentBench (`lab`) do; on text2sql as the evaluators of Spider and BIRD do (`spider`, `bird`)."""
    reward: str | dict[str, float] = "agentbench"
    """What a rollout is worth: a preset of `sql_agent.rewards` (agentbench, agent_peft, rllm), a function of yours
    (FILE.py:NAME or module:NAME), `judge` (an LLM), or several of them, each with its weight, which are summed:
    {agentbench: 1, FILE.py:NAME: 0.2}."""
    reward_timeout_s: float = Field(default=30.0, gt=0)
    """How long one call of a reward function may take; the rollout is lost under `reward_deadline` then."""
    train_agents: tuple[str, ...] = ()
    """Agents of an agent of your own (`env.agent`) whose turns are trained, by name; empty trains all. What the others
    say is sampled from the policy too, and masked."""
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
    max_broken_fraction: float | None = Field(default=None, ge=0, le=1)
    """Three train steps in a row in which a prompt of a larger share of the rollouts did not continue the turn before
    (`prefix/broken_frac`) stop the run. None: 0.1, and 1 with an agent of your own, whose framework may write its
    history anew."""
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

    @field_validator("reward")
    @classmethod
    def _known_rewards(cls, reward: str | dict[str, float]) -> str | dict[str, float]:
        weights = {reward: 1.0} if isinstance(reward, str) else reward
        for name in weights:
            if name not in PRESETS and name != JUDGE and not FUNCTION.fullmatch(name):
                raise ValueError(
                    f"unknown reward preset {name!r}; known: {', '.join(sorted(PRESETS))}, {JUDGE}, or a function of "
                    f"yours, FILE.py:NAME or module:NAME{did_you_mean(name, [*PRESETS, JUDGE])}"
                )
        labels = [label(name) for name in weights]
        for name in weights:
            if labels.count(label(name)) > 1 or (FUNCTION.fullmatch(name) and label(name) in RESERVED_LABELS):
                raise ValueError(
                    f"{name} would be logged as reward/{label(name)}, the name of another number; rename it"
                )
        if not any(weights.values()):
            raise ValueError("no reward has a weight, so nothing would be learnt; name one, as agentbench")
        return next(iter(weights)) if list(weights.values()) == [1.0] else weights

    @property
    def weights(self) -> dict[str, float]:
        """Return the entries of `reward`, each with its weight."""
        return {self.reward: 1.0} if isinstance(self.reward, str) else self.reward


RESERVED_LABELS = {"mean", "std", "unjudged_frac", "correctness", "base", "shaping", JUDGE, *PRESETS}
"""Numbers that are logged as `reward/NAME` and do not belong to a function."""


def check_judge_asked(rollout: RolloutConfig, judge: JudgeConfig) -> None:
    """Check that an LLM as judge is given if, and only if, a reward asks it.

    Raises:
        ValueError: one is there without the other.
    """
    asked = JUDGE in rollout.weights
    if asked and judge.url is None:
        raise ValueError(
            "rollout.reward names judge, and no LLM is given; add --judge-url, --judge-model and --judge-rubric"
        )
    if judge.url is not None and not asked:
        raise ValueError(
            "judge.url is given, and no reward asks the judge; add it with its weight: --reward agentbench "
            "--reward judge=0.5"
        )


class OptimConfig(Settings):
    learning_rate: float | None = Field(default=None, gt=0)
    """None: by the model's weights. All weights: 1e-6 (verl's) for billions, 3e-5 below a billion, 5e-4 below 20
    million; an adapter (LoRA): 2e-5, 3e-4, 1e-3. verl: actor_rollout_ref.actor.optim.lr"""
    weight_decay: float = Field(default=0.0, ge=0)
    """verl: actor_rollout_ref.actor.optim.weight_decay"""
    warmup_steps: int = Field(default=0, ge=0)
    """verl: actor_rollout_ref.actor.optim.lr_warmup_steps"""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """verl: actor_rollout_ref.actor.grad_clip"""
    mini_batch_size: int | None = Field(default=None, ge=1)
    """Tasks per optimiser update; None: the whole step at once. verl: actor_rollout_ref.actor.ppo_mini_batch_size"""
    max_tokens_per_micro_batch: int | None = Field(default=None, ge=64)
    """Tokens of one forward and backward pass, at least one longest row; None: 4096 on a CPU, 16384 on a GPU. The
    conversations of a rollout have to fit into it together.
    verl: actor_rollout_ref.actor.ppo_max_token_len_per_gpu"""


class LossConfig(Settings):
    name: MainLossName = "grpo"
    """The policy's loss: grpo (PPO's clipped ratio), reinforce, or another row of `sql_agent.credit.tables`; or one of
    verl's: gspo, cispo, sapo, geo_mean, gpg, dppo_tv, dppo_kl, clip_cov, kl_cov, dro.
    verl: actor_rollout_ref.actor.policy_loss.loss_mode"""
    estimator: EstimatorName = "grpo"
    """The advantage: grpo (relative to the group), reinforce (the reward itself), or another row of
    `sql_agent.credit.tables`."""
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
    (GRPO, arXiv:2402.03300), or a rollout's sum over `data.max_response_tokens` (Dr. GRPO, arXiv:2503.20783). A rollout
    of several conversations is one rollout: its sampled tokens share its weight.
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
    20 million weights and more; else float32. verl:
    actor_rollout_ref.actor.fsdp_config.mixed_precision, actor_rollout_ref.rollout.dtype"""
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


class ApoConfig(Settings):
    """Configures agent-lightning's APO, which rewrites the agent's instructions; only `algorithm=apo` reads it."""

    base_url: str | None = None
    """Address up to /v1 of the model that writes critiques and edits, any OpenAI-compatible one. Its key is read from
    the environment, OPENAI_API_KEY."""
    gradient_model: str | None = None
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
    """Tasks, taken from those to train on, that the best instructions of each round are measured on; the best over all
    rounds is the result. APO's val_dataset"""
    diversity_temperature: float = Field(default=1.0, ge=0)
    """Temperature of critiques and edits. APO: diversity_temperature"""
    timeout_s: float = Field(default=120.0, gt=0)
    """Wall clock of one critique or edit, in seconds; it is tried again twice."""
    max_chars: int = Field(default=6000, ge=100)
    """Longest instructions that are played; longer ones are rejected."""

    @field_validator("base_url")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        return None if url is None else address(url, "a key is read from OPENAI_API_KEY").rstrip("/")

    @property
    def max_calls(self) -> int:
        """Return how many critiques and edits the search asks for at most; each may be tried three times."""
        return 2 * self.beam_rounds * self.beam_width * self.branch_factor


class StoreConfig(Settings):
    address: str | None = None
    """Address of a store that is kept outside (`python -m sql_agent.store_server`, or `agl store`). None: the run keeps
    its own."""

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


class TrainConfig(Settings):
    algorithm: Literal["grpo", "apo"] = "grpo"
    """What a run improves: the policy's weights, by GRPO, or the instructions of a policy that is served already, by
    agent-lightning's APO (`doc/apo.md`)."""
    base_url: str | None = None
    """Address up to /v1 where the policy of `algorithm=apo` is served under the name `model`; its key, where it wants
    one, is read from the environment, POLICY_API_KEY."""
    apo: ApoConfig = ApoConfig()
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
    judge: JudgeConfig = JudgeConfig()
    optim: OptimConfig = OptimConfig()
    loss: LossConfig = LossConfig()
    lora: LoraConfig = LoraConfig()
    engine: EngineConfig = EngineConfig()
    trainer: TrainerConfig = TrainerConfig()
    verl: dict[str, Any] = Field(default={})
    """Keys of verl's own configuration, as a tree, merged last; what a setting of this page says is set there alone."""

    @field_validator("base_url")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        return None if url is None else address(url, "a key is read from POLICY_API_KEY").rstrip("/")

    @model_validator(mode="after")
    def _holds_something_out(self) -> TrainConfig:
        if not self.data.held_out_fraction and self.data.train_file is not None and self.data.val_file is None:
            raise ValueError(
                "data.held_out_fraction=0 holds none of data.train_file out, and a run measures held-out tasks; give "
                "them with --val-file FILE, or leave the setting out"
            )
        return self

    @model_validator(mode="after")
    def _apo_is_whole(self) -> TrainConfig:
        if self.algorithm != "apo":
            if self.base_url is not None:
                raise ValueError(
                    "base_url names a policy that is served already, which GRPO cannot train; add --algorithm apo, or "
                    "give the policy's folder with --model"
                )
            return self
        given = {
            "--base-url": self.base_url,
            "--model": self.model,
            "--apo-base-url": self.apo.base_url,
            "--apo-model": self.apo.gradient_model,
        }
        if absent := [flag for flag, value in given.items() if value is None]:
            raise ValueError(
                "APO plays a policy that is served already (--base-url URL --model NAME) and asks a model for "
                f"critiques and edits (--apo-base-url URL --apo-model NAME); missing: {', '.join(absent)}"
            )
        if self.llm_proxy:
            raise ValueError("algorithm=apo calls the policy at base_url and uses no LLM proxy; leave --llm-proxy out")
        return self

    def micro_batch_tokens(self, *, cpu: bool) -> int:
        """Return the most tokens of one forward and backward pass, and so of a rollout's row; verl splits no row."""
        longest = self.data.prompt_tokens + self.data.max_response_tokens
        return max(self.optim.max_tokens_per_micro_batch or (4096 if cpu else 16384), longest)

    @property
    def environment(self) -> EnvironmentSettings:
        return EnvironmentSettings(
            self.env.type,
            self.agent.protocol,
            self.rollout.judge,
            self.rollout.backend,
            self.env.database,
            self.env.call_timeout_s,
            self.env.agent,
            self.agent.instructions,
        )

    @model_validator(mode="after")
    def _deadlines_nest(self) -> TrainConfig:
        if self.agent.rollout_timeout_s > self.rollout.step_timeout_s:
            raise ValueError(
                f"agent.rollout_timeout_s ({self.agent.rollout_timeout_s}) is longer than rollout.step_timeout_s "
                f"({self.rollout.step_timeout_s}); a rollout has to end before its step does: "
                "lower the first, or raise the second"
            )
        if self.env.type not in ENVIRONMENTS and self.env.call_timeout_s > self.agent.rollout_timeout_s:
            raise ValueError(
                f"env.call_timeout_s ({self.env.call_timeout_s:g}) is longer than agent.rollout_timeout_s "
                f"({self.agent.rollout_timeout_s:g}); a call has to end before its rollout does: "
                "lower the first, or raise the second"
            )
        scorer = self.reward_model
        if scorer.url and self.agent.rollout_timeout_s + scorer.timeout_s > self.rollout.step_timeout_s:
            raise ValueError(
                f"agent.rollout_timeout_s ({self.agent.rollout_timeout_s}) and reward_model.timeout_s "
                f"({scorer.timeout_s}) together are longer than rollout.step_timeout_s "
                f"({self.rollout.step_timeout_s}); a rollout has to be played and scored before its step ends: "
                "raise the last, or lower another"
            )
        if scorer.url and scorer.give_up_s > self.rollout.step_timeout_s:
            raise ValueError(
                f"reward_model.give_up_s ({scorer.give_up_s}) is longer than rollout.step_timeout_s "
                f"({self.rollout.step_timeout_s}); a step would end before it says that the reward model is gone: "
                "lower the first, or raise the second"
            )
        return self

    @property
    def max_broken_fraction(self) -> float:
        """Return the share of broken rollouts above which the run stops."""
        given = self.rollout.max_broken_fraction
        return given if given is not None else 1.0 if self.env.agent is not None else 0.1

    @property
    def reward_wait_s(self) -> float:
        """Return the seconds that a rollout that has ended may wait for its reward."""
        asked = functions(self.rollout.weights)
        return (
            (self.reward_model.timeout_s if self.reward_model.url else 0.0)
            + (self.rollout.reward_timeout_s if set(asked) - {JUDGE} else 0.0)
            + (self.judge.timeout_s if JUDGE in asked else 0.0)
        )

    @property
    def ending_s(self) -> float:
        """Return the seconds that a rollout may continue after its deadline.

        It finishes the call that is open, then judges, then closes its episode. Each call of your own environment may
        take `env.call_timeout_s`.
        """
        return 60.0 if self.env.type in ENVIRONMENTS else 4 * self.env.call_timeout_s  # call, get_reward, solved, close

    @model_validator(mode="after")
    def _rewards_are_waited_for(self) -> TrainConfig:
        if functions(self.rollout.weights) and (
            self.agent.rollout_timeout_s + self.reward_wait_s > self.rollout.step_timeout_s
        ):
            raise ValueError(
                f"agent.rollout_timeout_s ({self.agent.rollout_timeout_s:g}) and the wait for the reward "
                f"({self.reward_wait_s:g} s: reward_model.timeout_s, rollout.reward_timeout_s, judge.timeout_s) "
                f"together are longer than rollout.step_timeout_s ({self.rollout.step_timeout_s:g}); a rollout has to "
                "be played and rewarded before its step ends"
            )
        return self

    @model_validator(mode="after")
    def _judge_is_asked(self) -> TrainConfig:
        check_judge_asked(self.rollout, self.judge)
        return self

    @model_validator(mode="after")
    def _judge_is_known_there(self) -> TrainConfig:
        originals = {"dbbench": ("text", "fc", "lab"), "text2sql": ("spider", "bird")}
        known = (environment for environment, judges in originals.items() if self.rollout.judge in judges)
        environment = next(known, self.env.type)
        if environment != self.env.type:
            raise ValueError(f"rollout.judge={self.rollout.judge} belongs to env.type={environment}; take strict")
        return self

    @model_validator(mode="after")
    def _own_agents_are_traced(self) -> TrainConfig:
        if self.env.agent is not None and not self.llm_proxy:
            raise ValueError(
                "an agent of your own is traced by the LLM proxy, and llm_proxy is false; add --llm-proxy, or name the "
                "agent by --agent, which sets it"
            )
        return self

    @model_validator(mode="after")
    def _reward_model_reads_one_conversation(self) -> TrainConfig:
        if self.env.agent is not None and self.reward_model.url is not None:
            raise ValueError(
                "a reward model scores one conversation, and an agent of your own may hold several; leave "
                "reward_model.url out, and give a function (--reward FILE.py:NAME), which may ask the model itself"
            )
        return self

    @model_validator(mode="after")
    def _trained_agents_are_known_there(self) -> TrainConfig:
        if self.rollout.train_agents and self.env.agent is None:
            raise ValueError("rollout.train_agents names agents of an agent of your own; add --agent FILE.py:NAME")
        return self

    @model_validator(mode="after")
    def _skills_are_known_there(self) -> TrainConfig:
        if self.data.skills and self.env.type != "dbbench":
            raise ValueError(f"data.skills are of env.type=dbbench, tasks of {self.env.type} name none; leave them out")
        return self

    @model_validator(mode="after")
    def _samples_differ(self) -> TrainConfig:
        if self.agent.temperature == 0:
            raise ValueError(
                "agent.temperature is 0: all rollouts of a group would be equal and teach nothing; set it above 0"
            )
        return self

    @model_validator(mode="after")
    def _trains_the_policy_that_samples(self) -> TrainConfig:
        check_top_p(self.agent.top_p, "agent.top_p", "agent.temperature")
        return self

    @model_validator(mode="after")
    def _reply_fits(self) -> TrainConfig:
        if self.agent.max_tokens > self.data.max_response_tokens:
            raise ValueError(
                f"agent.max_tokens ({self.agent.max_tokens}) is longer than data.max_response_tokens "
                f"({self.data.max_response_tokens}); one reply would not fit into the row that is trained: "
                "lower the first, or raise the second"
            )
        return self

    @model_validator(mode="after")
    def _mini_batch_divides(self) -> TrainConfig:
        mini, batch = self.optim.mini_batch_size, self.data.train_batch_size
        if mini is not None and (mini > batch or batch % mini):
            raise ValueError(f"optim.mini_batch_size ({mini}) has to divide data.train_batch_size ({batch})")
        return self

    @model_validator(mode="after")
    def _servers_take_all_calls(self) -> TrainConfig:
        played = max(self.data.train_batch_size * self.rollout.group_size, self.data.val_limit)
        at_once = min(self.rollout.n_runners * self.rollout.runner_concurrency, played)
        if at_once > MOST_CALLS:
            raise ValueError(
                f"rollout.n_runners ({self.rollout.n_runners}) times rollout.runner_concurrency "
                f"({self.rollout.runner_concurrency}) lets {at_once:,} rollouts call the policy at once, and a server "
                f"of a run closes new connections beyond {MOST_CALLS}: lower one of the two"
            )
        return self

    @model_validator(mode="after")
    def _gpus_share_evenly(self) -> TrainConfig:
        n_gpus, tensor_parallel = self.engine.n_gpus, self.engine.tensor_parallel_size
        if n_gpus % tensor_parallel:
            raise ValueError(
                f"engine.tensor_parallel_size ({tensor_parallel}) has to divide engine.n_gpus ({n_gpus}): every model "
                "server uses that many"
            )
        tasks, group = self.optim.mini_batch_size or self.data.train_batch_size, self.rollout.group_size
        if tasks * group % n_gpus:  # verl workers/engine_workers.py, `train_mini_batch`
            name = "optim.mini_batch_size" if self.optim.mini_batch_size else "data.train_batch_size"
            raise ValueError(
                f"engine.n_gpus ({n_gpus}) has to divide {name} ({tasks}) times rollout.group_size ({group}), "
                f"{tasks * group} rows: every GPU trains on an equal share"
            )
        return self


def check_top_p(top_p: float, name: str, temperature: str) -> None:
    """Check that the policy that is sampled is the one that is trained.

    Args:
        name: what the user calls `top_p`.
        temperature: what the user calls the temperature.
    Raises:
        ValueError: `top_p` is below 1.
    """
    if top_p < 1:
        raise ValueError(
            f"{name} is {top_p:g}: the sampler would leave out the less likely tokens, and the update would take its "
            f"samples for those of a policy that does not; leave it at 1 (a lower {temperature} sharpens both alike)"
        )


def load_config(file: Path | None, overrides: list[str] | None = None) -> TrainConfig:
    """Read a YAML file (or the defaults) and apply `a.b=c` overrides, whose values are YAML.

    For a small model the defaults of `configs/small.yaml` apply.

    Raises:
        ValueError: the file is missing or not a mapping, an override has no `=`, or a key or value does not fit.
    """
    tree = read_settings(file) if file is not None else {}
    for override in overrides or []:
        path, separator, text = override.partition("=")
        if not separator:
            raise ValueError(
                f"--set {masked(override, whole=True)!r} has no `=`; write it as --set rollout.group_size=8"
            )
        set_path(tree, path.strip(), parse_yaml(text, f"--set {path}"))
    return TrainConfig.model_validate(merged(read_settings(SMALL), tree) if _is_small(tree.get("model")) else tree)


def settings_file(weights: int | None) -> Path | None:
    """Return the shipped settings for a model of a size: `SMALL` is read without being asked for, `PRETRAINED` is to be
    given as --config; None: the defaults, or the size is not known."""
    if not weights or weights >= BILLION:
        return None
    return SMALL if weights < LARGE else PRETRAINED


def config_flag(weights: int | None) -> list[str]:
    """Return the flag that a training command takes for a model of a size, [] for none."""
    return ["--config", str(PRETRAINED)] if settings_file(weights) == PRETRAINED else []


def _is_small(model: Any) -> bool:
    """Return whether a model takes `SMALL`; without a model the small policy is made.

    The size of the files decides, as that of float32 weights, so that nothing is imported.
    """
    if model is None:
        return True
    folder = Path(str(model))
    whole = (folder / "config.json").is_file() and not (folder / "adapter_config.json").is_file()
    size_bytes = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return whole and settings_file(size_bytes // 4) == SMALL


def set_path(tree: dict[str, Any], path: str, value: Any) -> None:
    """Set `tree["a"]["b"] = value` for the path "a.b", and make missing mappings."""
    *parents, leaf = path.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
        if not isinstance(tree, dict):
            raise ValueError(f"--set {path}: {parent!r} is a value, not a group of settings; leave out what follows it")
    tree[leaf] = value


def dump_config(cfg: TrainConfig) -> str:
    """Return the resolved config as YAML, which `load_config` reads back to an equal object."""
    return yaml.safe_dump(json.loads(cfg.model_dump_json()), sort_keys=False)
