"""Other machines need a token, and the command says so before it loads anything."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from reward_model.datatypes import TOKEN_VARIABLE
from reward_model.inference_api import read_token

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "reward_model/inference_api.py"]


def test_the_file_goes_before_the_variable(tmp_path, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "from-variable")
    (tmp_path / "token").write_text("from-file\n")
    assert read_token("0.0.0.0", tmp_path / "token") == "from-file"
    assert read_token("0.0.0.0", None) == "from-variable"


def test_this_machine_needs_none(monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert read_token("127.0.0.1", None) is None


def test_an_empty_token_is_no_token(tmp_path, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, " ")
    with pytest.raises(ValueError, match=r"0\.0\.0\.0 can be reached from other machines"):
        read_token("0.0.0.0", None)
    (tmp_path / "token").write_text("\n")
    with pytest.raises(ValueError, match="nothing in it"):
        read_token("127.0.0.1", tmp_path / "token")


def test_a_token_that_no_header_takes_is_refused(monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "two\nlines")
    with pytest.raises(ValueError, match="printable ASCII"):
        read_token("127.0.0.1", None)


REFUSED = [
    (["--model_path", ".", "--host", "0.0.0.0"], "needs a token"),
    (["--model_path", "/nowhere"], "/nowhere is no folder; give a model's folder or its id on the hub"),
    (["--model_path", "scripts"], "no config.json or adapter_config.json there"),
    (["--model_path", ".", "--token_file", "nowhere"], "no such file"),
    (["--model_path", ".", "--port", "65536"], "65536: expected 0 to 65535"),
    (["--model_path", ".", "--threads", "0"], "0: expected 1 or more"),
    (["--model_path", ".", "--max_queue", "127"], "127: expected 128 or more"),
    (["--model_path", ".", "--timeout_s", "inf"], "inf: expected a number above 0"),
]
EACH = """
import json, sys
from reward_model.inference_api import main
for arguments, _ in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit as end:
        print("ended with", end.code, "and torch" if "torch" in sys.modules else "", file=sys.stderr)
"""


def test_the_command_refuses_before_it_imports_torch(monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    command = [sys.executable, "-c", EACH, json.dumps(REFUSED)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    *told, rest = done.stderr.split("ended with 2 \n")
    assert (len(told), rest) == (len(REFUSED), "")
    assert [words for (_, words), text in zip(REFUSED, told, strict=True) if words not in text] == []


def test_a_port_in_use_is_told_before_the_model_is_read(tmp_path):
    (tmp_path / "config.json").write_text("no model")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        flags = ["--model_path", str(tmp_path), "--port", str(taken.getsockname()[1])]
        done = subprocess.run([*COMMAND, *flags], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{flags[-1]}" in done.stderr
    assert "Traceback" not in done.stderr and "model cannot be used" not in done.stderr
