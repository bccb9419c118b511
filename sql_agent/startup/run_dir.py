"""Manages the folder of a run: its lock, the record of its start, and files of an earlier start.

A run holds a lock on its folder for as long as it lives. Leaves out the choice of the checkpoint from which a run
resumes (`sql_agent.startup.resume`) and its contents (`sql_agent.verl_side.checkpoints`).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agentgrpo.checks import UsageError
from agentgrpo.json_text import parse_json
from agentgrpo.outputs import written
from agentgrpo.passwords import masked
from sql_agent.verl_side.checkpoints import MANIFEST, checkpoints, step_of
from sql_agent.verl_side.tracking import earlier_steps

_held: set[int] = set()
"""Locks of this process. A forked runner that outlives a killed command would keep them, so a fork closes them."""


def _let_go() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)


@contextmanager
def claim(run_dir: Path) -> Iterator[None]:
    """Lock the folder, so that one run at a time writes to it or decides which of its checkpoints are whole.

    Processes that a killed command has left behind end by themselves; this waits for them. A folder that was made for
    the lock and holds nothing else at the end is removed, since the start was refused.

    Raises:
        UsageError: another run has the lock.
    """
    from agentgrpo.processes import LINGER_S, wait_until_gone

    is_new = not run_dir.exists()
    run_dir.mkdir(parents=True, exist_ok=True)
    lock = os.open(run_dir / ".lock", os.O_WRONLY | os.O_CREAT)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another run is writing to {run_dir}; wait for its end or give another --run-dir"
            ) from None
        _held.add(lock)
        if run_id := last_run_id(run_dir):
            wait_until_gone(run_id, LINGER_S + 5.0, forks=True)
        yield
    finally:
        if is_new and os.listdir(run_dir) == [".lock"]:
            (run_dir / ".lock").unlink()
            run_dir.rmdir()
        _held.discard(lock)
        os.close(lock)


def last_run_id(run_dir: Path) -> str | None:
    """Return the id of the run that wrote there last; None if there was none or its run.json is incomplete."""
    try:
        return parse_json((run_dir / "run.json").read_text())["run_id"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_start(run_dir: Path, start: dict[str, Any], *, resumed: bool) -> None:
    """Write run.json: how the run was started, and under `earlier_starts` how it was started before it was resumed."""
    earlier: list[Any] = []
    if resumed:
        with suppress(OSError, ValueError, AttributeError):  # a killed run may leave it incomplete
            last = parse_json((run_dir / "run.json").read_text())
            earlier = [*last.pop("earlier_starts", []), last]
    for each in (start, *earlier):  # earlier versions wrote passwords to the file
        each |= {"argv": [masked(str(word), whole=True) for word in each["argv"]]} if "argv" in each else {}
    with written(run_dir / "run.json") as part:
        part.write_text(json.dumps(start | {"earlier_starts": earlier}, indent=2))


def set_aside(run_dir: Path, after: int | None = None) -> Path | None:
    """Move the files of an earlier start into a folder of their own, so that the two runs are not mixed up.

    Args:
        after: the step that a run resumes from. Logs and sealed checkpoints of later steps are moved, because those
            steps are repeated. None: everything is moved.
    Returns:
        That folder; None if nothing was moved.
    """
    aside, rewritten = run_dir / time.strftime("before-%Y%m%d-%H%M%S"), False
    metrics, trajectories = run_dir / "metrics.jsonl", run_dir / "trajectories"
    if after is None:
        names = (
            "metrics.jsonl",
            "trajectories",
            "checkpoints",
            "judge",
            "candidates.json",
            "prompt.txt",
            "config.yaml",
            "run.json",
            "report.html",
            "curve.png",
        )
        moved = {run_dir / name: aside / name for name in names if (run_dir / name).exists()}
    else:
        later = [path for path in trajectories.glob("*_*.jsonl") if int(path.stem.split("_")[1]) > after]
        moved = {path: aside / "trajectories" / path.name for path in later}
        # a sealed one may become whole again, and must not be loaded instead of this run's own checkpoint
        passed_over = [path for path in checkpoints(run_dir / "checkpoints") if step_of(path) > after]
        moved |= {path: aside / "checkpoints" / path.name for path in passed_over if (path / MANIFEST).exists()}
        rows = [(row["train_step"], json.dumps(row)) for row in earlier_steps(metrics)]
        rewritten = any(step > after for step, _ in rows)
        if rewritten:
            aside.mkdir(exist_ok=True)
            shutil.copy2(metrics, aside)
            with written(metrics) as part:  # a run killed at any moment leaves a complete file
                part.write_text("".join(f"{row}\n" for step, row in rows if step <= after))
    for path, target in moved.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
    return aside if moved or rewritten else None
