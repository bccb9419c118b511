"""The names that settings may have for environments, rewards and the default policy, with what each name stands for.

A new environment needs a module and a line here; a user's own needs none, since it is named by `FILE.py:NAME`,
`module:NAME` or an installed package's entry point. The presets' values are in `sql_agent.rewards`. Settings read this
module, so it imports nothing that works with what is named.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from typing import Literal, get_args

from agentgrpo.machine import HOME, IS_CLONE, ROOT
from agentgrpo.spelling import did_you_mean

# The small policy, which commands take, and make first, if no model is named.
TINY_POLICY = HOME / "models" / "tiny-sql"
# Environments by the config's `env.type`, each written as a user's own; a class is imported when one is made.
ENVIRONMENTS = {
    "dbbench": "sql_agent.environments.dbbench:DbBench",
    "gsm8k": "sql_agent.gsm8k.environment:Gsm8k",
    "text2sql": "sql_agent.text_to_sql.environment:TextToSql",
    "agent": "sql_agent.user_agents.tasks:AgentTasks",
    # an example, under the name that predecessors' users type
    "medical": f"{ROOT}/examples/medical/medical.py:Medical",
}

# The entry-point group in which an installed package names its environments.
ENTRY_POINTS = "agentgrpo.environments"
# The function that makes an environment of its settings.
USER = "sql_agent.environments.user:open_user"

# Orders in which local training draws its tasks: functions of the tasks, the seed and the number of the epoch that
# return the tasks of that epoch, as many in each.
SAMPLERS = {
    "shuffled": "sql_agent.local.presets:shuffled",
    "in_order": "sql_agent.local.presets:in_order",
}

PresetName = Literal["agentbench", "agent_peft", "rllm", "execution", "partial", "skyrl_sql"]
PRESETS: tuple[PresetName, ...] = get_args(PresetName)
# The entry of `rollout.reward` that is an LLM's score (`sql_agent.reward_functions.judge`).
JUDGE = "judge"
# The entry that is a rollout's place in its group, by an LLM (`sql_agent.reward_functions.ranking`).
RANKING = "ranking"
# The form of an entry that is a function: FILE.py:NAME or module:NAME.
FUNCTION = re.compile(r"(?P<place>.+\.py|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<function>[A-Za-z_]\w*)", re.DOTALL)


def installed(name: str) -> str | None:
    """The `module:NAME` of an installed package's environment; None if none has that name."""
    from importlib.metadata import entry_points

    return next((entry.value for entry in entry_points(group=ENTRY_POINTS, name=name)), None)


def check_name(name: str) -> None:
    """Check that `name` names an environment; `FILE.py:NAME` and `module:NAME` are only looked up when it is made.

    Raises:
        ValueError: it names no environment, or one that an installed wheel lacks.
    """
    if name == "medical" and not IS_CLONE:
        raise ValueError(
            "environment medical is an example of the repository, which an installed package lacks; copy its folder "
            "examples/medical and name the class there, medical.py:Medical"
        )
    if name in ENVIRONMENTS or ":" in name or installed(name) is not None:
        return
    forms = f"FILE.py:NAME, module:NAME, or an entry point of an installed package (group {ENTRY_POINTS})"
    known = ", ".join(sorted(ENVIRONMENTS))
    raise ValueError(
        f"unknown environment {name!r}; known: {known}; of your own: {forms}{did_you_mean(name, ENVIRONMENTS.keys())}"
    )


def label(name: str) -> str:
    """An entry of `rollout.reward` is logged under a function's own name, without its file."""
    return name.rpartition(":")[2]


def functions(names: Collection[str]) -> list[str]:
    """Entries of `rollout.reward` that are not presets: functions, and what an LLM judges."""
    return [name for name in names if name not in PRESETS]


def weights_of(rewards: Sequence[str]) -> dict[str, float]:
    """From the values of --reward, NAME or NAME=WEIGHT.

    Raises:
        ValueError: a weight is not a number, or a name comes twice.
    """
    weights: dict[str, float] = {}
    for text in rewards:
        place, colon, last = text.rpartition(":")  # the path of a file may hold a "="
        name, equals, weight = last.partition("=")
        try:
            value = float(weight) if equals else 1.0
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ValueError(
                f"--reward {text}: the weight {weight!r} is no number; write it as --reward my.py:concise=0.2"
            )
        if place + colon + name in weights:
            raise ValueError(f"--reward {place + colon + name} is given twice; give it once, with its weight")
        weights[place + colon + name] = value
    return weights
