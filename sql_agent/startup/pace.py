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

from agentgrpo.disk_errors import OutputError
from agentgrpo.machine import count_gpus, settings_folder
from agentgrpo.outputs import written
from sql_agent.model_check import read_json
from sql_agent.startup.progress import PHASES, Phase, StepTimes

FILE = "pace.json"


class Work(NamedTuple):
    """What a step computes."""

    tasks: int
    rollouts: int
    held_out: int
    """Rollouts of a validation."""
    prompt_tokens: float
    """Of a first prompt, in the median."""
    response_limit: int

    def tokens(self, phase: Phase, response_tokens: float) -> float:
        """Tokens that a phase takes its time for: rollouts sample one after another, and prompts are read at once."""
        responses = self.rollouts * response_tokens
        return responses if phase == "rollouts" else self.tasks * self.prompt_tokens + responses


class Pace(NamedTuple):
    """The speeds of a run."""

    tokens_per_s: dict[Phase, float]
    """By phase, of `Work.tokens`; a phase that the run did not have is left out."""
    other_s: float
    """Seconds of a step between its phases."""
    response_tokens: float
    """Of a rollout, in the mean."""
    run: str
    """The run's folder."""


def pace_of(metrics: Mapping[str, float], work: Work, run: Path) -> Pace | None:
    """
    Args:
        metrics: of a step.
        work: of its settings; the step's own prompts count.
    Returns:
        None: the step was not measured, or no rollout came back.
    """
    response = metrics.get("rollout/response_tokens")
    if "time/step_s" not in metrics or not response:
        return None
    done = work._replace(prompt_tokens=metrics.get("prompt_length/mean", work.prompt_tokens))
    seconds: dict[Phase, float] = {
        phase: sum(metrics.get(name, 0.0) for name in names) for phase, names in PHASES.items()
    }
    other = metrics["time/step_s"] - metrics.get("time/checkpoint_s", 0.0) - sum(seconds.values())
    speeds: dict[Phase, float] = {
        phase: done.tokens(phase, response) / spent for phase, spent in seconds.items() if spent
    }
    return Pace(speeds, max(0.0, other), response, str(run))


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


def kind_of(model: Path, weights: int, *, cpu: bool) -> str:
    """The model and the machine, in words: what a pace holds for. Homes may be shared by machines.

    Args:
        model: its folder.
    """
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    name = next((line.partition(":")[2].strip() for line in lines if "model name" in line), platform.machine())
    devices = f"{os.cpu_count()} cores" if cpu else f"{count_gpus()} GPUs"
    return f"{read_json(model / 'config.json').get('model_type')} of {weights:,} weights on {devices}, {name}"


def remembered(kind: str) -> Pace | None:
    """None: no such run was measured on this machine, or the file cannot be read."""
    try:
        return Pace(**_all()[kind])
    except (KeyError, TypeError):
        return None


def remember(kind: str, pace: Pace) -> None:
    """A folder that cannot be written costs the forecast, and no run."""
    file = settings_folder() / FILE
    try:
        with written(file) as part:
            part.write_text(json.dumps(_all() | {kind: pace._asdict()}, indent=1))
    except (OSError, OutputError):
        return


def _all() -> dict[str, dict[str, Any]]:
    try:
        paces = json.loads((settings_folder() / FILE).read_text())
    except (OSError, ValueError):
        return {}
    return paces if isinstance(paces, dict) else {}
