"""What a user's own file can import."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FIND = """
import sys
from agentgrpo.own_files import find
there, source = find(sys.argv[1])
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
