"""What `FILE.py:NAME` or `module:NAME` names in the user's own code, e.g. an environment or a reward function.

A file is imported once, in the command that starts a run. The runners are forked from that process, so changes to the
file do not affect a running run. Every message names file, line and remedy.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
import inspect
import linecache
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from agentgrpo.printed_commands import install_command


class UserFileError(ValueError):
    """A user's own file does not fit; the message names the place and what to do there."""


@dataclass(frozen=True)
class SourceFile:
    file: Path
    sha256: str
    """The file's hash when it was imported; "" for a module without a file."""


def load_object(name: str) -> tuple[Any, SourceFile]:
    """Raises UserFileError: there is no such file, module or name, or importing it raises."""
    where, _, attribute = name.rpartition(":")
    if not where or not attribute.isidentifier():
        raise UserFileError(f"{name!r} names no object; write FILE.py:NAME or module:NAME")
    is_file = where.endswith(".py") or os.sep in where
    module, source = _of_file(Path(where).expanduser().resolve()) if is_file else _of_module(where)
    if not hasattr(module, attribute):
        there = ", ".join(_defined(module)) or "nothing"
        raise UserFileError(f"{where} has no {attribute!r}; it defines {there}")
    return getattr(module, attribute), source


def place(thing: Any) -> str:
    code = getattr(inspect.unwrap(thing), "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    try:
        return f"{inspect.getsourcefile(thing)}:{inspect.getsourcelines(thing)[1]}"
    except (OSError, TypeError):
        return getattr(thing, "__qualname__", repr(thing))


@functools.cache
def _of_file(file: Path) -> tuple[ModuleType, SourceFile]:
    try:
        text = file.read_bytes()
    except OSError as error:
        raise UserFileError(
            f"{file} cannot be read ({error.strerror}); give FILE.py:NAME, a path from {Path.cwd()}"
        ) from None
    sha256 = hashlib.sha256(text).hexdigest()
    name = f"own_{file.stem}_{hashlib.sha256(bytes(file)).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    try:
        _refuse_training(ast.parse(text, str(file)), file)
        # compiled here, because the spec's loader writes a .pyc beside the file and may later use it although it is
        # outdated; without this module's own __future__ imports
        code = compile(text, str(file), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise _import_failed(error, file) from None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses and pickle look it up there
    _findable(file.parent)
    linecache.checkcache(str(file))
    try:
        exec(code, vars(module))
    except BaseException as error:  # the user's code may call sys.exit(); Ctrl-C is raised again
        del sys.modules[name]
        raise _import_failed(error, file) from error
    return module, SourceFile(file, sha256)


def _refuse_training(tree: ast.Module, file: Path) -> None:
    # The training would start as soon as the file is imported.
    for statement in tree.body:
        call = getattr(statement, "value", None)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "train":
            raise UserFileError(
                f"{file}:{statement.lineno}: {ast.unparse(call)[:60]} starts a training as soon as the file is "
                'imported; put it, and the trainer, under if __name__ == "__main__"'
            )


def _of_module(name: str) -> tuple[ModuleType, SourceFile]:
    _findable(Path.cwd())  # a script's own folder is there instead
    try:
        module = importlib.import_module(name)
    except BaseException as error:  # the user's code, as above
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            remedy = _what_hides(error.name) or "install its package, give FILE.py:NAME, or start in its folder"
            raise UserFileError(f"there is no module {error.name!r}; {remedy}") from None
        raise _import_failed(error, name) from error
    file = Path(inspect.getsourcefile(module) or name)
    return module, SourceFile(file, hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "")


def _findable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _what_hides(module: str) -> str | None:
    # The package of the same name that lacks a module, as verl's `scripts` does; None if there is no such package.
    package, dot, _ = module.partition(".")
    spec = importlib.util.find_spec(package) if dot else None
    if spec is None or spec.origin is None:
        return None
    return f"{package} is the one in {Path(spec.origin).parent}; if yours is meant, give its folder another name"


def _import_failed(error: BaseException, source: Path | str) -> Exception:
    if isinstance(error, KeyboardInterrupt):
        raise error
    if isinstance(error, UserFileError):
        return error
    if isinstance(error, SyntaxError):
        code = f": {error.text.strip()}" if error.text else ""
        return UserFileError(f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}{code}")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _machinery(frame.filename)]
    inside = [frame for frame in frames if frame.filename == str(source)] or frames
    at = f"{inside[-1].filename}:{inside[-1].lineno}" if inside else str(source)
    if isinstance(error, ModuleNotFoundError):
        package = str(error.name).split(".")[0]
        remedy = _what_hides(str(error.name)) or f"if {package} is a package, install it: {install_command(package)}"
    else:
        remedy = (
            "it is imported when the command starts, so what starts a training of its own belongs under if __name__ == "
            '"__main__"'
        )
    return UserFileError(f"{at}: importing it raised {type(error).__name__}: {error}; {remedy}")


def _machinery(filename: str) -> bool:
    return filename == __file__ or filename.startswith("<frozen importlib") or "/importlib/" in filename


def _defined(module: ModuleType) -> list[str]:
    own = ((name, thing) for name, thing in vars(module).items() if not name.startswith("_"))
    return [name for name, thing in own if _is_own(thing, module)]


def _is_own(thing: Any, module: ModuleType) -> bool:
    if isinstance(thing, type | FunctionType):
        return thing.__module__ == module.__name__
    return type(thing).__module__ not in ("builtins", "types", "typing", "__future__")
