"""No module of ours has the name of one of Python's: a child that starts in its folder would import ours."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("agentgrpo", "bench", "dbbench_adapter", "reward_model", "scripts", "sql_agent")
FOLDERS = sorted(
    {file.parent for package in PACKAGES for file in (ROOT / package).rglob("*.py")}, key=lambda folder: str(folder)
)


def test_no_module_is_named_as_one_of_the_standard_library():
    ours = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    names = {str(file.relative_to(ROOT)): file.parent.name if file.stem == "__init__" else file.stem for file in ours}
    shadows = sorted(file for file, name in names.items() if name in sys.stdlib_module_names)
    assert (shadows, len(names) > 300) == ([], True)


CHILDREN = {
    "resource_tracker": "from multiprocessing.resource_tracker import main",
    "spawn": "from multiprocessing.spawn import spawn_main",
    "forkserver": "from multiprocessing.forkserver import main",
    "numbers": "import enum, types, numbers, asyncio, logging, typing",
}
"""What children that were started with `python -c` in a folder of ours import first."""


def test_children_that_start_in_a_folder_of_ours_find_pythons_modules():
    """One child looks into every folder first, as a child that starts in one of them looks there; where it finds a
    module of ours, the traceback names the file."""
    script = "; ".join(CHILDREN.values())
    folders = os.pathsep.join(map(str, FOLDERS))
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": folders},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(FOLDERS) > 50
