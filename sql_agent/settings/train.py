"""Defines the settings of the main job and the rules that span their groups. Importing this module is instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from agentgrpo.flags import FlagName
from agentgrpo.settings import Settings
from dbbench_adapter.judges import JudgeName
from sql_agent.names import ENVIRONMENTS, JUDGE, RANKING, functions
from sql_agent.settings.groups import (
    AgentConfig,
    DataConfig,
    EnvConfig,
    EnvironmentSettings,
    JudgeConfig,
    RewardModelConfig,
    address,
)
from sql_agent.settings.main_job import (
    ApoConfig,
    ClusterConfig,
    EngineConfig,
    LoraConfig,
    LossConfig,
    OptimConfig,
    RolloutConfig,
    StoreConfig,
    TrainerConfig,
    check_judge_asked,
)

MOST_CALLS = 512
"""Connections that may begin together at a server of a run (`agentgrpo.http_protocol.MAX_NEW_UNKNOWN`)."""


class TrainConfig(Settings):
    algorithm: Annotated[Literal["grpo", "apo"], FlagName("algorithm")] = "grpo"
    """grpo trains the policy's weights. apo improves the instructions of a policy that is already served, by
    agent-lightning's APO (`doc/guides/apo.md`)."""
    base_url: Annotated[str | None, FlagName("base-url"), address("POLICY_API_KEY")] = None
    """With `algorithm=apo`: address up to /v1 where the policy is served under the name `model`. The environment
    variable POLICY_API_KEY holds its key, if it needs one."""
    apo: ApoConfig = ApoConfig()
    model: Annotated[Path | None, FlagName("model")] = None
    """A Hugging Face folder, or the id of a model on the hub (ORG/NAME), with a chat template. The template has to
    write tool calls, unless `agent.protocol` is one of plain text. None: the small policy, made on this machine."""
    run_dir: Annotated[Path, FlagName("run-dir")] = Path("runs/sql-agent")
    """Folder for all files of the run."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the tasks, of their order and of the samples."""
    llm_proxy: Annotated[bool, FlagName("llm-proxy")] = False
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
    cluster: ClusterConfig = ClusterConfig()
    engine: EngineConfig = EngineConfig()
    trainer: TrainerConfig = TrainerConfig()
    verl: dict[str, Any] = Field(default={})
    """Keys of verl's own configuration, as a tree, merged last. A key that a setting here sets cannot be among them."""

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
        if RANKING in self.rollout.weights:
            raise ValueError(
                "rollout.reward names ranking, and APO has no groups to rank; name judge, which scores each rollout"
            )
        if self.llm_proxy:
            raise ValueError("algorithm=apo calls the policy at base_url and uses no LLM proxy; leave --llm-proxy out")
        return self

    def micro_batch_tokens(self, *, cpu: bool) -> int:
        """The most tokens of one forward and backward pass, and so of a rollout's row; verl splits no row."""
        return max(self.optim.micro_batch_tokens or (4096 if cpu else 16384), self.data.row_tokens)

    def workers_per_node(self, *, cpu: bool) -> int:
        return self.cluster.workers_per_node if cpu else self.engine.n_gpus

    def workers(self, *, cpu: bool) -> int:
        """Training workers of the run, FSDP's world size."""
        return self.cluster.nodes * self.workers_per_node(cpu=cpu)

    @property
    def rollouts_at_once(self) -> int:
        """The most rollouts that are in flight."""
        batch = self.data.train_batch_size * self.rollout.group_size
        played = self.trainer.max_off_policy_steps * batch + max(batch, self.data.val_limit)
        return min(self.rollout.n_runners * self.rollout.runner_concurrency, played)

    @property
    def environment(self) -> EnvironmentSettings:
        return EnvironmentSettings.of(self.env.type, self.env, self.agent, self.rollout)

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
        if self.agent.rollout_timeout_s + self.reward_wait_s > self.rollout.step_timeout_s:
            raise ValueError(
                f"agent.rollout_timeout_s ({self.agent.rollout_timeout_s:g}) and the wait for the reward "
                f"({self.reward_wait_s:g} s: reward_model.timeout_s, rollout.reward_timeout_s, judge.timeout_s) "
                f"together are longer than rollout.step_timeout_s ({self.rollout.step_timeout_s:g}); a rollout has to "
                "be played and rewarded before its step ends: raise the last, or lower another"
            )
        if self.reward_model.url and self.reward_model.give_up_s > self.rollout.step_timeout_s:
            raise ValueError(
                f"reward_model.give_up_s ({self.reward_model.give_up_s}) is longer than rollout.step_timeout_s "
                f"({self.rollout.step_timeout_s}); a step would end before it says that the reward model is gone: "
                "lower the first, or raise the second"
            )
        return self

    @property
    def max_broken_fraction(self) -> float:
        """The share of broken rollouts above which the run stops."""
        given = self.rollout.max_broken_fraction
        return given if given is not None else 1.0 if self.env.agent is not None else 0.1

    @property
    def reward_wait_s(self) -> float:
        """The seconds that a rollout that has ended may wait for its reward."""
        asked = functions(self.rollout.weights)
        return (
            (self.reward_model.timeout_s if self.reward_model.url else 0.0)
            + (self.rollout.reward_timeout_s if set(asked) - {JUDGE, RANKING} else 0.0)
            + self.judge.timeout_s * len({JUDGE, RANKING} & set(asked))
        )

    @property
    def ending_s(self) -> float:
        """The seconds that a rollout may continue after its deadline.

        It finishes the call that is open, then judges, then closes its episode. Each call of your own environment may
        take `env.call_timeout_s`.
        """
        return 60.0 if self.env.type in ENVIRONMENTS else 4 * self.env.call_timeout_s  # call, get_reward, solved, close

    @model_validator(mode="after")
    def _servers_can_be_asked(self) -> TrainConfig:
        if self.trainer.max_off_policy_steps and not self.llm_proxy:
            raise ValueError(
                "trainer.max_off_policy_steps lets new weights end open calls, which the LLM proxy asks again, and "
                "llm_proxy is false; add --llm-proxy"
            )
        check_judge_asked(self.rollout, self.judge)
        at_once = self.rollouts_at_once
        if at_once > MOST_CALLS:
            raise ValueError(
                f"rollout.n_runners ({self.rollout.n_runners}) times rollout.runner_concurrency "
                f"({self.rollout.runner_concurrency}) lets {at_once:,} rollouts call the policy at once, and a server "
                f"of a run closes new connections beyond {MOST_CALLS}: lower one of the two"
            )
        return self

    @model_validator(mode="after")
    def _goes_with_the_environment(self) -> TrainConfig:
        judge = self.rollout.judge
        environment = self.env.type if judge == "strict" else "dbbench" if judge in get_args(JudgeName) else "text2sql"
        if environment != self.env.type:
            raise ValueError(f"rollout.judge={judge} belongs to env.type={environment}; take strict")
        if self.env.agent is not None and not self.llm_proxy:
            raise ValueError(
                "an agent of your own is traced by the LLM proxy, and llm_proxy is false; add --llm-proxy, or name the "
                "agent by --agent, which sets it"
            )
        if self.env.agent is not None and self.reward_model.url is not None:
            raise ValueError(
                "a reward model scores one conversation, and an agent of your own may hold several; leave "
                "reward_model.url out, and give a function (--reward FILE.py:NAME), which may ask the model itself"
            )
        if self.rollout.train_agents and self.env.agent is None:
            raise ValueError("rollout.train_agents names agents of an agent of your own; add --agent FILE.py:NAME")
        if self.data.skills and self.env.type != "dbbench":
            raise ValueError(f"data.skills are of env.type=dbbench, tasks of {self.env.type} name none; leave them out")
        return self

    @model_validator(mode="after")
    def _samples_can_be_trained_on(self) -> TrainConfig:
        if self.agent.temperature == 0:
            raise ValueError(
                "agent.temperature is 0: all rollouts of a group would be equal and teach nothing; set it above 0"
            )
        check_top_p(self.agent.top_p)
        if self.agent.max_tokens > self.data.max_response_tokens:
            raise ValueError(
                f"agent.max_tokens ({self.agent.max_tokens}) is longer than data.max_response_tokens "
                f"({self.data.max_response_tokens}); one reply would not fit into the row that is trained: "
                "lower the first, or raise the second"
            )
        return self

    @model_validator(mode="after")
    def _is_shared_evenly(self) -> TrainConfig:
        mini, batch = self.optim.mini_batch_size, self.data.train_batch_size
        if mini is not None and (mini > batch or batch % mini):
            raise ValueError(f"optim.mini_batch_size ({mini}) has to divide data.train_batch_size ({batch})")
        n_gpus, tensor_parallel = self.engine.n_gpus, self.engine.tensor_parallel_size
        for setting, gpus in {"engine.n_gpus": n_gpus, "cluster.sampler_gpus": self.cluster.sampler_gpus}.items():
            if gpus % tensor_parallel:
                raise ValueError(
                    f"engine.tensor_parallel_size ({tensor_parallel}) has to divide {setting} ({gpus}): every model "
                    "server uses that many"
                )
        tasks, group = self.optim.mini_batch_size or self.data.train_batch_size, self.rollout.group_size
        nodes = self.cluster.nodes
        workers = {"engine.n_gpus": n_gpus, "cluster.workers_per_node": self.cluster.workers_per_node}
        for setting, per_node in workers.items():
            count = nodes * per_node
            if tasks * group % count:  # verl workers/engine_workers.py, `train_mini_batch`
                name = "optim.mini_batch_size" if self.optim.mini_batch_size else "data.train_batch_size"
                raise ValueError(
                    f"{f'cluster.nodes ({nodes}) times ' * (nodes > 1)}{setting} ({per_node}) has to divide {name} "
                    f"({tasks}) times rollout.group_size ({group}), {tasks * group} rows: every worker trains on an "
                    "equal share"
                )
        return self


def check_top_p(top_p: float) -> None:
    """Check that the policy that is sampled is the one that is trained.

    Raises:
        ValueError: `top_p` is below 1.
    """
    if top_p < 1:
        raise ValueError(
            f"agent.top_p is {top_p:g}: the sampler would leave out the less likely tokens, and the update would take "
            "its samples for those of a policy that does not; leave it at 1 (a lower agent.temperature sharpens both "
            "alike)"
        )
