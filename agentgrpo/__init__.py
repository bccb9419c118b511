"""The commands for a notebook, and for a program of your own (doc/guides/training.md, "From Python"):

import agentgrpo

run = agentgrpo.train(model="models/mine", database="shop.sqlite", train_file="questions.json", run_dir="runs/mine")
print(run.held_out[-1], run.change, run.checkpoints)
"""

from importlib import import_module
from typing import Any

# Public functions, each with its module, which is imported when one is asked for: this package is below it.
INTERFACE = dict.fromkeys(("command", "evaluate", "local", "read_run", "report", "sft", "train"), "sql_agent.interface")


def __getattr__(name: str) -> Any:
    if name not in INTERFACE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(INTERFACE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *INTERFACE})
