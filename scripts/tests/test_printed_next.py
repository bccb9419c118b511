"""Every command that a finished command prints as what comes next is typed as it stands, with --help behind it."""

import re
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from agentgrpo.printed_commands import ROOT, agentgrpo_command, install_extra, program_command
from sql_agent.commands.local import next_command
from sql_agent.dpo.run import commands_after_dpo as after_dpo
from sql_agent.settings.local import LocalGrpoConfig
from sql_agent.settings.tuning import DpoConfig, SftConfig
from sql_agent.sft.run import commands_after_sft as after_sft

OUT = Path("outputs/a run")
"""A folder whose name a shell would split."""
SFT = [
    {"dataset": "dbbench", "protocol": "text"},
    {"dataset": "gsm8k:generated"},
    {"env": "mine.py:Shop", "tasks": Path("rows.jsonl")},
    {"database": Path("my shop.sqlite"), "tasks": Path("rows.jsonl")},
]
SHELLS = [shell for shell in ("bash", "zsh") if shutil.which(shell)]


def printed() -> list[str]:
    sft = [after_sft(SftConfig(model_path="m", output_dir=OUT, **flags), 135_000_000, is_adapter=True) for flags in SFT]
    dpo = after_dpo(
        DpoConfig(model_path="m", dataset=Path("pairs.jsonl"), output_dir=OUT), 135_000_000, cpu=False, is_adapter=True
    )
    local = next_command(LocalGrpoConfig(run_dir=OUT, env="mine.py:Shop", train_file=Path("rows.jsonl")), 1)
    report = agentgrpo_command("report", OUT)
    return sorted({line for lines in (*sft, dpo, [local, report]) for line in lines})


@cache
def help_of(command: str, shell: str) -> str:
    done = subprocess.run(
        [shell, "-c", f"{command} --help"], cwd=ROOT, capture_output=True, text=True, timeout=240
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_that_is_printed_needs_a_comment_or_a_python_of_the_path():
    for line in [*printed(), install_extra("apo"), program_command("agl", "store")]:
        assert "#" not in line and not line.startswith("python"), line
        program = Path(shlex.split(line)[0])
        assert program.name == "uv" or (ROOT / program).is_file(), line


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("line", [line for line in printed() if "vllm" not in line.split()[0]])
def test_what_is_printed_is_parsed_as_it_stands(line, shell):
    known = help_of(line, shell)
    flags = [word for word in shlex.split(line) if re.match(r"--[a-z]", word)]
    assert [flag for flag in flags if flag.replace("-", "_") not in known.replace("-", "_")] == []
