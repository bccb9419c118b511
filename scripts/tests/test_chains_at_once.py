"""The tests that start whole runs share the memory that there is."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from agentgrpo import machine

CONFTEST = Path(__file__).parents[2] / "conftest.py"


@pytest.mark.parametrize(("limits", "chains"), [([], 2), ([2**63 - 4096], 2), ([16 * 2**30], 1)])
def test_a_container_with_less_memory_than_its_host_runs_one_chain_at_once(monkeypatch, limits, chains):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=32 * 2**30))
    monkeypatch.setattr(machine, "memory_limits", lambda: limits)
    assert runpy.run_path(str(CONFTEST))["CHAINS_AT_ONCE"] == chains
