"""How a command ends: well, in one line that says what was wrong, or by Ctrl-C with exit status 130; never in a
traceback of something that the user can mend.

    from core.commands import execute, starting

    if __name__ == "__main__":
        starting()

    import torch

    if __name__ == "__main__":
        execute(main)

Leaves out what Python does before a command's first line. Imports nothing but the standard library.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

INTERRUPTED = 130
_interrupted = False


def starting() -> None:
    """Until work begins (`interruptible`), Ctrl-C ends the process at once: there is nothing to clean up, and an
    exception in the middle of an import comes out as an error of the library's."""
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:  # a script's shell may have made us deaf to it
        signal.signal(signal.SIGINT, _leave)


def _leave(*_: Any) -> None:
    os.write(2, b"\nstopped\n")
    os._exit(INTERRUPTED)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it Ctrl-C raises KeyboardInterrupt, so that what was begun is ended in order."""
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


def execute(main: Callable[[], int | None]) -> NoReturn:
    """Do what `main` does and exit with its status: 1 where a file could not be read or written, 130 by Ctrl-C."""
    from core.outputs import OutputError, in_words

    try:
        code = main() or 0
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 1
    except (OutputError, OSError) as error:
        print(f"error: {in_words(error)}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        code = INTERRUPTED
    except Exception:
        if not _interrupted:
            raise
        print("\nstopped", file=sys.stderr)  # what a library made of the interrupt
        code = INTERRUPTED
    sys.exit(code)
