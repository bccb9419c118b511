"""The registry of what a policy can be trained on. Adding an environment is a module and a line here.

Leaves out the interface (`base.Environment`) and its making (`base.make_environment`), so that importing this is
instant.
"""

ENVIRONMENTS = {
    "dbbench": "sql_agent.environments.dbbench:DbBench",
    "medical": "sql_agent.environments.medical:Medical",
    "gsm8k": "sql_agent.environments.gsm8k:Gsm8k",
    "text2sql": "sql_agent.environments.text_to_sql:TextToSql",
}
"""Keyed by the config's `env.type`: the subclass of `base.Environment`, imported when it is made."""
