"""Scoring services as processes, for tests."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx

ROOT = Path(__file__).parents[2]


def make_small_model(folder: Path) -> Path:
    """A random reward model of two layers."""
    from bench.parts.reward_workload import make_reward_model

    return make_reward_model(folder, layers=2, hidden=128)


@contextmanager
def running(model: Path, log: Path, *flags: str) -> Iterator[SimpleNamespace]:
    """Our service, ready; killed afterwards. Holds `url`, `port`, `process` and `log`."""
    command = [sys.executable, "reward_model/inference_api.py", "--model_path", str(model), *flags]
    with started(command, log, "/readyz") as server:
        yield server


@contextmanager
def running_vllm(model: Path, log: Path) -> Iterator[SimpleNamespace]:
    """`vllm serve --runner pooling` on the CPU, as documented for this repository."""
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_TARGET_DEVICE": "cpu",
        "OMP_NUM_THREADS": "1",
    }
    flags = ["--runner", "pooling", "--enforce-eager", "--dtype", "float32", "--max-model-len", "1024"]
    vllm = Path(sys.executable).with_name("vllm")
    with started(
        [str(vllm), "serve", str(model), *flags, "--host", "127.0.0.1"], log, "/health", environment
    ) as server:
        yield server


@contextmanager
def started(
    command: Sequence[str], log: Path, ready: str, environment: dict[str, str] | None = None
) -> Iterator[SimpleNamespace]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            cwd=ROOT,
            stdout=out,
            stderr=out,
            env={**os.environ, "HF_HUB_OFFLINE": "1", **(environment or {})},
        )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 240
        while not _answers(url + ready):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield SimpleNamespace(url=url, port=port, process=process, log=log)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
