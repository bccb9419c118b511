"""What `agentgrpo evaluate` has to be given to measure a run's policy; run.json keeps it for the report."""

from __future__ import annotations

from agentgrpo.flags import dashed
from sql_agent.names import JUDGE, RANKING, functions
from sql_agent.settings.evaluation import LIMITS
from sql_agent.settings.groups import DataConfig
from sql_agent.settings.train import TrainConfig


def evaluate_flags(cfg: TrainConfig) -> list[str] | None:
    """What `agentgrpo evaluate` has to be given to play a run's held-out tasks as the run does.

    None where it has no flags for it: generated tasks, tasks of some skills, another share held out, a reward of an
    LLM.
    """
    data, env = cfg.data, cfg.env
    tasks = data.val_file or data.train_file
    rewards = cfg.rollout.weights if env.agent else {}
    if (
        tasks is None
        or data.skills
        or {JUDGE, RANKING} & set(rewards)
        or (data.val_file is None and data.held_out_fraction != DataConfig().held_out_fraction)
    ):
        return None
    given = {
        "env": None if env.agent or env.type in ("dbbench", "text2sql") else env.type,
        "agent": env.agent,
        "database": env.database,
        "tasks": tasks,
        "split": None if data.val_file else "held-out",
        "max-prompt-tokens": data.max_prompt_tokens,
        "instructions": cfg.agent.instructions,
    }
    played = (
        (cfg.rollout, ("backend", "judge")),
        (cfg.agent, ("protocol", *LIMITS)),
        (env, ("call_timeout_s", "schema_form")),
    )
    for group, names in played:
        values = {name: getattr(group, name) for name in names}
        given |= {dashed(n): v for n, v in values.items() if v != type(group).model_fields[n].default}
    flags = [word for flag, value in given.items() if value is not None for word in (f"--{flag}", str(value))]
    for reward in functions(rewards):
        weight = rewards[reward]
        flags += ["--reward", reward if weight == 1 else f"{reward}={weight:g}"]
    return flags
