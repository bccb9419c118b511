"""What a user's own file can import."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FIND = """
import sys
from agentgrpo.user_files import load_object
there, source = load_object(sys.argv[1])
print(*there, source.file)
"""


def test_a_file_finds_the_users_own_packages_whatever_this_projects_folders_are_called(tmp_path):
    for package in ("core", "examples"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"HERE = {package!r}\n")
    (tmp_path / "mine.py").write_text("import core, examples\nthere = [each.HERE for each in (core, examples)]\n")
    mine = tmp_path / "mine.py"
    done = subprocess.run([sys.executable, "-c", FIND, f"{mine}:there"], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == f"core examples {mine}\n", done.stderr


def test_a_package_that_hides_the_users_own_is_named(tmp_path):
    """verl installs a package `scripts`."""
    for folder, module in (("packages", "__init__"), ("here", "helpers")):
        (tmp_path / folder / "scripts").mkdir(parents=True)
        (tmp_path / folder / "scripts" / f"{module}.py").write_text("")
    (tmp_path / "here" / "mine.py").write_text("import scripts.helpers\n")
    paths = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path / "packages"), str(ROOT)])}
    remedy = f"scripts is the one in {tmp_path}/packages/scripts; if yours is meant, give its folder another name"
    for name in ("scripts.helpers:f", "mine.py:f"):
        done = subprocess.run(
            [sys.executable, "-P", "-c", FIND, name], cwd=tmp_path / "here", env=paths, capture_output=True, text=True
        )
        assert done.stderr.splitlines()[-1].endswith(f"; {remedy}")
