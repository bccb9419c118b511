"""Code that a model's folder brings is not run, whoever answers a question on standard input."""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("agentgrpo", "bench", "dbbench_adapter", "reward_model", "scripts", "sql_agent")
FILES = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py") if "tests" not in file.parts]


def loads_unasked(file):
    """Lines at which transformers would ask whether to run a folder's code: it asks where it was not told."""
    for call in ast.walk(ast.parse(file.read_text())):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            loads = call.func.attr in ("from_pretrained", "from_config")
            told = "trust_remote_code=False" in map(ast.unparse, call.keywords)
            if loads and not told and ast.unparse(call.func.value).startswith(("Auto", "_kind")):
                yield f"{file.relative_to(ROOT)}:{call.lineno}"


def test_every_loading_of_a_model_says_that_its_code_is_not_trusted():
    assert [line for file in FILES for line in loads_unasked(file)] == []
    assert sum("trust_remote_code=False" in file.read_text() for file in FILES) > 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["-m", "agentgrpo", "doctor", "--model"],
        ["sql_agent/train_sql_agent.py", "--ci-fast", "--device", "cpu", "--run-dir", "RUN", "--model"],
        ["-m", "agentgrpo", "sft", "--dataset", "dbbench", "--output_dir", "RUN", "--model_path"],
    ],
    ids=["doctor", "train_sql_agent", "train_sft"],
)
def test_a_yes_on_standard_input_runs_nothing(command, random_policy_folder, tmp_path, monkeypatch):
    folder, proof = tmp_path / "model", tmp_path / "proof"
    shutil.copytree(random_policy_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    own = {"auto_map": {"AutoConfig": "x.X", "AutoModelForCausalLM": "x.Y", "AutoTokenizer": ["x.Z", None]}}
    (folder / "config.json").write_text(json.dumps(config | own | {"model_type": "of_their_own"}))
    (folder / "x.py").write_text(f"open({str(proof)!r}, 'w')\n")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    words = [str(tmp_path / "run") if word == "RUN" else word for word in command]
    done = subprocess.run(
        [sys.executable, *words, str(folder)], cwd=ROOT, input="y\n" * 9, capture_output=True, text=True, timeout=250
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr, done.stderr
    assert "contains custom code" in done.stdout + done.stderr
    assert not proof.exists()
