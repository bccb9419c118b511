"""How a command ends: with its result, with one line that says what was wrong, or after Ctrl-C with status 130. It
never ends with a traceback for something that the user can correct.

    if __name__ == "__main__":
        from agentgrpo.commands import run_module

        run_module("reward_model.merge")

    import torch

This module imports little, so that a command is ready for Ctrl-C early.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import TracebackType
from typing import Any, NoReturn

from agentgrpo.disk_errors import OutputError, format_disk_error
from agentgrpo.printed_commands import remedy_of

INTERRUPTED = 130
_interrupted = False


def starting() -> None:
    """Let Ctrl-C end the process at once until work begins (`interruptible`), and a package that is not there end it
    with one line. There is nothing to clean up before that, and an exception in the middle of an import would look like
    an error of the imported library. The folder of a script leaves the path, since its modules would hide packages."""
    script = os.path.abspath(sys.argv[0])
    if os.path.isfile(script) and sys.path[0] and os.path.abspath(sys.path[0]) == os.path.dirname(script):
        del sys.path[0]
    sys.excepthook = _end_with_line
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:  # a shell script may have it ignored
        signal.signal(signal.SIGINT, _leave)


OURS = ("agentgrpo", "bench", "dbbench_adapter", "reward_model", "scripts", "sql_agent")


def _end_with_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    name = (getattr(error, "name", None) or "").split(".")[0]
    if isinstance(error, ModuleNotFoundError) and name and name not in OURS:
        print(f"error: the package {name} is not installed; {remedy_of(name)}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def _leave(*_: Any) -> None:
    os.write(2, b"\nstopped\n")
    os._exit(INTERRUPTED)


@contextmanager
def interruptible() -> Iterator[None]:
    """KeyboardInterrupt is raised inside the block only, where the work can be ended in order."""
    before = signal.getsignal(signal.SIGINT)
    if before == _leave:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        if before == _leave:
            signal.signal(signal.SIGINT, before)


def _interrupt(*_: Any) -> None:
    global _interrupted
    _interrupted = True
    raise KeyboardInterrupt


def say(line: str) -> None:
    print(line, flush=True)


def failed(error: object, status: int = 1) -> int:
    """Say in one line what was wrong, and return the status of the command."""
    print(f"error: {error}", file=sys.stderr)
    return status


def execute(main: Callable[[], int | None]) -> NoReturn:
    """Exit with the status of `main`, with 1 if a file could not be read or written, with 130 after Ctrl-C."""
    try:
        code = main() or 0
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `| head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 1
    except (OutputError, OSError) as error:
        code = failed(format_disk_error(error))
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        code = INTERRUPTED
    except Exception:  # the last resort of a command: a library may wrap Ctrl-C in an error of its own
        if not _interrupted:
            raise
        print("\nstopped", file=sys.stderr)  # a library turned the interrupt into an error of its own
        code = INTERRUPTED
    sys.exit(code)


def run_module(name: str) -> NoReturn:
    """Run the `main` of a module that is started by its own name; the module begins with this, and imports the rest of
    itself under that name."""
    starting()
    execute(import_module(name).main)
