"""Takes single changes out of `sql_agent.verl_side.plugin`, for peers that need one of them to run on a CPU at all."""

from __future__ import annotations

import importlib.util
from types import ModuleType

from bench.parts.children import ROOT


def part(name: str) -> ModuleType:
    """A module of the plugin by itself; importing it as a part of its package would make all changes of the plugin."""
    file = ROOT / "sql_agent" / "verl_side" / "plugin" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"peers_{name}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
