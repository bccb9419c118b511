"""Looks up classes, functions and their parameters in installed packages, whose code is read but not run.

Leaves out which of them we change (`sql_agent.upstream_patches`).
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path

# Decorators (agent-lightning's) that give the function an argument, so that its callers give fewer than it takes.
GIVES_ARGUMENTS = ("with_store",)


def find_definition(module: str, name: str) -> ast.AST | None:
    """The definition of `name` in the installed `module`, or the import of it; None if there is neither.

    Args:
        name: `function`, `Class.method`, `Class.mapping.key`, or `Class.attribute` that `__init__` sets.
    """
    file = _file(module)
    node: ast.AST | None = None if file is None else _parsed(file)
    for part in name.split("."):
        if file is None or node is None:
            return None
        node = next((member for its, member in _members(node, file) if its == part), None)
    return node


def signature_of(node: ast.AST | None) -> inspect.Signature | None:
    """The parameters of a function's definition, a default being `...`; None if they are not written there."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    if any(ast.unparse(decorator) in GIVES_ARGUMENTS for decorator in node.decorator_list):
        return None
    given, make = node.args, inspect.Parameter
    positional = [*given.posonlyargs, *given.args]
    defaults = [make.empty] * (len(positional) - len(given.defaults)) + [...] * len(given.defaults)
    found = [make(a.arg, make.POSITIONAL_OR_KEYWORD, default=d) for a, d in zip(positional, defaults, strict=True)]
    found += [make(given.vararg.arg, make.VAR_POSITIONAL)] if given.vararg else []
    found += [
        make(a.arg, make.KEYWORD_ONLY, default=make.empty if d is None else ...)
        for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    found += [make(given.kwarg.arg, make.VAR_KEYWORD)] if given.kwarg else []
    return inspect.Signature(found)


def check_signature(ours: inspect.Signature, theirs: inspect.Signature) -> str | None:
    """The parameter for which our function cannot stand in for theirs; None if it can.

    It has to take every parameter that a caller of theirs may give, one that has to be given in its place, and must not
    ask for what callers may leave out.
    """
    mine, others = list(ours.parameters.values()), list(theirs.parameters.values())
    kinds = {parameter.kind for parameter in mine}
    for place, parameter in enumerate(others):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY or not _is_required(parameter):
            taken = parameter.name in ours.parameters or parameter.VAR_KEYWORD in kinds
        else:
            taken = parameter.VAR_POSITIONAL in kinds or place < sum(map(_is_positional, mine))
        if not taken:
            return f"{parameter.name!r}, which its callers give"
    for place, parameter in enumerate(mine):
        there = theirs.parameters.get(parameter.name)
        at = None if there is None else others.index(there)
        if at is not None and at != place and _is_positional(parameter) and _is_positional(others[at]):
            return f"{parameter.name!r}, which its callers give in another place"
        if _is_required(parameter) and not _is_given(parameter, place, others):
            return f"{parameter.name!r}, which its callers {'do not give' if there is None else 'may leave out'}"
    return None


def _is_given(ours: inspect.Parameter, place: int, theirs: Sequence[inspect.Parameter]) -> bool:
    """Whether callers of their function give a parameter that ours requires, as far as its signature says."""
    more = ours.VAR_KEYWORD if ours.kind is ours.KEYWORD_ONLY else ours.VAR_POSITIONAL
    here = place < len(theirs) and _is_positional(ours) and _is_positional(theirs[place])
    return any(each.kind is more or (each.name == ours.name and _is_required(each)) for each in theirs) or (
        here and _is_required(theirs[place])
    )


def _is_positional(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)


def _is_required(parameter: inspect.Parameter) -> bool:
    variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not variable


def _file(module: str) -> Path | None:
    """The module's file; `find_spec` of the whole name would import its parent packages."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    folders = (spec.submodule_search_locations or ()) if spec else ()
    paths = (Path(folder, *rest) for folder in folders)
    files = (file for path in paths for file in (path / "__init__.py", path.with_suffix(".py")))
    return next((file for file in files if file.is_file()), None)


@functools.lru_cache(maxsize=64)  # PATCHES looks into some 40, in turn: of fewer, none would be there the next time
def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def _members(node: ast.AST, file: Path) -> Iterator[tuple[str, ast.AST]]:
    """The members of a module, a class or a dict literal, by name."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    if isinstance(node, ast.Dict):
        yield from ((key.value, value) for key, value in zip(node.keys, node.values, strict=True) if _is_text(key))  # type: ignore[union-attr]
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield child.name, child
                if child.name == "__init__":
                    yield from _set_on_self(child)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value
            case ast.ImportFrom(names=[ast.alias(name="*")], level=1, module=str(module)):
                star = file.with_name(f"{module}.py")
                yield from _members(_parsed(star), star)
            case ast.ImportFrom(names=names):
                yield from ((alias.asname or alias.name, child) for alias in names)
            case ast.If() | ast.Try() | ast.ExceptHandler():
                yield from _members(child, file)


def _set_on_self(function: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for node in ast.walk(function):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name, node


def _is_text(key: ast.expr | None) -> bool:
    return isinstance(key, ast.Constant) and isinstance(key.value, str)
