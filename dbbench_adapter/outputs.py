"""Whether a file can be written where a command is asked to, found out before any work is done for it.

Leaves out writing itself, and what goes wrong only then (a disk that fills up).
"""

from __future__ import annotations

import tempfile
from pathlib import Path


class OutputError(ValueError):
    """An output that cannot be written; the message names the path, the reason and what to do."""


def check_output(path: Path, flag: str, *, overwrite: bool | None = None) -> None:
    """Refuse a file that is there already, and one that could not be written; makes no folder and no file.

    Args:
        flag: what the user named the output with, e.g. `--output_path`.
        overwrite: whether an existing file may be replaced; None where the command cannot.
    Raises:
        OutputError: says which of them it is.
    """
    try:
        if path.is_dir():
            raise OutputError(f"{path} is a folder, expected a file to write; name another {flag}")
        if path.exists() and not overwrite:
            offer = "name another" if overwrite is None else "give --overwrite or another"
            raise OutputError(f"{path} is there already; {offer} {flag}")
        # tried out, since rights do not tell: root may write to any folder, and still not to /proc
        with tempfile.TemporaryFile(dir=next(folder for folder in path.absolute().parents if folder.exists())):
            pass
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written ({error.strerror}); name another {flag}, below a folder you may write to"
        ) from None
