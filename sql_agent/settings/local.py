"""Defines the settings of local training. Importing this module is instant."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AliasChoices, Field, ValidationError, field_validator, model_validator

from agentgrpo.flags import FlagName, dashed
from agentgrpo.passwords import BackendSpec
from agentgrpo.printed_commands import agentgrpo_command
from agentgrpo.settings import Settings
from agentgrpo.spelling import did_you_mean
from dbbench_adapter.engines import DatabaseSpec
from dbbench_adapter.judges import JudgeName
from dbbench_adapter.protocols import ProtocolName
from sql_agent.credit.registry import Aggregation, CreditSettings, EstimatorName, LossName, known
from sql_agent.names import SAMPLERS, TINY_POLICY
from sql_agent.settings.groups import (
    AgentConfig,
    DataConfig,
    EnvConfig,
    EnvironmentSettings,
    Judge,
    JudgeConfig,
    PrecisionName,
    QuestionsConfig,
    RewardModelConfig,
    SharedPrompts,
    TaskFiles,
)
from sql_agent.settings.main_job import RewardNames, RolloutConfig, check_judge_asked
from sql_agent.settings.train import check_top_p

ROLLOUT_TIMEOUT_S = 3600.0
"""Longer than the main job's 300: the replies of a batch are sampled together, and an episode waits for all of them."""


def renamed_field(earlier: str, default: Any, **limits: Any) -> Any:
    """A field with an earlier name too; flags and YAML files take both, and a run's files keep the earlier."""
    return Field(default, validation_alias=earlier, serialization_alias=earlier, **limits)


class AdapterConfig(Settings):
    rank: int = renamed_field("r", 16, ge=1, le=1024)
    """Rank of the LoRA adapter's matrices."""
    alpha: int = Field(default=32, ge=1)
    """The adapter's output is scaled by alpha / rank."""
    dropout: float = Field(default=0.05, ge=0, lt=1)
    """Dropout on the adapter's input during the update; sampling has none."""
    target_modules: str | tuple[str, ...] = "all-linear"
    """Linear layers that get an adapter, e.g. q_proj,v_proj; all-linear: all but the output layer."""

    @field_validator("target_modules", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        return tuple(map(str.strip, value.split(","))) if isinstance(value, str) and value != "all-linear" else value


class OptimConfig(Settings):
    """The settings of AdamW."""

    learning_rate: float = Field(default=2e-5, gt=0, le=1)
    """Learning rate, constant."""
    weight_decay: float = Field(default=0.01, ge=0, le=1)
    """AdamW's weight decay."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """A gradient with a larger norm is scaled down to this norm."""
    gradient_accumulation_steps: int = renamed_field("grad_accum", 1, ge=1)
    """Batches (groups, under greedy-then-GRPO) whose gradients are averaged into one step."""
    micro_batch_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of one forward and backward pass; on a CPU shared parts of trajectories count once, elsewhere padding
    counts. A longer trajectory has its own pass and computes activations twice. None: 4096, or 2048 on a CPU if memory
    holds no more. It is more if the longest trajectory needs it and memory holds it. It changes memory use, not the
    result."""


class PolicyConfig(Settings):
    model_path: Annotated[str, FlagName("model")] = os.path.relpath(TINY_POLICY)
    """A Hugging Face chat model, or an adapter on one, which a training command trains further: a folder, or its id on
    the hub, ORG/NAME. The default, the small policy, is made first if it does not exist."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU if there is one."""
    precision: PrecisionName = "auto"
    """Precision of the update's matrix products on a CPU. auto: bfloat16 if the CPU has it in hardware (AVX-512 BF16,
    AMX) and the model has 20 million weights or more. Weights and sampling stay float32. A GPU uses bfloat16."""


class ModelConfig(PolicyConfig):
    load_in_4bit: bool = False
    """Hold the base model in 4 bits (NF4); needs bitsandbytes and a GPU."""
    gradient_checkpointing: bool = False
    """Compute activations twice instead of storing them: a third slower, with a fraction of the memory."""
    shared_prompts: SharedPrompts | None = None
    """How an update computes once the parts that trajectories of a pass share. None: by torch's own attention on a CPU;
    on a GPU each trajectory is computed in full. flex_attention: by torch's flex_attention (experimental: checked on a
    CPU, where it is slow; a GPU has not run it)."""


class LossConfig(CreditSettings):
    float64: ClassVar[bool] = True
    """Advantages are computed in float64."""
    name: Annotated[LossName, FlagName("loss")] = "grpo"
    """The policy's loss: grpo (PPO's clipped ratio), gspo, cispo, sapo, reinforce, or another row of
    `sql_agent.credit.registry`."""
    estimator: EstimatorName | None = None
    """The advantage: grpo (relative to the group), rloo (to the others of the group), reinforce (the reward itself), or
    another row of `sql_agent.credit.registry`; None: grpo."""
    clip_ratio: float = renamed_field("clip_param", 0.2, gt=0, lt=1)
    """PPO's epsilon."""
    kl_coef: float = renamed_field("beta", 0.04, ge=0)
    """Weight of KL(policy, reference), k3 estimator; 0 uses no reference."""
    aggregation: Annotated[Aggregation, FlagName(None)] = "seq-mean-token-mean"
    """How token losses are averaged: with equal weight per sequence, as in GRPO's paper; with equal weight per token;
    or without length normalisation, divided by `max_tokens` (arXiv:2503.20783)."""
    max_tokens: Annotated[int | None, FlagName(None)] = Field(default=None, ge=1)
    """The divisor of `seq-mean-token-sum-norm`; no other aggregation uses it."""

    @model_validator(mode="after")
    def _has_its_constant(self) -> Self:
        if (self.aggregation == "seq-mean-token-sum-norm") != (self.max_tokens is not None):
            raise ValueError("max_tokens belongs to aggregation seq-mean-token-sum-norm: give both or neither")
        return self


def check_environment(name: str, database: Path | str | None, call_timeout_s: float = 30.0) -> None:
    """Check that flags name an environment that a local command can play.

    Raises:
        ValueError: there is no such environment, it does not go with a database, or it is an agent of the user's own.
    """
    if name == "agent":
        raise ValueError(
            "--env agent: an agent of your own calls the policy over HTTP, which only the main job serves; train "
            f"it with `{agentgrpo_command('train', '--agent', 'FILE.py:NAME')}`, or give its tools "
            "as a class, --env FILE.py:NAME (doc/guides/environment.md)"
        )
    try:
        EnvConfig(type=name, database=database, call_timeout_s=call_timeout_s)
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None


def check_skills(skills: Iterable[str]) -> None:
    """Raises ValueError: one of the skills is unknown."""
    from dbbench_adapter.sql_skills import SKILLS  # imports a parser of SQL

    for skill in skills:
        if skill not in SKILLS:
            meant = did_you_mean(skill, SKILLS) or f"; known: {', '.join(SKILLS)}"
            raise ValueError(f"unknown skill {skill!r}{meant}")


FLAGS_OF = {
    "judge": ("dbbench", "text2sql"),
    "backend": ("dbbench",),
    "protocol": ("dbbench",),
    "columns": ("text2sql",),
    "schema_form": ("text2sql",),
}
"""The environments that read a flag, by its name."""


def check_flags(cfg: Settings, env: str, flags: Mapping[str, tuple[str, ...]]) -> None:
    """Check that the environment reads the flags that were given.

    Raises:
        ValueError: it does not read one of them.
    """
    for name, environments in flags.items():
        if name in cfg.model_fields_set and env not in environments:
            known = " or ".join(environments)
            raise ValueError(f"--{dashed(name)} belongs to --env {known}, this one is {env}; leave it out")


class DbBenchConfig(Settings):
    """The flags of DB-Bench's episodes; the judge is one of the environment's."""

    backend: BackendSpec = "sqlite"
    """For dbbench: database of the episodes: sqlite, mariadb (a private server) or mysql://user:password@host:port."""
    judge: Judge = "strict"
    """How episodes are judged: strict, or as the original does; for text2sql by the evaluators of Spider and BIRD."""
    protocol: ProtocolName = "fc"
    """For dbbench: how the agent acts, by tool calls (fc), or in plain text as AgentBench (text) and LifelongAgentBench
    (lab)."""


class EnvironmentFlags(DbBenchConfig, QuestionsConfig):
    """The flags that name an environment."""

    env: str | None = None
    """The environment: dbbench, text2sql or gsm8k; or your own, FILE.py:NAME, module:NAME or an
    installed package's entry point. None: text2sql if there is a database, else dbbench."""
    database: DatabaseSpec | None = None
    """For text2sql: your own SQLite or DuckDB file, a folder with DB_ID/DB_ID.sqlite, or
    mysql:// or postgresql://user:password@host:port/database. It is only read."""
    call_timeout_s: float = Field(default=30.0, gt=0, validation_alias="call_timeout")
    """Seconds that one call of your own environment's code may take; a call that takes longer loses its episode."""

    @property
    def env_type(self) -> str:
        return self.env or ("text2sql" if self.database else "dbbench")

    @property
    def environment(self) -> EnvironmentSettings:
        return EnvironmentSettings.of(self.env_type, self)


class EnvironmentConfig(EnvironmentFlags):
    """The flags of an environment that a command plays in its own process."""

    @model_validator(mode="after")
    def _has_an_environment(self) -> Self:
        check_environment(self.env_type, self.database, self.call_timeout_s)
        check_flags(self, self.env_type, FLAGS_OF)
        return self


class SamplingConfig(Settings):
    """The limits and the sampling of an episode."""

    max_turns: int | None = renamed_field("max_rounds", 3, ge=1, le=100)
    """Replies per episode."""
    max_tokens: int = renamed_field("max_new_tokens", 512, ge=1)
    """Tokens of one reply."""
    temperature: float = Field(default=0.8, gt=0, le=10)
    """Temperature of the sampled episodes."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Top-p of the sampled episodes. Below 1 the update would be off-policy, since log-probs are taken before the cut;
    only greedy-grpo accepts it, as its predecessor did."""
    rollout_timeout_s: float = Field(default=ROLLOUT_TIMEOUT_S, gt=0)
    """Wall-clock seconds of a whole episode; an episode that takes longer is lost."""


class RewardSettings(Settings):
    """What an episode is worth, and when a run stops because too many have no reward."""

    reward: RewardNames | None = None
    """Reward of an episode, as in the main job: a preset (agentbench, agent_peft, rllm, skyrl_sql, execution, partial),
    your own function (FILE.py:NAME or module:NAME), judge (an LLM's score) or ranking (an LLM ranks the
    group). Several are summed, each with its weight. A preset passes on the reward that your own environment gives.
    None: the command's own values by outcome."""
    reward_timeout_s: float = Field(default=30.0, gt=0)
    """Seconds that one call of a reward function may take; after that the episode is lost under reward_deadline."""
    reward_on_error: float | None = None
    """Reward of an episode on which a reward function raises a ValueError, KeyError or the like, or returns no number.
    Give a value that is no better than a wrong answer's. None: the episode is lost under reward_error."""
    max_lost_fraction: float = Field(default=1.0, ge=0, le=1)
    """A batch that loses a larger share of its episodes stops the run with the most frequent reason; 1: only three
    batches in a row without any verdict stop it."""
    reward_model: RewardModelConfig = RewardModelConfig()
    llm_judge: JudgeConfig = JudgeConfig()

    @model_validator(mode="after")
    def _asks_the_judge_that_is_there(self) -> Self:
        check_judge_asked(self.rollout, self.llm_judge)
        return self

    @model_validator(mode="after")
    def _services_are_named(self) -> Self:
        services = {
            "reward_model": (self.reward_model, "a reward model; add --reward-model-url"),
            "judge": (self.llm_judge, "an LLM as judge; add --judge-url, --judge-model and --judge-rubric"),
        }
        for group, (given, needed) in services.items():
            if given.url is None and given != type(given)():
                name = next(name for name, value in type(given)() if getattr(given, name) != value)
                raise ValueError(f"{group}.{name} has no effect without {needed}, or leave it out")
        return self

    @property
    def rollout(self) -> RolloutConfig:
        """The same as settings of the source; without `reward` its preset is not read."""
        return RolloutConfig(
            reward=self.reward or "agentbench",
            reward_timeout_s=self.reward_timeout_s,
            reward_on_error=self.reward_on_error,
            max_resamples=0,
            max_lost_fraction=self.max_lost_fraction,
        )


class LocalConfig(SamplingConfig, RewardSettings):
    """What every local trainer has; the commands below differ in defaults and in where their tasks come from."""

    model: ModelConfig = ModelConfig()
    reference_model_path: Annotated[str | None, FlagName("reference-model")] = None
    """Model that the KL is measured against; none: the policy as it was loaded, without the trained adapter."""
    group_size: int = Field(default=4, ge=2, le=1024)
    """Sampled episodes per task."""
    batch_size: int = Field(default=8, ge=1)
    """Tasks whose episodes run side by side and are then trained on together."""
    num_epochs: int = Field(default=1, ge=1)
    """Passes over the tasks."""
    minutes: float | None = Field(default=None, gt=0)
    """Time limit of this start in minutes, with evaluations. After each batch the run plans as many as fit. The last
    one has its evaluation, checkpoint and adapter. None: all epochs."""
    sampler: Annotated[str, known(SAMPLERS)] = "shuffled"
    """The order of the tasks of an epoch: shuffled (another one in each), in_order (that of the file), or another row
    of `sql_agent.names.SAMPLERS`."""
    max_resamples: int = renamed_field("redraws", 0, ge=0)
    """How many times a group whose rewards are all equal is replaced by a group of another task; 0: never."""
    eval_tasks: int = Field(default=0, ge=0)
    """Held-out tasks to evaluate before training and after it; 0: none."""
    eval_every: int | None = Field(default=None, ge=0)
    """Batches between evaluations on held-out tasks; 0: none in between. None: one after each epoch."""
    save_every: int | None = Field(default=None, ge=1)
    """Batches between checkpoints, which follow each epoch too; a killed run loses the work after its last one. None: a
    checkpoint every five minutes."""
    run_dir: Path = Path("outputs/local")
    """Folder of the run."""
    adapter: AdapterConfig = AdapterConfig()
    optim: OptimConfig = OptimConfig()
    loss: LossConfig = LossConfig()
    seed: int = Field(default=0, ge=0)
    """Seed of the tasks, of the new adapter and of the samples."""

    @model_validator(mode="after")
    def _has_what_it_measures(self) -> Self:
        if self.eval_every and not self.eval_tasks:
            raise ValueError(
                f"--eval-every {self.eval_every} measures on held-out tasks, and --eval-tasks is 0; give their number, "
                "or leave --eval-every out"
            )
        return self

    @property
    def environment(self) -> EnvironmentSettings:
        """The environment that is played; the settings of each command name their own."""
        raise NotImplementedError

    @property
    def limits(self) -> AgentConfig:
        return AgentConfig(max_turns=self.max_turns, max_tokens=self.max_tokens, protocol=self.environment.protocol)

    @property
    def rollout(self) -> RolloutConfig:
        return super().rollout.model_copy(update={"max_resamples": self.max_resamples})


class DbBenchTrainingConfig(LocalConfig, DbBenchConfig):
    """What local trainers have that play DB-Bench only."""

    judge: JudgeName = "strict"
    """How episodes are judged: strict, or as an original does."""

    @property
    def environment(self) -> EnvironmentSettings:
        return EnvironmentSettings.of("dbbench", self)


def check_held_out(cfg: GreedyGrpoConfig | LocalGrpoConfig) -> None:
    """Check that there is something to measure on if the run measures.

    Raises:
        ValueError: tasks of a file are to be held out, and none of them are.
    """
    if cfg.train_file is not None and cfg.val_file is None and not cfg.held_out_fraction and cfg.eval_tasks:
        raise ValueError(
            f"--held-out-fraction 0 trains on every row of {cfg.train_file}, and --eval-tasks {cfg.eval_tasks} plays "
            "held-out ones; give them with --val-file FILE, or --eval-tasks 0"
        )


class GreedyGrpoConfig(DbBenchTrainingConfig, TaskFiles):
    """The flags of `agentgrpo greedy-grpo` with their defaults."""

    train_file: Path | None = renamed_field("data", None)
    """Task file, in any known form of DB-Bench tasks; none: `num_tasks` are generated."""
    num_tasks: int = Field(default=200, ge=1)
    """Tasks to train on: generated, or drawn from `train_file` by the seed, the same number of every kind."""
    skills: tuple[str, ...] = ()
    """Skills, separated by commas, that generated tasks show, e.g. select,delete; none: tasks of every kind."""
    batch_size: Annotated[int, FlagName(None)] = 1
    sampler: Annotated[str, known(SAMPLERS)] = "in_order"
    """The order of the tasks of an epoch: in_order (as they were drawn), shuffled (another one in each), or another
    row of `sql_agent.names.SAMPLERS`."""
    eval_tasks: int = Field(default=0, ge=0)
    """Held-out tasks, of `train_file` or generated, to evaluate before and after training, greedily and at temperature
    1; 0: none."""
    eval_every: int | None = Field(default=0, ge=0)
    """Tasks between further evaluations; 0: none in between."""
    run_dir: Path = renamed_field("save_dir", Path("outputs/dbbench_greedy_grpo"))
    """Folder of the run."""

    @field_validator("skills", mode="before")
    @classmethod
    def _separated(cls, value: Any) -> Any:
        return tuple(map(str.strip, value.split(","))) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _generates_what_has_skills(self) -> Self:
        check_skills(self.skills)
        if self.skills and self.train_file:
            raise ValueError("--skills is for generated tasks; leave it or --train-file out")
        if self.val_file and not self.train_file:
            raise ValueError("--val-file goes with --train-file; generated tasks have their own held-out ones")
        check_held_out(self)
        return self

    @property
    def data(self) -> DataConfig:
        return DataConfig(**self.files)


class BatchGrpoConfig(LocalConfig):
    """What `local` and `gsm8k` share."""

    max_prompt_tokens: int | None = Field(default=None, ge=16)
    """Most tokens of a first prompt. The schema of a longer one is shortened; other tasks are left out and counted.
    None: the model's context less the response, as in the main job."""
    reward: RewardNames | None = "agentbench"
    """Reward of an episode, as in the main job: a preset (agentbench, agent_peft, rllm, skyrl_sql, execution, partial),
    your own function (FILE.py:NAME or module:NAME), or judge (an LLM's score). Several are summed, each with its
    weight. A preset passes on the reward that your own environment gives."""

    @model_validator(mode="after")
    def _trains_the_policy_that_samples(self) -> Self:
        check_top_p(self.top_p)
        return self


class LocalGrpoConfig(EnvironmentConfig, BatchGrpoConfig, TaskFiles):
    """The flags of `agentgrpo local` with their defaults."""

    num_tasks: int | None = Field(default=None, ge=1)
    """Tasks to train on, drawn by the seed, the same number of every kind; none: all, or 512 generated ones."""
    eval_tasks: int = Field(default=64, ge=0)
    """Held-out tasks to evaluate greedily before training and after each epoch; 0: none."""
    max_turns: int | None = Field(default=None, ge=1, le=100)
    """Replies per episode; none: the environment's own limit."""
    run_dir: Path = Path("outputs/local_grpo")
    """Folder of the run."""

    @model_validator(mode="after")
    def _holds_out_what_it_plays(self) -> Self:
        check_held_out(self)
        return self

    @property
    def data(self) -> DataConfig:
        generate = self.num_tasks or DataConfig().generate
        return DataConfig(**self.files, generate=generate, val_limit=max(self.eval_tasks, 1))


class Gsm8kGrpoConfig(BatchGrpoConfig):
    """The flags of `agentgrpo gsm8k` with their defaults."""

    dataset: str = "generated"
    """gsm8k, from the hub, fetched if it is not in the cache; a JSONL or parquet file of the same form; or generated.
    gsm8k:FILE and gsm8k:generated, as in fine-tuning, work too."""
    num_tasks: int | None = renamed_field("max_samples", None, ge=1)
    """Problems to train on; none: the whole dataset, or 1000 generated ones."""
    eval_tasks: int = renamed_field("eval_samples", 0, ge=0)
    """Held-out problems of the same dataset to evaluate greedily before training and after each epoch; 0: none."""
    group_size: int = renamed_field("samples_per_prompt", 4, ge=2, le=1024)
    """Sampled episodes per problem."""
    max_turns: int | None = renamed_field("max_rounds", 10, ge=1, le=100)
    """Replies per episode, the answer included."""
    max_tokens: int = renamed_field("max_new_tokens", 256, ge=1)
    """Tokens of one reply."""
    num_epochs: int = renamed_field("total_epochs", 1, ge=1)
    """Passes over the problems."""
    run_dir: Path = renamed_field("output_dir", Path("outputs/gsm8k_grpo"))
    """Folder of the run."""

    @property
    def source(self) -> str:
        return self.dataset.removeprefix("gsm8k:")

    @property
    def data(self) -> DataConfig:
        file = None if self.source == "generated" else Path(self.source)
        return DataConfig(train_file=file, generate=self.num_tasks or 1000, val_limit=max(self.eval_tasks, 1))

    @property
    def environment(self) -> EnvironmentSettings:
        return EnvironmentSettings.of("gsm8k", self)


class InteractiveConfig(DbBenchConfig, QuestionsConfig):
    """The flags of `agentgrpo interactive` with their defaults."""

    model: ModelConfig = ModelConfig()
    env: str = renamed_field("task", "dbbench")
    """Environment that the model was trained on: dbbench, text2sql, gsm8k or another one of this project; or your own,
    FILE.py:NAME, module:NAME or an installed package's entry point."""
    tasks: str | None = Field(default=None, validation_alias=AliasChoices("train_file", "val_file", "data"))
    """File of tasks for :tasks and :task N, in any form that training takes; none: generated ones, if the environment
    makes tasks."""
    database: DatabaseSpec | None = None
    """Your own SQLite file, which is only read. For dbbench its tables are copied; text2sql also takes a DuckDB file, a
    folder with DB_ID/DB_ID.sqlite, or mysql:// or postgresql://user:password@host:port/database."""
    max_prompt_tokens: int | None = Field(default=None, ge=16)
    """Most tokens of a first prompt; the schema of a longer one is shortened. None: the model's context less the
    response, as in training."""
    max_tokens: int = renamed_field("max_new_tokens", 512, ge=1)
    """Tokens of one reply."""
    temperature: float = Field(default=0.0, ge=0, le=10)
    """Sampling temperature; 0 is greedy."""
    seed: int = Field(default=0, ge=0)
    """Seed of the sampling and of generated tasks."""

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        if self.env == "dbbench" and self.tasks is not None and self.database is not None:
            raise ValueError(
                "--tasks about --database need --env text2sql, because this model does not say that it learnt from a "
                "database; or give one of the two"
            )
        check_flags(self, self.env, {"database": ("dbbench", "text2sql"), **FLAGS_OF})
        if self.env == "dbbench" and isinstance(self.database, str):
            raise ValueError(
                f"--database {self.database}: the tables that --env dbbench asks about are copied from a SQLite file; "
                "--env text2sql asks a database on a server"
            )
        check_environment(self.env, self.database if self.env == "text2sql" else None)
        return self

    @property
    def environment(self) -> EnvironmentSettings:
        return EnvironmentSettings.of(self.env, self)

    @property
    def limits(self) -> AgentConfig:
        return AgentConfig(protocol=self.protocol, max_tokens=self.max_tokens)
