"""Measures what `trainer.max_off_policy_steps` brings: seconds of a train step with lags of 0, 1 and 2.

Three kinds of rollouts: as they come; each of them waits without computing, as for a slow tool, so that rollouts take
as long as the rest of a step; one in twelve waits 8 s. A reward function that sleeps stands for what they wait for. A
run is timed from its first rollout to the end of its last step, so each has played as many rollouts.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.parts.report import Row
from bench.parts.startup import ROLLOUTS, timeline, train

LAGS, STEPS, CALIBRATION_STEPS = (0, 1, 2), 12, 4
TAIL_S, ONE_IN = 8.0, 12
MOST_OF_THE_LONGER = 1.1
# As many rollouts at once as are open with the longest lag; several epochs make an update that rollouts can wait for.
SETTINGS = (*ROLLOUTS, "rollout.runner_concurrency=48", "rollout.reward_timeout_s=120", "trainer.save_every=0",
            "trainer.val_before_train=false", "trainer.val_every=0")  # fmt: skip
LONG_UPDATE = ("verl.actor_rollout_ref.actor.ppo_epochs=8",)
WAITS = """
import asyncio, json, zlib

async def waits(record):
    if zlib.crc32(json.dumps([record.task["id"], record.messages], default=str).encode()) % {one_in} == 0:
        await asyncio.sleep({seconds})
    return 0.0
"""


@dataclass(frozen=True)
class Timed:
    step_s: float
    """The whole run's seconds, shared among its steps."""
    rollout_s: float
    """Seconds for which a step waited for rollouts, the median."""
    rest_s: float
    """Seconds of the rest of a step, the median."""


def measure(model: Path, folder: Path) -> list[Row]:
    run = functools.partial(play, model, folder)
    alone = run("calibration", 0, *LONG_UPDATE, steps=CALIBRATION_STEPS)
    wait_s = max(alone.rest_s - alone.rollout_s, 0.0)
    plain = {lag: run("plain", lag) for lag in LAGS}
    waiting = {lag: run("waiting", lag, *LONG_UPDATE, wait_s=wait_s) for lag in LAGS}
    tail = {lag: run("tail", lag, wait_s=TAIL_S, one_in=ONE_IN) for lag in LAGS}
    longer_s = max(waiting[0].rollout_s, waiting[0].rest_s)
    return [
        *rows("as they come", plain),
        *rows(f"each waits {wait_s:.1f} s", waiting, target_s=MOST_OF_THE_LONGER * longer_s),
        *rows(f"one in {ONE_IN} waits {TAIL_S:.0f} s", tail),
    ]


def play(
    model: Path,
    folder: Path,
    name: str,
    lag: int,
    *settings: str,
    wait_s: float = 0.0,
    one_in: int = 1,
    steps: int = STEPS,
) -> Timed:
    """One run, of which so many seconds pass after one rollout in `one_in`."""
    run_dir, reward = folder / f"{name}-{lag}", folder / f"{name}_{lag}.py"
    reward.write_text(WAITS.format(seconds=wait_s, one_in=one_in))
    flags = ["--llm-proxy", "--config", "sql_agent/configs/demo.yaml", "--reward", "agent_peft"]
    flags += ["--reward", f"{reward}:waits=0"]
    lines = train(
        model, run_dir, [*SETTINGS, *settings, f"trainer.max_off_policy_steps={lag}", f"trainer.steps={steps}"], flags
    )
    return timed(timeline(lines), [json.loads(line) for line in (run_dir / "metrics.jsonl").open()])


def timed(events: Sequence[tuple[float, str]], steps: Sequence[Mapping[str, float]]) -> Timed:
    """
    Args:
        events: the result of `timeline`.
        steps: lines of metrics.jsonl.
    """
    begin = next(at for at, what in events if what.startswith("first rollouts"))
    end = max(at for at, what in events if what.startswith("step "))
    rollout_s = [step["time/gen_s"] for step in steps]
    rest_s = [step["time/step_s"] - step["time/gen_s"] for step in steps]
    return Timed((end - begin) / len(steps), median(rollout_s), median(rest_s))


def rows(name: str, runs: Mapping[int, Timed], *, target_s: float | None = None) -> list[Row]:
    """One row for each lag; the target is for those above 0."""
    return [
        Row(
            f"rollouts {name}, lag {lag}: a train step",
            run.step_s,
            "s",
            target_s if lag else None,
            limit=f"{3600 / run.step_s:,.0f} steps/h; {run.rollout_s:.1f} s for rollouts, {run.rest_s:.1f} s rest",
        )
        for lag, run in runs.items()
    ]
