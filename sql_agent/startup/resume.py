"""Chooses the checkpoint from which a run resumes, refuses settings and tasks that differ from the run's, and
moves what a start does not continue into a folder of its own."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentgrpo.checkpoints import CHECKPOINTS, MANIFEST, checkpoints, how_to_go_on, newest_finished, step_of
from agentgrpo.checks import UsageError
from agentgrpo.hub import ModelNotFoundError
from agentgrpo.json_text import parse_json
from agentgrpo.printed_commands import agentgrpo_command
from agentgrpo.run_folder import cut_back, earlier_steps
from agentgrpo.signed_checkpoints import user_key
from sql_agent.environments.user_class import named
from sql_agent.names import ENVIRONMENTS, TINY_POLICY, label
from sql_agent.reward_functions.load import load_functions
from sql_agent.settings.groups import EnvConfig, JudgeConfig, RewardModelConfig
from sql_agent.settings.load import load_config
from sql_agent.settings.main_job import ClusterConfig, RolloutConfig
from sql_agent.settings.train import TrainConfig
from sql_agent.startup.preflight import find_model
from sql_agent.user_agents.tasks import source_of_agent
from sql_agent.verl_side.checkpoints import newest_verl_checkpoint

# Settings that a resumed run cannot change; likewise the environment, the model, the agent's behaviour, the group size
# and everything that defines the reward (`check_resume`).
RESUMED = ("data", "lora", "seed")
# Limits of the agent that may change, because they lose rollouts but do not change any.
WALL_CLOCK = {"turn_timeout_s", "rollout_timeout_s"}


def check_resume(cfg: TrainConfig, checkpoint: Path, *, cpu: bool) -> None:
    """Check that a run resumes with the settings that it had.

    Raises:
        UsageError: the checkpoint was trained with other settings.
    """
    saved = cfg.run_dir / "config.yaml"
    workers = parse_json((checkpoint / "actor" / "fsdp_config.json").read_text())["world_size"]
    if workers != cfg.workers(cpu=cpu):
        as_many = _as_many(workers, cfg.cluster, saved, cpu=cpu)
        merge = agentgrpo_command("merge", "--checkpoint", cfg.run_dir, "--output")
        raise UsageError(
            f"{checkpoint} was written by {workers} worker{'s, each its share' * (workers > 1)}; go on with as many "
            f"({as_many}), or train from its merged weights: `{merge} MERGED`, then "
            "--model MERGED and another --run-dir"
        )
    if not saved.is_file():
        return
    try:
        old = load_config(saved)
    except ValidationError as error:
        raise UsageError(
            f"{saved} holds settings that this version refuses ({error.errors()[0]['msg']}), so the run cannot resume; "
            "give another --run-dir, or --resume never to start again there"
        ) from None
    pairs: dict[str, tuple[Any, Any]] = {name: (getattr(old, name), getattr(cfg, name)) for name in RESUMED}
    had, model = (old.model or TINY_POLICY).resolve(), cfg.model or TINY_POLICY
    try:
        model = find_model(model)
    except ModelNotFoundError as error:
        if had != model.resolve():
            raise
        raise UsageError(
            f"{cfg.run_dir} was trained from {had}, which is gone; put the model back there, or give another "
            f"--run-dir, or --resume never to start again there from another --model ({error})"
        ) from None
    pairs["model"] = (had, model.resolve())
    pairs |= {
        f"rollout.{name}": (getattr(old.rollout, name), getattr(cfg.rollout, name))
        for name in ("group_size", "judge", "train_agents", "success_reward")
    }
    pairs["env"] = (_environment(old.env), _environment(cfg.env))
    pairs["rollout.reward"] = (_weights(old.rollout), _weights(cfg.rollout))
    pairs |= {f"the content of {file}": texts for file, texts in _contents(cfg.run_dir, hash_user_files(cfg)).items()}
    pairs["judge"] = (_judging(old.judge), _judging(cfg.judge))
    pairs["agent"] = (old.agent.model_dump(exclude=WALL_CLOCK), cfg.agent.model_dump(exclude=WALL_CLOCK))
    pairs["reward_model"] = (_shaping(old.reward_model), _shaping(cfg.reward_model))
    changed = [name for name, (before, now) in pairs.items() if before != now]
    if changed:
        raise UsageError(
            f"{cfg.run_dir} was trained with other settings ({', '.join(changed)}; see {saved}); "
            "give another --run-dir, or --resume never to start again there"
        )


def _as_many(workers: int, cluster: ClusterConfig, saved: Path, *, cpu: bool) -> str:
    """The flags that give a run as many workers, over as many nodes as its settings in `saved` have."""
    per_node, nodes = "cluster.workers_per_node" if cpu else "engine.n_gpus", 1
    with suppress(OSError, ValueError):  # what is wrong with the file is said once the number is right
        nodes = load_config(saved).cluster.nodes
    joins = "--ray-address ADDRESS " if nodes > 1 and cluster.ray_address is None else ""
    over = f"cluster.nodes={nodes} " if nodes != cluster.nodes else ""
    return f"{joins}--set {over}{per_node}={workers // nodes}"


def _environment(env: EnvConfig) -> Any:
    """The place of the user's own file and its call timeout may change."""
    return label(env.type), env.database, label(env.agent or "")


def _weights(rollout: RolloutConfig) -> dict[str, float]:
    """By label, since the place of a function's file may change."""
    return {label(name): weight for name, weight in rollout.weights.items()}


def hash_user_files(cfg: TrainConfig) -> dict[str, dict[str, str]]:
    """Reward functions by label, then files of settings by the settings' names."""
    files = {
        each.label: {"file": str(each.file), "sha256": each.sha256}
        for each in load_functions(cfg.rollout, cfg.judge, cfg.run_dir)
    }
    if cfg.env.type not in ENVIRONMENTS:
        _, source = named(cfg.env.type)
        files["env.type"] = {"file": str(source.file), "sha256": source.sha256}
    if cfg.env.agent is not None:
        source = source_of_agent(cfg.env.agent)
        files["env.agent"] = {"file": str(source.file), "sha256": source.sha256}
    if (file := cfg.agent.instructions) is not None:
        files["agent.instructions"] = {"file": str(file), "sha256": sha256(file.read_bytes()).hexdigest()}
    return files


def _contents(run_dir: Path, files: dict[str, dict[str, str]]) -> dict[str, tuple[str | None, str]]:
    """The sha256 of each of the user's own files in the run, and now."""
    try:
        had = parse_json((run_dir / "run.json").read_text())["own_files"]
    except (OSError, ValueError, KeyError, TypeError):
        had = {}
    return {now["file"]: (had.get(name, {}).get("sha256"), now["sha256"]) for name, now in files.items()}


def _judging(cfg: JudgeConfig) -> Any:
    """What affects the reward; its address may change."""
    return None if cfg.url is None else (cfg.model, cfg.max_chars)


def _shaping(cfg: RewardModelConfig) -> Any:
    return None if cfg.url is None else (cfg.weight, cfg.center, cfg.scale)


def go_on_from(cfg: TrainConfig, *, cpu: bool) -> Path | None:
    """The checkpoint from which this run resumes; None if it starts anew.

    Raises:
        ValueError: there are checkpoints, but the run cannot resume from any of them.
    """
    user_key()  # is made, or raises, before anything starts
    if cfg.trainer.resume == "never":
        return None
    checkpoint = newest_verl_checkpoint(cfg.run_dir / CHECKPOINTS, print)
    if checkpoint is not None:
        check_resume(cfg, checkpoint, cpu=cpu)
        print(f"resuming from {checkpoint}")
    return checkpoint


def after_a_stop(run_dir: Path, resume: str, algorithm: str) -> str:
    """What the same command does with what a run that was stopped has left."""
    newest, found = newest_finished(run_dir / CHECKPOINTS), run_dir / "candidates.json"
    if algorithm == "apo":
        return "the same command starts again" + (f"; {found} has what was found" if found.is_file() else "")
    if resume == "auto":
        return how_to_go_on(run_dir / CHECKPOINTS, "the same command")
    return "the same command starts again" + (f"; with --resume auto it resumes from {newest}" if newest else "")


def refuse_other_tasks(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Check that the tasks of a resumed run have not changed.

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
            "the task file changed? Restore it, or give another --run-dir, or --resume never to start again there"
        )


def archive_files(run_dir: Path, after: int | None = None) -> Path | None:
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
        rewritten = any(row["train_step"] > after for row in earlier_steps(metrics))
        if rewritten:
            aside.mkdir(exist_ok=True)
            shutil.copy2(metrics, aside)
            cut_back(metrics, after)
    for path, target in moved.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
    return aside if moved or rewritten else None
