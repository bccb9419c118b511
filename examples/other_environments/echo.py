"""The environment that `openenv init echo_env` makes, as it is: it says what it hears, and rewards length."""

import json
import os

from other_python import agent_of

CONFIG = {
    "folder": os.environ.get("ECHO_ENV", "runs/echo_env"),
    "app": "server.app:app",
    "sessions": 1,  # as many as the server allows, `max_concurrent_envs` in its app.py
    "field": "message",  # of its action
    "steps": 2,
}
agent = agent_of(os.environ.get("OPENENV_PYTHON", ".venv-openenv/bin/python"), "openenv", json.dumps(CONFIG))
