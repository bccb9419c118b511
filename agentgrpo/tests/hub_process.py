"""A process in which HF_ENDPOINT names a hub on loopback; the libraries read it at import."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_with_hub(code_or_words, home, endpoint, *, token=None, timeout_s=240, **environment):
    """Run Python code, or the words of an `agentgrpo` command; returns the completed process.

    Args:
        home: the folder that has cache, settings and the token of a login.
    """
    what = ["-c", code_or_words] if isinstance(code_or_words, str) else ["-m", "agentgrpo", *map(str, code_or_words)]
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSFORMERS_"))}
    hub = {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", "PYTHONPATH": str(ROOT)}
    hub |= {"HF_TOKEN": token} if token else {}
    return subprocess.run(
        [sys.executable, *what], env=clean | hub | environment, cwd=ROOT, capture_output=True, text=True,
        timeout=timeout_s,
    )  # fmt: skip
