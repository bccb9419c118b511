"""Finds reward functions before a run: imports the user's file or module and looks the name up.

Every error names the file, the line where there is one, and what to do. A file is imported once, in the command that
starts the run; runner processes are forked from it. Leaves out the calls (`ask`).
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import linecache
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from sql_agent.config import TrainConfig
from sql_agent.reward_functions.datatypes import LoadedReward
from sql_agent.reward_functions.judge import judge_function
from sql_agent.rewards import FUNCTION, JUDGE, functions, label

_files: dict[tuple[Path, str], ModuleType] = {}
"""Files that were imported, by path and sha256."""


def load_functions(cfg: TrainConfig) -> list[LoadedReward]:
    """What `rollout.reward` names beside presets, in its order.

    Raises:
        ValueError: a function cannot be imported, or does not take one argument; the judge's rubric cannot be read.
    """
    return [
        judge_function(cfg.judge, cfg.run_dir) if name == JUDGE else load_function(name, cfg.rollout.reward_timeout_s)
        for name in functions(cfg.rollout.weights)
    ]


def load_function(name: str, timeout_s: float) -> LoadedReward:
    """
    Args:
        name: FILE.py:NAME or module:NAME.
        timeout_s: of one call.
    Raises:
        ValueError: see `load_functions`.
    """
    match = FUNCTION.fullmatch(name)
    assert match is not None, "sql_agent.config has checked the form"
    place, wanted = match["place"], match["function"]
    if place.endswith(".py"):
        file = Path(place).expanduser().resolve()
        module, sha256 = _import_file(file, name)
    else:
        module = _import_module(place, name)
        file = Path(inspect.getsourcefile(module) or place)
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
    function = getattr(module, wanted, None)
    if function is None:
        there = [key for key, value in vars(module).items() if _is_own_function(value, module)]
        raise ValueError(
            f"--reward {name}: {file} has no {wanted}; its functions are {', '.join(there)}"
            if there
            else f"--reward {name}: {file} has no {wanted}, and no function at all; "
            f"add one, `def {wanted}(record): return 1.0`"
        )
    _check_call(function, name, file)
    return LoadedReward(label(name), function, file, sha256, timeout_s)


def _is_own_function(value: Any, module: ModuleType) -> bool:
    return inspect.isfunction(value) and value.__module__ == module.__name__ and not value.__name__.startswith("_")


def _import_file(file: Path, name: str) -> tuple[ModuleType, str]:
    try:
        source = file.read_bytes()
    except OSError as error:
        raise ValueError(
            f"--reward {name}: {file} cannot be read ({error.strerror}); give a Python file, FILE.py:NAME"
        ) from None
    sha256 = hashlib.sha256(source).hexdigest()
    if (file, sha256) not in _files:
        module = ModuleType(f"reward_{file.stem}_{sha256[:8]}")
        module.__file__ = str(file)
        if str(file.parent) not in sys.path:
            sys.path.append(str(file.parent))  # it may import what lies beside it, but hides no package with that
        sys.modules[module.__name__] = module  # dataclasses and pickle look it up there
        linecache.checkcache(str(file))
        try:
            exec(compile(source, str(file), "exec"), vars(module))
        except (Exception, SystemExit) as error:
            del sys.modules[module.__name__]
            _refuse_import(error, file, name)
        _files[file, sha256] = module
    return _files[file, sha256], sha256


def _import_module(module: str, name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # a script's own folder is there instead
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            _refuse_import(error, None, name)
        raise ValueError(
            f"--reward {name}: there is no module {error.name} in this environment or in {Path.cwd()}; install its "
            "package, or give a file, FILE.py:NAME"
        ) from None
    except (Exception, SystemExit) as error:
        _refuse_import(error, None, name)


def _refuse_import(error: BaseException, file: Path | None, name: str) -> NoReturn:
    """
    Raises:
        ValueError: with the last line of `file` that the import reached; of any file if that is None.
    """
    if isinstance(error, SyntaxError):
        raise ValueError(
            f"--reward {name}: {error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}; correct that line"
        ) from None
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    own = [frame for frame in frames if file is not None and frame.filename == str(file)] or frames
    where = f"{own[-1].filename}:{own[-1].lineno}: " if own else ""
    what = f"{type(error).__name__}: {error}".strip().removesuffix(":")
    raise ValueError(
        f"--reward {name}: {where}{what}; the file is imported when the run starts, which has to work without arguments"
    ) from None


def _check_call(function: Any, name: str, file: Path) -> None:
    if not callable(function) or inspect.isclass(function):
        kind = "a class" if inspect.isclass(function) else f"a value ({type(function).__name__})"
        raise ValueError(
            f"--reward {name}: {label(name)} in {file} is {kind}, expected a function of the rollout's record"
        )
    try:
        signature = inspect.signature(function)
    except ValueError:  # of a function that is not written in Python
        return
    try:
        signature.bind(object())
    except TypeError:
        line = getattr(inspect.unwrap(function), "__code__", None)
        where = f"{file}:{line.co_firstlineno}" if line else str(file)
        raise ValueError(
            f"--reward {name}: {where}: {label(name)}{signature} cannot be called with the rollout's record alone; "
            f"write `def {label(name)}(record):`, and give other parameters a default"
        ) from None
