"""Train on DB-Bench with rLLM's `AgentTrainer` over verl.

    python -m dbbench_adapter.rllm.train_dbbench_rllm +dbbench.train_file=$PWD/train.jsonl \\
        +dbbench.val_file=$PWD/validation.jsonl actor_rollout_ref.model.path=MODEL data.train_batch_size=32 ...

`+dbbench.NAME=VALUE` are the fields of `Settings`; everything else goes to rLLM's `agent_ppo_trainer` config and so to
verl. It needs rLLM 0.2.1.post1 and a GPU. Tests drive agent and environment with rLLM's own engine; a whole training by
this command, which needs a GPU and rLLM's pins of verl and vLLM, was not run.
"""

from __future__ import annotations

if __name__ == "__main__":
    from agentgrpo.commands import run_module

    run_module("dbbench_adapter.rllm.train_dbbench_rllm")

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agentgrpo.commands import failed
from dbbench_adapter.judges import JudgeName
from dbbench_adapter.protocols import PROTOCOLS
from dbbench_adapter.rllm.agent import DBBenchAgent
from dbbench_adapter.rllm.env import MAX_ROUNDS, OUT_OF_ROUNDS, DBBenchEnv
from dbbench_adapter.rllm.interfaces import RLLM_VERSION, RllmMissingError, require_rllm
from dbbench_adapter.rllm.registry import register_tasks
from dbbench_adapter.tasks.load import load_tasks

DATASET = "dbbench"


class Settings(BaseModel):
    # Everything else in the command line goes to rLLM's own config.

    model_config = ConfigDict(frozen=True, extra="forbid")

    train_file: Path
    """Tasks to train on, in any form that `load_tasks` reads."""
    val_file: Path
    """Held-out tasks; `agentgrpo tasks split` makes both."""
    backend: str = "sqlite"
    protocol: Literal["lab", "text"] = "lab"
    judge: JudgeName = "strict"
    max_rounds: int = Field(MAX_ROUNDS, ge=1)
    """Rounds per episode. With `lab` a round is a reply, with `text` a statement, after which one more reply may
    answer; rLLM's rllm.agent.max_steps must not be lower than the number of replies."""

    @property
    def max_replies(self) -> int:
        return PROTOCOLS[self.protocol].max_replies(self.max_rounds)

    def env_args(self) -> dict[str, Any]:
        return self.model_dump(include={"backend", "protocol", "judge", "max_rounds"})


def train(config: Any) -> None:
    """Register both sets of tasks and train.

    Args:
        config: rLLM's composed config with a group `dbbench`.
    Raises:
        ValueError: the group `dbbench` is missing or wrong, the engine would stop episodes before their last reply or
            not ask for their final reward, or no task of a file can be judged.
        TaskFileError: a task file cannot be read.
    """
    from omegaconf import OmegaConf
    from rllm.trainer.agent_trainer import AgentTrainer  # pyright: ignore[reportMissingImports]

    group = config.get("dbbench")
    settings = Settings.model_validate({} if group is None else OmegaConf.to_container(group, resolve=True))
    if config.rllm.agent.max_steps < settings.max_replies:
        raise ValueError(
            f"rllm.agent.max_steps={config.rllm.agent.max_steps} stops episodes before their last reply: "
            f"dbbench.max_rounds={settings.max_rounds} of protocol {settings.protocol} may take {settings.max_replies} "
            f"replies; set rllm.agent.max_steps={settings.max_replies} or more"
        )
    if config.rllm.agent.get("overlong_filter", False):
        raise ValueError(
            "rllm.agent.overlong_filter=true pays trajectories that were cut 0, more than a wrong answer gets, and "
            f"rLLM {RLLM_VERSION} trains them all the same; leave it false, then they get {OUT_OF_ROUNDS}"
        )
    env_args = settings.env_args()
    AgentTrainer(
        agent_class=DBBenchAgent,
        env_class=DBBenchEnv,
        agent_args={},
        env_args=env_args,
        config=config,
        train_dataset=register_tasks(DATASET, load_tasks(settings.train_file), "train", **env_args),
        val_dataset=register_tasks(DATASET, load_tasks(settings.val_file), "validation", **env_args),
    ).train()


def main() -> int:
    try:
        require_rllm()
    except RllmMissingError as error:
        return failed(error)
    import hydra

    hydra.main(config_path="pkg://rllm.trainer.config", config_name="agent_ppo_trainer", version_base=None)(train)()
    return 0
