"""Imports agent-lightning without its LLM proxy, which no process of ours runs.

`import agentlightning` imports LiteLLM's proxy server, which takes 10 of its 11 CPU seconds in every process (measured
with -X importtime, 0.3.0 and LiteLLM 1.103.7). All modules import `agl` from here.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from types import ModuleType

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # otherwise LiteLLM downloads a price list


def _import() -> ModuleType:
    if "agentlightning" in sys.modules:
        return sys.modules["agentlightning"]
    stand_in = ModuleType("agentlightning.llm_proxy")
    stand_in.LLMProxy = type("LLMProxy", (), {"__doc__": "Not loaded in this process."})  # type: ignore[attr-defined]
    stand_in.__all__ = ["LLMProxy"]  # type: ignore[attr-defined]
    held_back = {"agentlightning.llm_proxy": stand_in, "litellm": None}
    sys.modules.update(held_back)  # type: ignore[arg-type]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # agent-lightning imports its own deprecated module
            return importlib.import_module("agentlightning")
    finally:
        del sys.modules["litellm"]


agl = _import()
