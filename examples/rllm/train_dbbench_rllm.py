"""Train on DB-Bench with rLLM's `AgentTrainer` over verl.

    python examples/rllm/train_dbbench_rllm.py +dbbench.train_file=$PWD/train.jsonl \\
        +dbbench.val_file=$PWD/validation.jsonl actor_rollout_ref.model.path=MODEL data.train_batch_size=32 ...

`+dbbench.NAME=VALUE` are the fields of `Settings`; everything else goes to rLLM's `agent_ppo_trainer` config and so to
verl. It needs rLLM 0.2.1.post1 and a GPU. Tests drive agent and environment with rLLM's own engine; a whole training by
this command, which needs a GPU and rLLM's pins of verl and vLLM, was not run.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

try:
    import hydra
    from dbbench_bridge import MAX_ROUNDS, PAID, DBBenchAgent, DBBenchEnv, UnjudgedError, rllm_rows
    from omegaconf import OmegaConf
    from rllm.data.dataset import DatasetRegistry  # pyright: ignore[reportMissingImports]
    from rllm.trainer.agent_trainer import AgentTrainer  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError as error:
    sys.exit(
        f"error: {error}; this needs rLLM 0.2.1.post1, in an environment of its own: "
        "pip install 'rllm @ git+https://github.com/rllm-org/rllm@v0.2.1.post1' (it is on no package index, and newer "
        "ones have no agents and environments)"
    )

from agentgrpo.printed_commands import agentgrpo_command
from dbbench_adapter.datatypes import Task
from dbbench_adapter.judges import JudgeName
from dbbench_adapter.protocols import PROTOCOLS
from dbbench_adapter.tasks.load import load_tasks

logger = logging.getLogger(__name__)

# A reply that ends an episode of either protocol with an answer, so that it is judged.
_ANYTHING = "I answer.\nAction: Answer\nFinal Answer: -"


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    train_file: Path
    """Tasks to train on, in any form that `load_tasks` reads."""
    val_file: Path
    """Held-out tasks; `agentgrpo tasks split` makes both."""
    backend: str = "sqlite"
    protocol: Literal["lab", "text"] = "lab"
    judge: JudgeName = "strict"
    max_rounds: int = Field(MAX_ROUNDS, ge=1)

    @property
    def max_replies(self) -> int:
        return PROTOCOLS[self.protocol].max_replies(self.max_rounds)


def train(config: Any) -> None:
    """Register both sets of tasks and train.

    Args:
        config: rLLM's composed config with a group `dbbench`.
    Raises:
        ValueError: the group `dbbench` is missing or wrong, the engine would stop episodes before their last reply or
            not ask for their final reward, or no task of a file can be judged.
        TaskFileError: a task file cannot be read.
    """
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
            f"rLLM trains them all the same; leave it false, then they get {PAID.out_of_limits}"
        )
    env_args = settings.model_dump(exclude={"train_file", "val_file"})
    AgentTrainer(
        agent_class=DBBenchAgent,
        env_class=DBBenchEnv,
        agent_args={},
        env_args=env_args,
        config=config,
        train_dataset=register_tasks(load_tasks(settings.train_file), "train", **env_args),
        val_dataset=register_tasks(load_tasks(settings.val_file), "validation", **env_args),
    ).train()


def register_tasks(tasks: Sequence[Task], split: str, **env_args: Any) -> Any:
    """Add the tasks that can be judged to rLLM's registry, as its data set `dbbench`; a warning counts the others.

    A task that nobody can judge has no reward in rLLM: its episode raises, and after three tries ends the whole step.

    Args:
        env_args: the settings that `DBBenchEnv` will be made with.
    Returns:
        The `rllm.data.Dataset`; its `get_verl_data_path()` is the parquet file that verl reads.
    Raises:
        ValueError: none of the tasks can be judged, or there are none.
        BackendUnavailable: the database server is gone.
    """
    reasons = [unjudged_reason(task, **env_args) for task in tasks]
    judged = [task for task, reason in zip(tasks, reasons, strict=True) if reason is None]
    counts = Counter(reason for reason in reasons if reason is not None)
    lost = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
    if not judged:
        raise ValueError(
            f"none of the {len(tasks)} tasks of split {split!r} can be judged ({lost or 'it has no tasks'}); "
            f"`{agentgrpo_command('tasks validate', 'FILE', '--replay', 'sqlite')}` says what is wrong with each"
        )
    if lost:
        logger.warning(
            "%d of %d tasks of split %r are left out, since nobody can judge them: %s",
            *(len(tasks) - len(judged), len(tasks), split, lost),
        )
    return DatasetRegistry.register_dataset("dbbench", rllm_rows(judged), split)


def unjudged_reason(task: Task, **env_args: Any) -> str | None:
    """Why an episode of a task has no verdict, or None if it has one: an episode is played with any answer.

    Raises:
        BackendUnavailable: the database server is gone.
    """
    env = DBBenchEnv(task, **env_args)
    env.reset()
    try:
        status = env.step(_ANYTHING)[3]["status"]
    except UnjudgedError as error:
        return error.reason
    return None if status == "completed" else status


if __name__ == "__main__":
    hydra.main(config_path="pkg://rllm.trainer.config", config_name="agent_ppo_trainer", version_base=None)(train)()
