"""The registry of what a policy can be trained on. Adding an environment is a module and a line here.

Leaves out the interface (`base.Environment`) and its making (`base.make_environment`), so that importing this is
instant.
"""

ENVIRONMENTS = {
    "dbbench": "sql_agent.environments.dbbench:DbBench",
    "medical": "sql_agent.environments.medical:Medical",
    "gsm8k": "sql_agent.environments.gsm8k:Gsm8k",
}
"""Keyed by the config's `env.type`: the subclass of `base.Environment`, imported when it is made."""
