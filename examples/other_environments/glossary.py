"""glossary, an environment of verifiers with a tool, as it is."""

import json
import os

from other_python import agent_of

CONFIG = {
    "taskset": {"id": "glossary"},
    # a chat with the environment's tools; verifiers' own default runs what the policy writes in a shell
    "agent": {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}, "max_turns": 4},
}
agent = agent_of(os.environ.get("VERIFIERS_PYTHON", ".venv-verifiers/bin/python"), "verifiers", json.dumps(CONFIG))
