"""What the parts of one run share inside verl's driver process: settings, addresses, the run directory.

`driver` makes it; the rollout manager and the metrics sink read it. Leaves out what other processes need.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agentgrpo.outputs import append_line
from sql_agent.settings.train import TrainConfig
from sql_agent.source.datatypes import Rollout

OPEN_GROUPS = "open_groups.json"
"""The file of a checkpoint with what `RunContext.open_groups` returned."""

NEWEST = "sampled_with_newest_weights"
"""The field of verl's batch that says of each row whether all its turns were sampled with the weights that are updated;
only with `trainer.max_off_policy_steps`."""


class TrainingFailedError(RuntimeError):
    """verl's process, or one that it needs, ended before the run did; the message names the log."""


@dataclass
class RunContext:
    cfg: TrainConfig
    run_id: str
    store_url: str
    pad_id: int
    publish: Callable[[dict[str, Any]], str | None]
    """Passes on `{"model", "backends"}` of the model servers and returns the LLM proxy's address, None without one."""
    progress: Callable[[dict[str, Any]], None] = lambda _: None
    """Receives how far a batch is: `{"event": "rollouts", "step", "validate", "done", "of", "lost", "resampled"}`."""
    step_metrics: dict[str, float] = field(default_factory=dict)
    """Filled by the rollout manager, emptied by the metrics sink after each step."""
    open_groups: Callable[[], dict[str, Any] | None] = lambda: None
    """The groups that no step has taken yet, which a resumed run plays again; set by the rollout manager. None: a run
    without `trainer.max_off_policy_steps` has none between two steps."""
    proxy_url: str | None = None
    """The LLM proxy's address; set by the rollout manager."""

    kept: list[Any] = field(default_factory=list)
    """Handles of Ray actors that live as long as the run."""
    steps: int = field(init=False)
    """The last train step, as far as it is planned."""

    def __post_init__(self) -> None:
        self.steps = self.cfg.trainer.steps

    @property
    def run_dir(self) -> Path:
        return self.cfg.run_dir

    def save_trajectories(self, results: Sequence[Rollout], *, step: int, validate: bool) -> None:
        """Write whole rollouts: all of a validation, a few of training spread over the reward range, every lost one.

        Each line is a JSON object with the fields of training (`train_step`, `advantage`, ...), then those of
        `RolloutRecord`.
        """
        judged = sorted((r for r in results if r.reward is not None), key=lambda r: r.reward or 0.0)
        wanted = len(judged) if validate else min(self.cfg.rollout.trajectories_per_step, len(judged))
        spread = [judged[round(i * (len(judged) - 1) / max(wanted - 1, 1))] for i in range(wanted)]
        lines = [trajectory_line(r, step, validate=validate) for r in [*spread, *(r for r in results if r.lost)]]
        folder = self.run_dir / "trajectories"
        folder.mkdir(parents=True, exist_ok=True)
        if lines:
            file = folder / f"{'val' if validate else 'train'}_{step:06d}.jsonl"
            append_line(file, "\n".join(map(json.dumps, lines)))


def trajectory_line(result: Rollout, step: int, *, validate: bool) -> dict[str, Any]:
    """One rollout as a line of `trajectories/*.jsonl`; the keys are a file format and must not change."""
    line: dict[str, Any] = {
        "train_step": step,
        "validate": validate,
        "task_id": result.task_id,
        "group": result.group,
        "skills": result.skills,
        "lost": result.lost,
        "unshaped": result.unshaped,
        "set_aside": result.filtered,
        "advantage": None if validate else result.advantage,
    }
    if row := result.row:
        line |= {
            "first_prompt_tokens": row.prompt_tokens,
            "sampled_tokens": sum(row.sampled),
            "response_tokens": row.response_tokens,
            "chains": row.num_chains,
            "prefix_break": row.prefix_break,
            "dropped_turns": row.dropped_turns,
        }
    if result.played:
        line |= {"reward": result.reward, **result.played.to_dict()}
        line |= {"reward_model": asdict(result.scorer)} if result.scorer else {}
        earned = result.earned
        line |= {"reward_parts": earned.parts} if earned.terms or earned.lacking else {}
        line |= {"reward_error": earned.error} if earned.error else {}
        line |= {"turn_rewards": result.turn_rewards} if result.turn_rewards else {}
        line |= {"turn_advantages": result.turn_advantages} if result.turn_advantages and not validate else {}
    return line


_current: RunContext | None = None


def enter(context: RunContext) -> None:
    global _current
    _current = context


def current() -> RunContext:
    if _current is None:
        raise RuntimeError("the rollout manager runs inside sql_agent.verl_side.driver, which sets up the run first")
    return _current
