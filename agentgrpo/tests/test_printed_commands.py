"""Commands that are printed: whole lines, as a shell reads them."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentgrpo.printed_commands import (
    ROOT,
    agentgrpo_command,
    extra_of,
    install_command,
    install_extra,
    program_command,
    remedy_of,
    shipped_settings,
)


def test_what_is_below_the_current_folder_is_named_from_there(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "executable", str(ROOT / ".venv/bin/python"))
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert agentgrpo_command("report", Path("runs/a run")) == ".venv/bin/agentgrpo report 'runs/a run'"
    assert agentgrpo_command("sft", "--tasks", ROOT / "data" / "a.json") == (
        ".venv/bin/agentgrpo sft --tasks data/a.json"
    )
    assert program_command("vllm", "serve", "models/mine") == ".venv/bin/vllm serve models/mine"
    with_pins = (
        "uv pip install --python .venv/bin/python --override scripts/overrides.txt --constraint requirements.txt "
    )
    assert install_extra("apo") == f"{with_pins}-r pyproject.toml --extra apo"
    assert f"\n{with_pins}PACKAGE\n" in (ROOT / "doc" / "guides/agent.md").read_text()
    assert install_command("PACKAGE") == f"{with_pins}PACKAGE"
    monkeypatch.setattr("agentgrpo.printed_commands.distributions", lambda name: [SimpleNamespace(version="0.24.0")])
    on_gpu = "uv pip install --python .venv/bin/python --constraint requirements-gpu.txt PACKAGE"
    assert install_command("PACKAGE") == on_gpu


def test_from_another_folder_the_command_still_finds_the_project(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", "/opt/my env/bin/python3.11")
    assert agentgrpo_command("tasks generate", "a b") == "'/opt/my env/bin/agentgrpo' tasks generate 'a b'"
    assert program_command("agl", "store") == "'/opt/my env/bin/agl' store"


def test_a_package_that_is_not_there_ends_a_command_with_the_line_that_adds_it():
    code = "from agentgrpo.commands import starting; starting(); import pymongo_that_nobody_has.client"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    uv = install_command("pymongo_that_nobody_has")
    assert (done.returncode, done.stderr) == (
        1, f"error: the package pymongo_that_nobody_has is not installed; {uv}\n",
    )  # fmt: skip


def test_another_python_is_sent_to_the_projects_environment(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "prefix", "/usr")
    assert remedy_of("torch") == (
        "this is not the environment of `make setup`: start the command with .venv/bin/python"
    )
    assert remedy_of("poml") == install_extra("apo")


def test_from_a_wheel_an_extra_is_added_by_the_wheel(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", "/opt/env/bin/python")
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("agentgrpo.printed_commands.IS_CLONE", False)
    assert install_extra("apo") == "uv pip install --python /opt/env/bin/python 'agentgrpo[apo] @ file://WHEEL'"
    assert shipped_settings() == str(ROOT / "sql_agent" / "configs")
    monkeypatch.setattr("agentgrpo.printed_commands.requires", lambda _: ['trl==1.16.0; extra == "local"'])
    assert remedy_of("trl") == "uv pip install --python /opt/env/bin/python 'agentgrpo[local] @ file://WHEEL'"
    assert remedy_of("mine") == "uv pip install --python /opt/env/bin/python mine"


@pytest.mark.parametrize(
    ("package", "extra"),
    [
        ("huggingface_hub", "local"),
        ("agents", "train"),
        ("verl", "train"),
        ("tqdm", None),
        ("torch_like", None),
        ("torch", "local"),
    ],
)
def test_a_package_is_found_in_its_extra(package, extra):
    required = [
        "tqdm",
        'torch-geometric; extra == "graphs"',
        'torch; extra == "local"',
        'huggingface-hub; extra == "local"',
        'verl==0.9.1; extra == "train"',
        'openai-agents==0.24.0; extra == "train"',
    ]
    assert extra_of(package, required) == extra
