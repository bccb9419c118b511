"""Finds what `FILE.py:NAME`, `module:NAME` or an entry point names, and the tools of a class in TRL's form.

Every message names file, line and remedy. Leaves out what is done with it (`own`).
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from sql_agent.environments.registry import installed

NO_TOOLS = frozenset({"reset", "get_reward"})
"""Public methods that TRL takes for no tool (trl/trainer/grpo_trainer.py, 1.16)."""


class OwnFileError(ValueError):
    """A file of the user's own does not fit; the message names the place and what to do there."""


def named(name: str) -> Any:
    """The object that `name` names; its file is imported once per process, and again when it has changed.

    Raises:
        OwnFileError: there is no such file, module or name, or importing it raises.
    """
    source, _, attribute = (name if ":" in name else installed(name) or name).rpartition(":")
    if not source or not attribute.isidentifier():
        raise OwnFileError(f"{name!r} names no object; write FILE.py:NAME or module:NAME")
    is_file = source.endswith(".py") or os.sep in source
    module = _of_file(Path(source)) if is_file else _of_module(source)
    if not hasattr(module, attribute):
        there = ", ".join(_defined(module)) or "nothing"
        raise OwnFileError(f"{source} has no {attribute!r}; it defines {there}")
    return getattr(module, attribute)


def place(thing: Any) -> str:
    """`FILE:LINE` of a class or a function; its name where the source is not known."""
    code = getattr(inspect.unwrap(thing), "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    try:
        return f"{inspect.getsourcefile(thing)}:{inspect.getsourcelines(thing)[1]}"
    except (OSError, TypeError):
        return getattr(thing, "__qualname__", repr(thing))


def tool_methods(kind: type) -> dict[str, Callable[..., Any]]:
    """The tools of a class by name: its public functions, as TRL lists them.

    Raises:
        OwnFileError: the class has no `reset`.
    """
    functions = dict(inspect.getmembers(kind, predicate=inspect.isfunction))
    if "reset" not in functions:
        raise OwnFileError(
            f"{place(kind)}: class {kind.__name__} has no method `reset`, which starts an episode; add "
            "`def reset(self, **row)`, or derive it from sql_agent.environments.tools.ToolEnvironment"
        )
    return {name: each for name, each in functions.items() if name not in NO_TOOLS and not name.startswith("_")}


@functools.lru_cache(maxsize=64)
def _schema(method: Callable[..., Any]) -> dict[str, Any]:
    from transformers.utils.chat_template_utils import (  # 1.4 s of imports
        DocstringParsingException,
        TypeHintParsingException,
        get_json_schema,
    )

    try:
        tool = get_json_schema(method)
    except (DocstringParsingException, TypeHintParsingException, NameError) as error:
        words = str(error).rstrip(".!")
        raise OwnFileError(
            f"{place(method)}: {method.__qualname__} cannot be offered as a tool: {words}. Every public method is one: "
            "give it type hints and a docstring with a line for each argument under `Args:`, or a name that begins "
            "with `_`"
        ) from None
    tool["function"].pop("return", None)  # the API has no such field
    return tool


def tool_schemas(kind: type) -> list[dict[str, Any]]:
    """The tools of a class in chat-completions form, as transformers derives them.

    Raises:
        OwnFileError: a tool has no docstring, or an argument no type hint or no description.
    """
    return [_schema(method) for method in tool_methods(kind).values()]


def _of_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise OwnFileError(f"{file}: no such file (looked for in {Path.cwd()}); give FILE.py:NAME as a path from there")
    stat = file.stat()
    return _imported(file.resolve(), stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=16)
def _imported(file: Path, changed_ns: int, size: int) -> ModuleType:
    name = f"own_{file.stem}_{abs(hash((file, changed_ns, size)))}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    _refuse_training(file)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up there
    _findable(file.parent)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        raise _import_failed(error, file) from error
    return module


def _refuse_training(file: Path) -> None:
    """A script with the class and the training in it would train with TRL as soon as it is imported."""
    try:
        body = ast.parse(file.read_bytes(), str(file)).body
    except (SyntaxError, ValueError) as error:
        raise _import_failed(error, file) from None
    for statement in body:
        call = getattr(statement, "value", None)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "train":
            raise OwnFileError(
                f"{file}:{statement.lineno}: {ast.unparse(call)[:60]} starts a training as soon as the file is "
                'imported; put it, and the trainer, under if __name__ == "__main__"'
            )


def _of_module(name: str) -> ModuleType:
    _findable(Path.cwd())
    try:
        return importlib.import_module(name)
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise OwnFileError(
                f"there is no module {error.name!r}; install its package, give FILE.py:NAME, or start in its folder"
            ) from None
        raise _import_failed(error, name) from error


def _findable(folder: Path) -> None:
    """Let a file import its neighbours; behind everything else, so that none takes the place of a package."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _import_failed(error: BaseException, source: Path | str) -> Exception:
    if isinstance(error, KeyboardInterrupt):
        raise error
    if isinstance(error, SyntaxError):
        code = f": {error.text.strip()}" if error.text else ""
        return OwnFileError(f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}{code}")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _machinery(frame.filename)]
    inside = [frame for frame in frames if frame.filename == str(source)] or frames
    at = f"{inside[-1].filename}:{inside[-1].lineno}" if inside else str(source)
    return OwnFileError(
        f"{at}: importing it raised {type(error).__name__}: {error}; what starts a training of its own belongs under "
        'if __name__ == "__main__"'
    )


def _machinery(filename: str) -> bool:
    return filename == __file__ or filename.startswith("<frozen importlib") or "/importlib/" in filename


def _defined(module: ModuleType) -> list[str]:
    """The classes and functions that a module defines itself."""
    own = ((name, thing) for name, thing in vars(module).items() if not name.startswith("_"))
    return [name for name, thing in own if getattr(thing, "__module__", None) == module.__name__ and callable(thing)]
