"""What a user's own file can import."""

import sys
from importlib import import_module

import core.own_files
from core.own_files import find


def test_packages_named_like_this_projects_hold_the_users_modules_too(tmp_path, monkeypatch):
    for package in ("bench", "core", "examples", "scripts"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
        (tmp_path / package / "of_the_user.py").write_text(f"HERE = {package!r}\n")
        (tmp_path / package / "own_files.py").write_text("raise AssertionError('it hides ours')\n")
        monkeypatch.setattr(module := import_module(package), "__path__", module.__path__)
    (tmp_path / "mine.py").write_text(
        "import core.own_files as ours\n"
        "import bench.of_the_user, core.of_the_user, examples.of_the_user, scripts.of_the_user\n"
        "there = [each.of_the_user.HERE for each in (bench, core, examples, scripts)]\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    there, source = find(f"{tmp_path}/mine.py:there")
    assert (there, source.file) == (["bench", "core", "examples", "scripts"], tmp_path / "mine.py")
    assert sys.modules["core.own_files"] is core.own_files
