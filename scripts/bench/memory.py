"""What a run of the main job takes: PSS of all its processes, summed, at its highest; and the training worker's part.

Two steps of `configs/pretrained.yaml` on generated tasks, the second one with a checkpoint. PSS counts a page that
processes share once, so the sum is what the machine lends.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil

from scripts.bench.children import ROOT
from scripts.bench.report import Row

TIMEOUT_S = 1800.0
SAMPLE_S = 2.0
SETTINGS = ("trainer.steps=2", "trainer.save_every=2", "trainer.val_before_train=false", "trainer.val_every=0",
            "data.train_batch_size=2", "rollout.redraws=0")  # fmt: skip
ROLES = {
    "training worker": ("WorkerDict", "ActorRollout"),
    "model server": ("vLLM", "EngineCore", "VLLM"),
    "runners": ("multiprocessing",),
}
"""Words of a process's title or command line, by what a reader calls it; the rest is driver, command, store and Ray."""


def measure(model: Path, folder: Path) -> list[Row]:
    run_dir = folder / "memory"
    command = [sys.executable, "sql_agent/train_sql_agent.py", "--config", "sql_agent/configs/pretrained.yaml"]
    command += ["--llm-proxy", "--device", "cpu", "--model", str(model), "--run-dir", str(run_dir)]
    command += [text for setting in SETTINGS for text in ("--set", setting)]
    with (folder / "memory.log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        highest: Counter[str] = Counter()
        deadline = time.monotonic() + TIMEOUT_S
        try:
            while process.poll() is None and time.monotonic() < deadline:
                found = sample(process.pid)
                highest |= found | Counter({"all": found.total()})
                time.sleep(SAMPLE_S)
        finally:
            late = process.poll() is None
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    if late:
        raise RuntimeError(f"the run was not done after {TIMEOUT_S:.0f} s")
    if process.returncode:
        raise RuntimeError(
            f"the run ended with {process.returncode}; its log: {(folder / 'memory.log').read_text()[-2000:]}"
        )
    rows = [
        Row("all processes, PSS", highest["all"] / 2**30, "GiB", 8.0),
        Row("training worker, PSS", highest["training worker"] / 2**30, "GiB", 6.0),
    ]
    return rows + [
        Row(f"... {role}", size / 2**30, "GiB")
        for role, size in sorted(highest.items())
        if role not in ("all", "training worker")
    ]


def sample(pid: int) -> Counter[str]:
    """Bytes of PSS by role, of a process and everything below it."""
    try:
        tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return Counter()
    found: Counter[str] = Counter()
    for process in tree:
        try:
            found[role(" ".join(process.cmdline()))] += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue  # it has just ended
    return found


def role(title: str) -> str:
    return next((name for name, words in ROLES.items() if any(word in title for word in words)), "the rest")
