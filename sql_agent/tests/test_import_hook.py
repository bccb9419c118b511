"""`agentgrpo.imports`."""

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_change_of_a_module_is_made_once_it_is_imported(tmp_path):
    """In a process of its own: whatever is imported here stays imported."""
    (tmp_path / "changed.py").write_text("said = ['loaded']\n")
    script = """
        import importlib.util
        import sys

        # by its path: the plugin's package imports verl, ten seconds of it
        spec = importlib.util.spec_from_file_location("import_hook", sys.argv[1])
        hook = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(hook)
        hook.after_import("changed", lambda module: module.said.append("first"))
        hook.after_import("changed", lambda module: module.said.append("second"))
        import changed
        hook.after_import("changed", lambda module: module.said.append("late"))
        print(*changed.said)
    """
    hook = "agentgrpo/imports.py"
    command = [sys.executable, "-c", textwrap.dedent(script), str(ROOT / hook)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert sorted(result.stdout.split()) == ["first", "late", "loaded", "second"], result.stderr
