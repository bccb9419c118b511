"""Writes Markdown tables, and reads Google-style docstrings."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
SECTION = re.compile(r"^(Args|Returns|Raises):(.*)$")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def cell(text: str) -> str:
    """Text on one line, in which `|` ends no cell and `<` begins no HTML."""
    parts = re.split("(`[^`]*`)", " ".join(text.split()).replace("|", "\\|"))
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)


def code(*names: str) -> str:
    return ", ".join(f"`{name}`" for name in names)


class Doc(NamedTuple):
    text: str
    args: dict[str, str]
    returns: str
    raises: dict[str, str]


def doc_of(thing: Any) -> Doc:
    """Read a docstring: its text, and what stands under Args, Returns and Raises."""
    parts: dict[str, list[str]] = {"": []}
    section = ""
    for line in (inspect.getdoc(thing) or "").splitlines():
        if found := SECTION.match(line):
            section, line = found[1], found[2].strip()
        parts.setdefault(section, []).append(line)
    return Doc(
        "\n".join(parts[""]).strip(),
        _named(parts.get("Args", [])),
        " ".join(line.strip() for line in parts.get("Returns", [])).strip(),
        _named(parts.get("Raises", [])),
    )


def _named(lines: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        if entry := re.match(r" {0,4}([\w, ]+): (.*)", line):
            found[entry[1]] = entry[2]
        elif line.strip() and found:
            found[next(reversed(found))] += f" {line.strip()}"
    return found


def fields_of(kind: type) -> list[tuple[str, str, str]]:
    """Name, type with default, and docstring of each annotated attribute that a class itself declares."""
    [tree] = ast.parse(inspect.cleandoc("\n" + inspect.getsource(kind))).body
    body = tree.body if isinstance(tree, ast.ClassDef) else []
    found: list[tuple[str, str, str]] = []
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = f" = {ast.unparse(node.value)}" if node.value else ""
            default = "" if default.startswith(" = field(") else default
            said = after.value if isinstance(after, ast.Expr) else None
            text = said.value if isinstance(said, ast.Constant) else ""
            found.append((node.target.id, ast.unparse(node.annotation) + default, str(text)))
    return found
