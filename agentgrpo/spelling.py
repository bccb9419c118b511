"""The known name that a misspelt one was meant to be. Importing this module is instant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from string import digits


def nearest(name: str, known: Iterable[str]) -> str | None:
    spelt = {_plain(each): each for each in known}
    found = get_close_matches(_plain(name), spelt, n=1)
    return spelt[found[0]] if found else None


def nearest_path(path: Path) -> Path | None:
    parent = path.parent if path.parent.is_dir() or path == path.parent else nearest_path(path.parent)
    if parent is None or (parent / path.name).exists():
        return parent and parent / path.name
    try:
        found = nearest(path.name, sorted(each.name for each in parent.iterdir()))
    except OSError:  # it is no folder, or cannot be read
        return None
    return parent / found if found else None


def numbered_beside(path: Path) -> tuple[Path, list[str]]:
    """The folder in which a part of a missing path is looked for, and what it has under other numbers: `checkpoints`
    with `global_step_3`, `global_step_6` for `checkpoints/global_step_12/actor`.
    """
    while path != path.parent and not path.parent.is_dir():
        path = path.parent
    stem = path.name.rstrip(digits)
    if stem == path.name or path.exists():
        return path.parent, []
    names = (each.name for each in path.parent.iterdir())
    numbered = [name for name in names if name != stem and name.rstrip(digits) == stem]
    return path.parent, sorted(numbered, key=lambda name: int(name.removeprefix(stem)))


def did_you_mean(name: str | Path, known: Iterable[str] = ()) -> str:
    """The end of a message about an unknown name; "" if nothing known is like it.

    Args:
        name: a name, or the path of something that does not exist.
        known: the names; a mapping gives for each the name to propose.
    """
    if isinstance(name, Path):
        folder, others = numbered_beside(name)
        if others:
            return f"; {folder} has {', '.join(others)}"
    found = nearest_path(name) if isinstance(name, Path) else nearest(name, known)
    if found in (None, name):
        return ""
    return f"; did you mean {known[str(found)] if isinstance(known, Mapping) else found}?"


def _plain(name: str) -> str:
    return name.lower().lstrip("-").replace("_", "-")
