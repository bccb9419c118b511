"""A command that a user types, run by a fork of this process: whatever it imports is there already."""

import os
import resource
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

from agentgrpo import main


def run_agentgrpo(*words: object, file_bytes: int | None = None) -> subprocess.CompletedProcess[str]:
    """`agentgrpo WORDS`.

    Args:
        file_bytes: no file may become longer, as on a full disk.
    """
    line = ["agentgrpo", *map(str, words)]
    with tempfile.TemporaryDirectory() as folder:
        texts = [Path(folder) / "out", Path(folder) / "err"]
        child = os.fork()
        if not child:
            _run(line, texts, file_bytes)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return subprocess.CompletedProcess(line, status, *(text.read_text() for text in texts))


def _run(line: list[str], texts: list[Path], file_bytes: int | None) -> None:
    """It never returns."""
    code = 1
    try:
        sys.stdout, sys.stderr = (text.open("w", buffering=1) for text in texts)
        for number, stream in enumerate((sys.stdout, sys.stderr), start=1):
            os.dup2(stream.fileno(), number)
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
        sys.argv = line
        main.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
