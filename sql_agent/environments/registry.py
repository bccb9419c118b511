"""Lists the environments that have a name. A new one needs a module and a line here.

A user's own environment needs no line: it is named by `FILE.py:NAME`, `module:NAME` or an installed package's entry
point. Leaves out the interface (`base.Environment`) and the construction (`base.make_environment`), so that importing
this is instant.
"""

from __future__ import annotations

from agentgrpo.nearest import did_you_mean

ENVIRONMENTS = {
    "dbbench": "sql_agent.environments.dbbench:DbBench",
    "medical": "sql_agent.medical.environment:Medical",
    "gsm8k": "sql_agent.gsm8k.environment:Gsm8k",
    "text2sql": "sql_agent.text_to_sql.environment:TextToSql",
    "agent": "sql_agent.own_agents.tasks:AgentTasks",
}
"""Environments by the config's `env.type`, each written as a user's own; a class is imported when one is made."""

ENTRY_POINTS = "agentgrpo.environments"
"""The entry-point group in which an installed package names its environments."""
OWN = "sql_agent.environments.own:open_own"
"""The function that makes an environment of its settings."""


def installed(name: str) -> str | None:
    """Return the `module:NAME` of an installed package's environment; None if none has that name."""
    from importlib.metadata import entry_points

    return next((entry.value for entry in entry_points(group=ENTRY_POINTS, name=name)), None)


def check_name(name: str) -> None:
    """Check that `name` names an environment; `FILE.py:NAME` and `module:NAME` are only looked up when it is made.

    Raises:
        ValueError: it names no environment.
    """
    if name in ENVIRONMENTS or ":" in name or installed(name) is not None:
        return
    forms = f"FILE.py:NAME, module:NAME, or an entry point of an installed package (group {ENTRY_POINTS})"
    known = ", ".join(sorted(ENVIRONMENTS))
    raise ValueError(
        f"unknown environment {name!r}; known: {known}; of your own: {forms}{did_you_mean(name, ENVIRONMENTS.keys())}"
    )
