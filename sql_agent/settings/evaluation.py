"""Defines the settings of `agentgrpo evaluate`. Importing this module is instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from agentgrpo.flags import FlagName
from sql_agent.names import check_name, weights_of
from sql_agent.settings.groups import AgentConfig, check_deadlines
from sql_agent.settings.local import EnvironmentFlags

LIMITS = ("max_tokens", "max_turns", "statement_timeout_s", "turn_timeout_s", "rollout_timeout_s")
"""Limits of a rollout, in training under `agent`."""


class EvaluateConfig(EnvironmentFlags):
    """The flags of `agentgrpo evaluate` with their defaults."""

    base_url: str
    """OpenAI-compatible endpoint up to and including /v1."""
    model: str
    """Name of the model at that endpoint."""
    tasks: Path = Field(validation_alias="val_file")
    """Task file: AgentBench, LifelongAgentBench or generated tasks, questions about the database, or rows of your
    environment or agent."""
    split: Literal["held-out", "train", "all"] | None = None
    """Rows of the file to use: held-out or train, as training and fine-tuning split the file, or all. None: all, unless
    the model was trained on one of them."""
    agent: Annotated[str | None, FlagName("agent", "FILE.py:NAME")] = None
    """Your own agent, as in training; --tasks has its rows."""
    reward: tuple[str, ...] = ()
    """With your own agent: a function of the rollout's record, FILE.py:NAME[=WEIGHT]; repeat to sum several."""
    success_reward: float | None = None
    """Smallest reward that counts as a success, if the agent or the environment does not report success."""
    instructions: Path | None = None
    """Text file that replaces the instructions of the first prompt, for example prompt.txt of `--algorithm apo`."""
    limit: int | None = Field(default=None, ge=1)
    """Number of tasks to run, drawn evenly over the question types; always the same ones. None: all."""
    concurrency: int = Field(default=16, ge=1)
    """Rollouts in flight."""
    temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature; 0 is greedy."""
    max_tokens: int = Field(default=AgentConfig().max_tokens, ge=1)
    """Most tokens of a reply, like agent.max_tokens."""
    max_turns: int | None = Field(default=None, ge=1)
    """Most replies of a rollout, like agent.max_turns. None: the environment's own limit."""
    statement_timeout_s: float = Field(default=AgentConfig().statement_timeout_s, gt=0)
    """Seconds that one SQL statement may take, like agent.statement_timeout_s."""
    turn_timeout_s: float = Field(default=AgentConfig().turn_timeout_s, gt=0)
    """Seconds that one call of the model may take, like agent.turn_timeout_s."""
    rollout_timeout_s: float = Field(default=AgentConfig().rollout_timeout_s, gt=0)
    """Seconds of a whole rollout, like agent.rollout_timeout_s; one that takes longer is lost."""
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of a first prompt; the schema of a longer one is shortened. None: the model's context less the
    response, as in training."""
    samples: int = Field(default=1, ge=1)
    """Rollouts of each task. With several, pass@N counts tasks that one of them solved, and vote@N those whose most
    frequent result is right."""
    output: Path | None = None
    """File for the trajectories. None: runs/evaluate/TIME.jsonl."""
    solved_tasks: Path | None = None
    """File for the tasks that were solved at least once, to train on them."""
    learnable_tasks: Path | None = None
    """File for the tasks that some rollouts solved and others did not. With rewards of 1 or 0, GRPO learns from these
    alone."""
    predictions: Path | None = None
    """For text2sql: a folder for predictions.sql and gold.sql, which Spider's `evaluation.py` reads as they are."""

    @field_validator("env")
    @classmethod
    def _known_name(cls, name: str | None) -> str | None:
        if name is not None:
            check_name(name)
        return name

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        if (self.env_type == "agent") != (self.agent is not None):
            raise ValueError("--env agent and --agent FILE.py:NAME belong together; give --agent alone")
        if self.reward and not self.agent:
            raise ValueError("--reward is for an agent of your own, --agent; an environment says itself what is right")
        weights_of(self.reward)
        check_deadlines(self.statement_timeout_s, self.turn_timeout_s, self.rollout_timeout_s)
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                "--samples of a task are all the same at --temperature 0; give --temperature 1, or leave out --samples"
            )
        if self.predictions is not None and (self.env_type != "text2sql" or self.samples > 1):
            raise ValueError("--predictions are one query for each question of a --database; leave it out")
        if self.samples == 1 and self.learnable_tasks is not None:
            raise ValueError("--learnable-tasks needs several --samples of a task, and --temperature 1")
        return self

    @property
    def env_type(self) -> str:
        return self.env or ("agent" if self.agent else super().env_type)

    @property
    def limits(self) -> AgentConfig:
        given = {name: getattr(self, name) for name in LIMITS}
        return AgentConfig(protocol=self.protocol, temperature=self.temperature, **given)

    @property
    def weights(self) -> dict[str, float]:
        """The entries of `reward`, each with its weight."""
        return weights_of(self.reward)
