"""Brings a notebook to the commands: the code of its cells as a file, and a curve that grows in a cell's output.

A command runs in another process, so it imports what a cell defined. `module_text` writes the statements that a name
needs, in the order in which they ran; of a cell that failed midway all of them. It does not see changes by another name
(`alias = d; alias[0] = 1`), by a function (`random.shuffle(x)`), or by another thread.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePath
from symtable import SymbolTable, symtable
from typing import Any

from agentgrpo.outputs import written
from agentgrpo.run_folder import METRICS

CELLS = Path("runs/cells")
# Cells import from the notebook's folder; the file is two folders below it.
_HEAD = "import pathlib, sys\nsys.path.append(str(pathlib.Path(__file__).resolve().parents[2]))"
_IMPORTS = (ast.Import, ast.ImportFrom)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# The package of the commands, which a file that a command imports may not call.
_OURS = "agentgrpo"


def shell() -> Any | None:
    """IPython's shell in a notebook, or None."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None


def code_name(value: object) -> str:
    """Name an object on a command line, as module:NAME, or as FILE.py:NAME of a file with the cells that it needs.

    Raises:
        TypeError: neither a module nor a cell gives it a name.
        ValueError: see `module_text`.
    """
    module, name = getattr(value, "__module__", "__main__"), getattr(value, "__name__", "")
    if module != "__main__" and getattr(sys.modules.get(module), name, None) is value:
        return f"{module}:{name}"
    notebook = shell()
    if notebook is None:
        raise TypeError("a command reads code from files: write it to a file, and give its place")
    names = notebook.user_ns
    cells = names["In"]
    bound = {name for statement in _statements(cells) for name in statement.binds}
    name = next((name for name in sorted(bound) if names.get(name) is value), None)
    if name is None:
        raise TypeError("a command reads code from files: bind it to a name in a cell of its own")
    text = module_text(name, cells)
    file = CELLS / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.py"
    with written(file) as part:
        part.write_text(text, encoding="utf-8")
    return f"{file}:{name}"


@dataclass(frozen=True)
class Statement:
    node: ast.stmt
    binds: frozenset[str]
    """Names that it gives a value."""
    changes: frozenset[str]
    """Names whose value it changes in place: `x[0] = 1`, `x.a = 1`, `x.append(1)`."""
    uses: frozenset[str]
    """Global names that it reads, in its functions too."""

    @property
    def text(self) -> str:
        return ast.unparse(self.node)


def module_text(name: str, cells: Sequence[str]) -> str:
    """The statements of cells that `name` needs, in the order in which they ran, as the text of a module.

    Args:
        cells: the code of each cell that ran, without magics (IPython's `In`).
    Raises:
        ValueError: one of them only runs in a notebook, or calls a command.
    """
    known = [*_statements(cells)]
    needed = {index for index, each in enumerate(known) if _always(each.node)}
    open_names = [(name, len(known)), *((used, len(known)) for index in needed for used in known[index].uses)]
    seen, unknown = set[tuple[str, int]](), set[str]()
    while open_names:
        if (each := open_names.pop()) in seen:
            continue
        seen.add(each)
        made = _made_by(*each, known)
        if not made and each[1] == len(known):
            unknown.add(each[0])
        for index in made:
            needed.add(index)
            # a function reads what a name means when it is called, other statements what it meant before them
            open_names += [(used, end) for used in known[index].uses for end in (index, len(known))]
    _check_runs_alone(name, [known[index] for index in sorted(needed)], unknown)
    text = [known[index].text for index in sorted(needed)]
    future = [line for line in text if line.startswith("from __future__")]
    rest = [line for line in text if line not in future]
    return "\n".join(["# What a notebook's cells define, written by agentgrpo.", *future, _HEAD, *rest, ""])


def _made_by(name: str, before: int, known: Sequence[Statement]) -> list[int]:
    """The statement that last gave the name a value before another one, and those that changed the value since."""
    last = next((index for index in reversed(range(before)) if name in known[index].binds), None)
    changed = [index for index in range(0 if last is None else last + 1, before) if name in known[index].changes]
    if last is None:  # a builtin, of a star import, or of a loop or a branch
        return changed
    if isinstance(known[last].node, _IMPORTS):  # `import a.b` and `import a.c` both bind a
        return [i for i in range(before) if name in known[i].binds and isinstance(known[i].node, _IMPORTS)]
    return [last, *changed]


def _always(node: ast.stmt) -> bool:
    # what they bind cannot be seen
    return isinstance(node, ast.ImportFrom) and (node.module == "__future__" or node.names[0].name == "*")


def _check_runs_alone(name: str, needed: Sequence[Statement], unknown: set[str]) -> None:
    ours = {
        (alias.asname or alias.name).partition(".")[0]
        for each in needed
        if isinstance(each.node, _IMPORTS)
        for alias in each.node.names
        if (each.node.module if isinstance(each.node, ast.ImportFrom) else alias.name) == _OURS
    }
    for each in needed:
        line = each.text.partition("\n")[0]
        if "get_ipython" in each.uses:
            raise ValueError(f"{name} needs `{line}`, which only runs in a notebook; give it the value in another way")
        if ours & each.uses and isinstance(each.node, _DEFINITIONS):
            ours |= each.binds
        elif ours & each.uses:
            raise ValueError(f"{name} needs `{line}`, which would run again in the command; write its value down")
    stars = any(isinstance(each.node, ast.ImportFrom) and each.node.names[0].name == "*" for each in needed)
    if lacking := [] if stars else sorted(unknown - {*dir(builtins), "__name__", "__file__"}):
        raise ValueError(f"{name} needs `{lacking[0]}`, to which no cell gives a value (cells with %% are not read)")


def _statements(cells: Sequence[str]) -> Iterator[Statement]:
    for cell in cells:
        try:
            nodes = ast.parse(cell).body
            found = [_statement(node) for node in nodes]
        except SyntaxError:  # the cell did not run
            continue
        yield from found


def _statement(node: ast.stmt) -> Statement:
    table = symtable(ast.unparse(node), "<cell>", "exec")
    symbols = table.get_symbols()
    binds = {s.get_name() for s in symbols if s.is_assigned() or s.is_imported() or s.is_namespace()}
    uses = {*_global_names(table)}
    changes = {*_changed(node)}
    if isinstance(node, ast.AugAssign) or (hasattr(node, "body") and not isinstance(node, _DEFINITIONS)):
        changes |= binds  # a loop or a branch may leave a name as it was
        binds = set[str]()
    if isinstance(node, _DEFINITIONS):
        uses -= binds  # a function that calls itself needs no earlier one
    return Statement(node, frozenset(binds), frozenset(changes), frozenset(uses))


def _global_names(table: SymbolTable) -> Iterator[str]:
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (table.get_type() == "module" or symbol.is_global()):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _global_names(inner)


def _changed(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, _DEFINITIONS):
        return
    for each in ast.walk(node):
        target: ast.AST | None = None
        if isinstance(each, ast.Subscript | ast.Attribute | ast.Name) and not isinstance(each.ctx, ast.Load):
            target = each
        elif isinstance(each, ast.Expr) and isinstance(each.value, ast.Call):
            target = each.value.func if isinstance(each.value.func, ast.Attribute) else None
        while isinstance(target, ast.Subscript | ast.Attribute | ast.Call):
            target = target.func if isinstance(target, ast.Call) else target.value
        if isinstance(target, ast.Name):
            yield target.id


class LiveCurve:
    """Draws the curve of a run in the output of the cell that runs; elsewhere it does nothing."""

    def __init__(self, run_dir: object) -> None:
        self._folder = Path(str(run_dir)) if run_dir and shell() else None
        self._size = 0
        self._shown: Any = None

    def update(self) -> None:
        files = [self._folder / METRICS, self._folder / "logs" / METRICS] if self._folder else []
        file = next((file for file in files if file.is_file()), None)
        if file is None or (size := file.stat().st_size) == self._size:
            return
        self._size = size
        with contextlib.suppress(ValueError):  # half a row, a full disk: the run goes on without
            self._draw(file)

    def _draw(self, file: Path) -> None:
        from IPython.display import Image, display

        from sql_agent.commands.report import draw_curve
        from sql_agent.report.reading import read_metrics

        picture = file.with_name("curve.png")
        with written(picture) as part:
            draw_curve(read_metrics(file), part)
        image = Image(data=picture.read_bytes())
        if self._shown is None:
            self._shown = display(image, display_id=True)
        else:
            self._shown.update(image)


def is_code(value: object) -> bool:
    """Whether a flag's value is an object that only code makes: a function, a class, or an agent, which has a name."""
    return callable(value) or (hasattr(value, "name") and not isinstance(value, PurePath | Enum))
