"""What several test modules start for real: agent-lightning's store."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import requests


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(url: str, process: subprocess.Popen, timeout_s: float = 90.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        assert process.poll() is None, f"ended with {process.returncode} before {url} answered"
        try:
            if requests.get(url, timeout=1).ok:
                return
        except requests.RequestException:
            time.sleep(0.1)
    raise TimeoutError(url)


# `agl store` without its import of LiteLLM, which the store never uses: 2 s instead of 12.
AGL_STORE = "import sql_agent.agl_light; from agentlightning.cli.store import main; main()"


def start_store(port: int) -> subprocess.Popen:
    process = subprocess.Popen([sys.executable, "-c", AGL_STORE, "--host", "127.0.0.1", "--port", str(port)])
    wait_for(f"http://127.0.0.1:{port}/v1/agl/health", process)
    return process


@pytest.fixture(scope="session")
def store_url() -> Iterator[str]:
    """A running `agl store`; tests share it, so each looks at its own rollouts only."""
    port = free_port()
    process = start_store(port)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(20)
