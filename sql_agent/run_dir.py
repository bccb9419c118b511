"""The folder of a run: who may write to it, which checkpoint a run resumes from, what an earlier start left there.

A run holds a lock on its folder for as long as it lives. Leaves out the contents of a checkpoint
(`sql_agent.verl_side.checkpoints`).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from core.hub import ModelNotFoundError
from core.json_text import parse_json
from core.outputs import written
from core.passwords import masked
from core.signed import user_key
from sql_agent.config import TrainConfig, load_config
from sql_agent.datatypes import RewardModelConfig
from sql_agent.preflight import TINY_POLICY, UsageError, find_model
from sql_agent.verl_side.checkpoints import MANIFEST, checkpoints, newest_whole, step_of
from sql_agent.verl_side.tracking import earlier_steps

_held: set[int] = set()
"""Locks of this process. A forked runner that outlives a killed command would keep them, so a fork closes them."""


def _let_go() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)


@contextmanager
def claim(run_dir: Path) -> Iterator[None]:
    """Lock the folder: one run at a time writes to it or decides which of its checkpoints are whole.

    Processes that a killed command has left behind end by themselves; this waits for them.

    Raises:
        UsageError: another run has the lock.
    """
    from core.processes import LINGER_S, wait_until_gone

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
        _held.discard(lock)
        os.close(lock)


def last_run_id(run_dir: Path) -> str | None:
    """The id of the run that wrote there last; None if there was none or its run.json is incomplete."""
    try:
        return parse_json((run_dir / "run.json").read_text())["run_id"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_start(run_dir: Path, start: dict[str, Any], *, resumed: bool) -> None:
    """Write run.json: how the run was started, and under `earlier_starts` how it was started before it was resumed."""
    earlier: list[Any] = []
    if resumed:
        with suppress(OSError, ValueError, AttributeError):  # torn by a kill
            last = parse_json((run_dir / "run.json").read_text())
            earlier = [*last.pop("earlier_starts", []), last]
    for each in (start, *earlier):  # earlier versions wrote passwords down
        each |= {"argv": [masked(str(word), whole=True) for word in each["argv"]]} if "argv" in each else {}
    with written(run_dir / "run.json") as part:
        part.write_text(json.dumps(start | {"earlier_starts": earlier}, indent=2))


def set_aside(run_dir: Path, after: int | None = None) -> Path | None:
    """Move what an earlier start left into a folder of its own, so that nobody takes both for one run.

    Args:
        after: the step that a run resumes from. Logs and sealed checkpoints of later steps are moved, because those
            steps are repeated. None: everything is moved.
    Returns:
        That folder; None if nothing was moved.
    """
    aside, rewritten = run_dir / time.strftime("before-%Y%m%d-%H%M%S"), False
    metrics, trajectories = run_dir / "metrics.jsonl", run_dir / "trajectories"
    if after is None:
        names = ("metrics.jsonl", "trajectories", "checkpoints", "config.yaml", "run.json", "report.html", "curve.png")
        moved = {run_dir / name: aside / name for name in names if (run_dir / name).exists()}
    else:
        later = [path for path in trajectories.glob("*_*.jsonl") if int(path.stem.split("_")[1]) > after]
        moved = {path: aside / "trajectories" / path.name for path in later}
        # one that was whole once may be completed again, and must not be loaded instead of this run's own
        passed_over = [path for path in checkpoints(run_dir / "checkpoints") if step_of(path) > after]
        moved |= {path: aside / "checkpoints" / path.name for path in passed_over if (path / MANIFEST).exists()}
        rows = [(row["train_step"], json.dumps(row)) for row in earlier_steps(metrics)]
        rewritten = any(step > after for step, _ in rows)
        if rewritten:
            aside.mkdir(exist_ok=True)
            shutil.copy2(metrics, aside)
            with written(metrics) as part:  # a kill at any moment leaves a complete file
                part.write_text("".join(f"{row}\n" for step, row in rows if step <= after))
    for path, target in moved.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
    return aside if moved or rewritten else None


RESUMED = ("env", "data", "lora", "seed")
"""Settings that a resumed run cannot change; likewise the model, the agent's behaviour, the group size and everything
that defines the reward (`check_resume`)."""
WALL_CLOCK = {"turn_timeout_s", "rollout_timeout_s"}
"""Limits of the agent that may change: they lose rollouts but do not change any."""


def check_resume(cfg: TrainConfig, checkpoint: Path, *, cpu: bool) -> None:
    """A run resumes with the settings that it had.

    Raises:
        UsageError: the checkpoint was trained with other settings.
    """
    workers = parse_json((checkpoint / "actor" / "fsdp_config.json").read_text())["world_size"]
    if workers != (1 if cpu else cfg.engine.n_gpus):
        raise UsageError(
            f"{checkpoint} was written by {workers} workers, each its share; go on with as many (engine.n_gpus), or "
            "train from its merged weights: `python -m scripts.merge_policy`, then --model and another --run-dir"
        )
    saved = cfg.run_dir / "config.yaml"
    if not saved.is_file():
        return
    try:
        old = load_config(saved)
    except ValidationError as error:
        raise UsageError(
            f"{saved} holds settings that this version refuses ({error.errors()[0]['msg']}), so the run cannot go on; "
            "give another --run-dir, or --resume never to start anew there"
        ) from None
    pairs: dict[str, tuple[Any, Any]] = {name: (getattr(old, name), getattr(cfg, name)) for name in RESUMED}
    model = cfg.model or TINY_POLICY
    with suppress(ModelNotFoundError):  # a model that is not there differs
        model = find_model(model)
    pairs["model"] = ((old.model or TINY_POLICY).resolve(), model.resolve())
    pairs |= {
        f"rollout.{name}": (getattr(old.rollout, name), getattr(cfg.rollout, name))
        for name in ("group_size", "reward", "judge")
    }
    pairs["agent"] = (old.agent.model_dump(exclude=WALL_CLOCK), cfg.agent.model_dump(exclude=WALL_CLOCK))
    pairs["reward_model"] = (_shaping(old.reward_model), _shaping(cfg.reward_model))
    changed = [name for name, (before, now) in pairs.items() if before != now]
    if changed:
        raise UsageError(
            f"{cfg.run_dir} was trained with other settings ({', '.join(changed)}; see {saved}); "
            "give another --run-dir, or --resume never to start anew there"
        )


def _shaping(cfg: RewardModelConfig) -> Any:
    """What the reward model does to the reward; its address may change."""
    return None if cfg.url is None else (cfg.weight, cfg.center, cfg.scale)


def go_on_from(cfg: TrainConfig, *, cpu: bool) -> Path | None:
    """The checkpoint that this run resumes from; None if it starts anew.

    Raises:
        ValueError: there are checkpoints, but the run cannot resume from any of them.
    """
    user_key()  # made, or found missing, before anything starts
    if cfg.trainer.resume == "never":
        return None
    checkpoint = newest_whole(cfg.run_dir / "checkpoints", print)
    if checkpoint is not None:
        check_resume(cfg, checkpoint, cpu=cpu)
        print(f"going on from {checkpoint}")
    return checkpoint


def refuse_other_tasks(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """
    Raises:
        UsageError: a resumed run had other tasks under the same settings.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not file.is_file():
        return
    earlier = pq.read_table(file).to_pylist()
    now = pa.Table.from_pylist(list(rows)).to_pylist()
    if earlier != now:
        differ = sum(a != b for a, b in zip(earlier, now, strict=False)) + abs(len(earlier) - len(now))
        raise UsageError(
            f"the tasks are not those that this run was trained on: {differ} of {len(earlier)} differ from {file}; has "
            "the task file changed? Give it as it was, or another --run-dir, or --resume never to start anew there"
        )
