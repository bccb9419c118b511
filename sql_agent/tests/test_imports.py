"""A process of a run imports no package that it did not import before: each costs its start time and memory."""

import json

import pytest

from sql_agent.tests.imports import KEPT, PROCESSES, imported

MORE = 1.03
"""Modules that a CPU or an interpreter has more than the ones of `imports.json`."""


@pytest.mark.parametrize(
    "process", [pytest.param(name, marks=pytest.mark.slow if "verl" in name else ()) for name in PROCESSES]
)
def test_a_process_imports_what_it_is_known_to_import(process):
    kept, found = json.loads(KEPT.read_text())[process], imported(process)
    new = sorted(set(found["packages"]) - set(kept["packages"]))
    assert not new, f"{process} imports {new} too; if it has to, `python -m sql_agent.tests.imports` writes that down"
    assert found["modules"] <= MORE * kept["modules"]


def test_litellm_is_in_no_process_and_torch_in_verls_alone():
    kept = {process: set(each["packages"]) for process, each in json.loads(KEPT.read_text()).items()}
    assert [process for process, packages in kept.items() if "litellm" in packages] == []
    assert [process for process, packages in kept.items() if packages & {"torch", "verl", "vllm"}] == [
        "verl's process, from which workers are forked"
    ]
