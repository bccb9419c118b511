"""Manages the folder of a local run: its settings, its two line files, its checkpoints, and the final adapter.

Leaves out what every run's folder has (`agentgrpo.run_folder`). Files are written atomically, and a resumed run ends
like an uninterrupted one. A checkpoint is a folder `step_000123` with the adapter, the learner's state, the random
generators, the progress of the loop (`state.json`), and a signed manifest of sizes and hashes. Only checkpoints that
this user wrote are loaded (`agentgrpo.signed_checkpoints`), because `training.pt` is a pickle.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from agentgrpo import run_folder, signed_checkpoints
from agentgrpo.checkpoints import MANIFEST, newest_whole, prune, step_of
from agentgrpo.checks import UsageError
from agentgrpo.json_text import parse_json
from agentgrpo.outputs import append_line, failures_of_the_disk, sync, written
from agentgrpo.settings import merged, read_settings
from sql_agent.trained_on import TrainedOn, write_trained_on

if TYPE_CHECKING:
    from sql_agent.local.learner import Learner
    from sql_agent.local.policy import LocalPolicy

log = logging.getLogger(__name__)

REMEDY = "start again in another folder, or move these away to begin this run again from its first task"
STATE = "state.json"
KEPT = 2
"""Number of checkpoints that stay: the newest, and the one before it in case the newest gets damaged."""


def save_checkpoint(folder: Path, step: int, policy: LocalPolicy, learner: Learner, state: dict[str, Any]) -> Path:
    """Write `folder/step_…` and remove all but the newest `KEPT` checkpoints.

    Args:
        state: the loop's state as JSON values.
    """
    import torch

    target = folder / f"step_{step:06d}"
    with written(target) as unfinished:
        unfinished.mkdir()
        policy.save(unfinished)
        torch.save({"learner": learner.state(), "random": _random_state()}, unfinished / "training.pt")
        (unfinished / STATE).write_text(json.dumps(state))
        signed_checkpoints.seal(unfinished, MANIFEST, {"step": step})
        for path in unfinished.rglob("*"):
            sync(path)
    sync(folder)
    prune(target, KEPT)
    return target


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint, None if there is none at all; damaged ones are skipped with a warning.

    Raises:
        CheckpointError: there are checkpoints, and none of them is whole.
        NotOursError: another user wrote the checkpoint.
    """
    return newest_whole(folder, log.warning, run_dir=folder.parent, remedy=REMEDY)


def resume(checkpoint: Path, policy: LocalPolicy, learner: Learner) -> dict[str, Any]:
    """Restore adapter, learner and random generators, and return the loop's `state`.

    Raises:
        ValueError: the adapter's shape differs from this run's.
    """
    import torch

    policy.load(checkpoint)
    training = torch.load(checkpoint / "training.pt", weights_only=False, map_location="cpu")
    learner.load_state(training["learner"])
    _set_random_state(training["random"])
    return parse_json((checkpoint / STATE).read_text())


def _random_state() -> dict[str, Any]:
    import numpy as np
    import torch

    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def _set_random_state(state: dict[str, Any]) -> None:
    import numpy as np
    import torch

    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


FREE = (
    *("minutes", "run_dir", "save_dir", "output_dir", "save_every", "training_callback"),
    *("rollout_timeout_s", "learning_rate", "max_grad_norm", "micro_batch_tokens", "device", "gradient_checkpointing"),
    *("reward_timeout_s", "max_lost_fraction", "shared_prompts"),
    *(f"reward_model.{name}" for name in ("url", "timeout_s", "give_up_s")),
    *(f"llm_judge.{name}" for name in ("url", "timeout_s", "attempts", "concurrency", "max_calls")),
)
"""Settings and groups that may differ on `--resume`: they decide when a run saves, stops and gives up, or a run that
diverged, ran out of memory or lost its episodes at their deadline is advised to change them."""
FILES = {"single-skill": ("logs/metrics.jsonl", "sessions/episodes.jsonl")}
"""Metrics and trajectories of a command whose predecessor had other names for them."""


class RunFolder:
    """Checks the folder of a run; `begin` makes it.

    Args:
        path: the folder; it must not hold a run unless that run is resumed.
        config: settings, saved on the first start; a resumed run must have the same.
        kind: the command, as `agentgrpo --help` names it.
        free: further settings that may change when a run is resumed, by their names in the file.
        own_files: the user's own files with their sha256, by what they are used for.
    Raises:
        UsageError: a new run's folder is not empty, or a resumed run is missing or has other settings or files.
    """

    def __init__(
        self,
        path: Path,
        config: BaseModel,
        *,
        resumed: bool,
        kind: str = "local",
        free: Iterable[str] = (),
        own_files: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.path, self.checkpoints = path, path / "checkpoints"
        self.metrics, self.trajectories = (
            path / name for name in FILES.get(kind, (run_folder.METRICS, "trajectories.jsonl"))
        )
        self.resume_flag = f"--resume {path}" if kind == "single-skill" else "--resume"
        """The flag that resumes this run."""
        self._settings, self.kind, self.resumed = path / run_folder.SETTINGS, kind, resumed
        self.trained_on = TrainedOn()
        """What every adapter of the run says about itself; the command sets it once its tasks are chosen."""
        self._config = {**config.model_dump(mode="json"), **({"own_files": dict(own_files)} if own_files else {})}
        run_folder.check_begun(path, kind=kind, resume=resumed, begun=self._settings.is_file())
        if resumed:
            # an earlier version left out settings that it did not have, which are those of the default
            defaults = type(config).model_construct().model_dump(mode="json", warnings=False)
            earlier = run_folder.flat(merged(defaults, read_settings(self._settings)))
            now = run_folder.flat(self._config)
            for name in {**now, **earlier}:
                fixed = not any(f".{other}." in f".{name}." for other in (*free, *FREE))
                # a service may move, but a reward that it gives neither begins nor ends within a run
                fixed |= name.endswith(".url") and None in (now.get(name), earlier.get(name))
                if fixed and now.get(name) != earlier.get(name):
                    raise UsageError(
                        f"the run in {path} was started with {name} = {earlier.get(name)}, now it is {now.get(name)}; "
                        "resume with the same settings, or start again in another folder"
                    )

    def begin(self, **facts: Any) -> None:
        """Make the folder and write the settings and how the run began; nothing is written before this call.

        Args:
            facts: see `agentgrpo.run_folder.start_of`.
        """
        with failures_of_the_disk(self.path):
            for file in (self.metrics, self.trajectories):
                file.parent.mkdir(parents=True, exist_ok=True)
        start = run_folder.start_of(self.kind, **facts)
        run_folder.begin(self.path, self._config, start, resumed=self.resumed)

    def log(self, metrics: Mapping[str, Any]) -> None:
        _append(self.metrics, {**metrics, "at": time.time()})

    def keep(self, trajectory: Mapping[str, Any]) -> None:
        _append(self.trajectories, trajectory)

    def save(self, step: int, policy: LocalPolicy, learner: Learner, state: dict[str, Any]) -> None:
        save_checkpoint(self.checkpoints, step, policy, learner, state)

    def resume(self, policy: LocalPolicy, learner: Learner) -> dict[str, Any] | None:
        """Restore the newest whole checkpoint and give the loop's state; None if there is none, to begin anew."""
        checkpoint = newest_checkpoint(self.checkpoints)
        if checkpoint is None:
            self.metrics.unlink(missing_ok=True)
            self.trajectories.unlink(missing_ok=True)
            return None
        for file in (self.metrics, self.trajectories):
            run_folder.cut_back(file, step_of(checkpoint))
        return resume(checkpoint, policy, learner)

    def finish(self, policy: LocalPolicy, name: str = "adapter") -> Path:
        """Write adapter and tokenizer atomically; gives their folder."""
        with written(self.path / name) as unfinished:
            policy.save(unfinished)
            write_trained_on(unfinished, self.trained_on)
        return self.path / name


def _append(path: Path, line: Mapping[str, Any]) -> None:
    append_line(path, json.dumps(line))  # ASCII, because a policy may write a lone surrogate
