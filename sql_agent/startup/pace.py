"""How long a run takes, before its first step: as fast as the last run of such a model was on this machine.

Each measured step of a run of the main job leaves its speeds in a file in the user's settings folder; plans read them.
Leaves out runs that were never measured here: nothing is guessed from the size of a model.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import NonNegativeFloat, PositiveFloat, TypeAdapter

from agentgrpo.disk_errors import OutputError
from agentgrpo.machine import count_gpus, settings_folder
from agentgrpo.outputs import written
from sql_agent.model_check import read_json
from sql_agent.settings.main_job import ClusterConfig, EngineConfig
from sql_agent.step_times import PHASES, Phase, StepTimes

FILE = "pace.json"


class Work(NamedTuple):
    """What a step computes."""

    tasks: int
    rollouts: int
    held_out: int
    """Rollouts of a validation."""
    prompt_tokens: float
    """The median of first prompts."""
    response_limit: int

    def tokens(self, phase: Phase, response_tokens: float) -> float:
        """The tokens by which a phase's speed is told: what rollouts sample; else prompts, once a task, and responses.

        vLLM reads prompts fast, and the policy learns from responses after them.
        """
        responses = self.rollouts * response_tokens
        return responses if phase == "rollouts" else self.tasks * self.prompt_tokens + responses


class Pace(NamedTuple):
    """The speeds of a run."""

    tokens_per_s: dict[Phase, PositiveFloat]
    """Speeds by phase, counted in `Work.tokens`; a phase that the run did not have is left out."""
    other_s: NonNegativeFloat
    """Seconds of a step between its phases."""
    response_tokens: float
    """The mean of its rollouts."""
    rollouts: int
    """How many a step had. They are sampled side by side, so few of them take about as long as many."""
    run: str
    """The run's folder."""


_PACE = TypeAdapter(Pace)


def pace_of(metrics: Mapping[str, float], work: Work, run: Path) -> Pace | None:
    """
    Args:
        metrics: of a step.
        work: of its settings; the step's own prompts count.
    Returns:
        None: the step was not measured, no rollout came back, or some were played beside another step's update.
    """
    response = metrics.get("rollout/response_tokens")
    if "time/step_s" not in metrics or "time/overlap_s" in metrics or not response:
        return None
    done = work._replace(prompt_tokens=metrics.get("prompt_length/mean", work.prompt_tokens))
    seconds: dict[Phase, float] = {
        phase: sum(metrics.get(name, 0.0) for name in names) for phase, names in PHASES.items()
    }
    other = metrics["time/step_s"] - metrics.get("time/checkpoint_s", 0.0) - sum(seconds.values())
    speeds: dict[Phase, float] = {
        phase: done.tokens(phase, response) / spent for phase, spent in seconds.items() if spent
    }
    return Pace(speeds, max(0.0, other), response, work.rollouts, str(run))


def expected(pace: Pace, work: Work) -> StepTimes:
    """How long a step and a validation of such work take at that pace."""
    response = min(pace.response_tokens, work.response_limit)
    speeds = pace.tokens_per_s
    phases: dict[Phase, float] = {
        phase: work.tokens(phase, response) / speeds[phase] if phase in speeds else 0.0 for phase in PHASES
    }
    sampled_per_s = speeds.get("rollouts")
    validation_s = work.held_out * response / sampled_per_s if sampled_per_s else None
    return StepTimes(sum(phases.values()) + pace.other_s, validation_s, None, phases)


def kind_of(
    model: Path, weights: int, trained: str, engine: EngineConfig, cluster: ClusterConfig, *, cpu: bool
) -> str | None:
    """What a pace holds for, in words: model, what is trained, precision, machine. Homes may be shared by machines.

    Args:
        model: its folder.
        trained: what of the weights is trained.
    Returns:
        None: the run is on several machines, for which nothing is remembered.
    """
    if cluster.ray_address is not None or cluster.nodes > 1:
        return None
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    name = next((line.partition(":")[2].strip() for line in lines if "model name" in line), platform.machine())
    devices = f"{os.cpu_count()} cores" if cpu else f"{engine.n_gpus} of {count_gpus()} GPUs"
    model_type = read_json(model / "config.json").get("model_type")
    parts = (f"{model_type} of {weights:,} weights", trained, f"{cluster.workers_per_node} workers", engine.precision)
    return ", ".join([*parts, devices, name])


def remembered(kind: str, work: Work) -> Pace | None:
    """
    Returns:
        None: no run of this kind with about as many rollouts was measured here, or the file cannot be read.
    """
    try:
        pace = _PACE.validate_python(_all()[kind])
    except (KeyError, ValueError):
        return None
    return pace if pace.rollouts / 2 <= work.rollouts <= 2 * pace.rollouts else None


def remember(kind: str, pace: Pace) -> None:
    """Where the folder cannot be written, the next run has no forecast."""
    try:
        with written(settings_folder() / FILE) as part:
            part.write_text(json.dumps(_all() | {kind: pace._asdict()}, indent=1))
    except (OSError, RuntimeError, OutputError):  # there may be no home
        return


def _all() -> dict[str, dict[str, Any]]:
    try:
        paces = json.loads((settings_folder() / FILE).read_text())
    except (OSError, RuntimeError, ValueError):  # there may be no home
        return {}
    return paces if isinstance(paces, dict) else {}
