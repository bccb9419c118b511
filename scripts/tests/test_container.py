"""The image has the files that the commands need; no machine of the tests has a Docker daemon, which would build it."""

import os
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch

from scripts.tests.pages import ROOT

IGNORED = (ROOT / ".dockerignore").read_text().split()


def test_the_files_of_the_image_are_enough_for_the_commands(tmp_path):
    kept = [line.removeprefix("!") for line in IGNORED if line.startswith("!")]
    assert [name for name in kept if not (ROOT / name).exists()] == []
    # what is installed here would stand in for a package that the image lacks
    assert {"agentgrpo", "dbbench_adapter", "reward_model", "sql_agent"} <= {*kept}
    left_out = [line.removeprefix("**/") for line in IGNORED if line.startswith("**/")]
    tracked = subprocess.run(["git", "ls-files", *kept], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    image, work = tmp_path / "image", tmp_path / "work"
    for name in tracked.splitlines():
        if not any(fnmatch(part, pattern) for part in name.split("/") for pattern in left_out):
            (image / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, image / name)
    work.mkdir()
    for command in (
        "--help",
        "tasks generate --num-tasks 4 --output tasks.json",
        "train --ci-fast --dry-run",
        "demo -h",
    ):
        said = subprocess.run(
            [sys.executable, "-P", "-m", "agentgrpo", *command.split()],
            cwd=work, env=os.environ | {"PYTHONPATH": str(image)}, capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        assert said.returncode == 0, said.stderr


def test_the_image_is_made_by_the_project_s_own_setup():
    text = (ROOT / "Dockerfile").read_text()
    assert [path for path in re.findall(r"[\w/-]+\.(?:sh|txt)", text) if not (ROOT / path).is_file()] == []
    # as doc/start/install.md says for a GPU
    page = (ROOT / "doc" / "start/install.md").read_text()
    for line in ("--no-deps -r requirements-gpu.txt", "--no-deps --editable .", "uv venv --python 3.11 .venv"):
        assert line in page and line in text
