"""Runs one peer and measures it from outside: when its steps end, and the memory of all its processes.

A peer is a command, and a function that reads the steps it has done so far from its files.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Self

from agentgrpo.processes import own_run
from bench.parts.children import ROOT, python, started
from bench.parts.peers import own_peer, trl_peer, verl_peer
from bench.parts.peers.order import Order, Sizes
from bench.parts.startup import sample

LOOK_S, MEMORY_S = 0.2, 2.0


@dataclass(frozen=True)
class Peer:
    title: str
    command: Callable[[Order], list[str]]
    steps: Callable[[Order], list[dict[str, Any]]]
    """The steps so far: `save_s`, `weights`, `rollouts`, `trained`, `sampled` of each (see `Step`)."""
    environment: Callable[[Order], dict[str, str]] = lambda order: {}


def _module(name: str, *arguments: str) -> Callable[[Order], list[str]]:
    return lambda order: python(f"bench.parts.peers.{name}", str(order.folder / "order.json"), *arguments)


PEERS: dict[str, Peer] = {
    "trl": Peer("TRL", _module("trl_peer"), trl_peer.steps),
    "trl-vllm": Peer("TRL, vLLM", _module("trl_peer", "vllm"), trl_peer.steps, lambda order: trl_peer.ENVIRONMENT),
    "verl": Peer("verl's agent loop", verl_peer.command, verl_peer.steps, verl_peer.environment),
    "agl": Peer("agent-lightning's proxy", _module("agl_peer"), verl_peer.steps),
    "lag0": Peer("this project", lambda order: own_peer.command(order, 0), own_peer.steps),
    "lag1": Peer("this project, lag 1", lambda order: own_peer.command(order, 1), own_peer.steps),
}


class PeerError(RuntimeError):
    """A peer ended, or was not done in time; the message is its last words."""


@dataclass(frozen=True)
class Step:
    at_s: float
    """Seconds from the command to the step's end, weights saved."""
    save_s: float
    """Seconds of it in which weights were saved, by the peer's own clock."""
    weights: str
    """Their folder."""
    rollouts: int
    """Rollouts that were trained."""
    trained: int
    """Tokens that the policy is said to have sampled, and that were trained."""
    sampled: int
    """Trained tokens that the sampler did return."""


@dataclass(frozen=True)
class Measured:
    """What was seen of a peer, as it is written to a file."""

    title: str
    steps: list[Step] = field(default_factory=list)
    peak_bytes: int = 0
    """PSS of all processes together."""
    after_rollouts: float | None = None
    """Share of the held-out tasks that the weights of the last counted step solve."""
    after_seconds: float | None = None
    """The same of the weights that were there after the watched seconds."""
    error: str = ""
    """Why it was not measured."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        return cls(**{**fields, "steps": [Step(**step) for step in fields["steps"]]})


def measure(peer: Peer, order: Order, say: Callable[[str], None]) -> Measured:
    """Run a peer until its steps are done and its time is over, end it, and play the held-out tasks.

    Raises:
        PeerError: it ended by itself, or took too long.
    """
    with own_run():
        order.write()
        steps, peak = _watch(peer, order, say)
        weights = [weights_after(steps, order.sizes), weights_in_time(steps, order.sizes)]
        after_rollouts, in_time = held_out(order, weights, say)
    return Measured(peer.title, steps, peak, after_rollouts, in_time)


def _watch(peer: Peer, order: Order, say: Callable[[str], None]) -> tuple[list[Step], int]:
    sizes, log = order.sizes, order.folder / "log"
    steps: list[Step] = []
    peak, looked_at_s = 0, 0.0
    begin = time.monotonic()
    with started(peer.command(order), log, peer.environment(order)) as process:
        while not done(steps, time.monotonic() - begin, sizes):
            at_s = time.monotonic() - begin
            for line in peer.steps(order)[len(steps) :]:
                steps.append(Step(at_s=at_s, **line))
                say(f"{at_s:6.1f} s: step {len(steps)}, {steps[-1].rollouts} rollouts, {steps[-1].trained} tokens")
            if process.poll() is not None:
                raise PeerError(f"it ended with {process.returncode} after {at_s:.0f} s: {last_words(log)}")
            if at_s > sizes.limit_s:
                raise PeerError(f"{len(steps)} of {sizes.steps} steps in {at_s:.0f} s; {last_words(log)}")
            if at_s - looked_at_s > MEMORY_S:
                peak, looked_at_s = max(peak, sample(process.pid).total()), at_s
            time.sleep(LOOK_S)
    return steps, peak


def done(steps: Sequence[Step], at_s: float, sizes: Sizes) -> bool:
    return len(steps) >= sizes.steps and at_s >= sizes.seconds


def last_words(log: Path) -> str:
    """The last line of a log that names an error, or its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return (errors or lines or ["it printed nothing"])[-1][-300:]


def weights_after(steps: Sequence[Step], sizes: Sizes) -> str:
    return steps[sizes.steps - 1].weights


def weights_in_time(steps: Sequence[Step], sizes: Sizes) -> str | None:
    """The newest weights that were there after the watched seconds; None if there were none yet."""
    return next((step.weights for step in reversed(steps) if step.at_s <= sizes.seconds), None)


def held_out(order: Order, folders: Sequence[str | None], say: Callable[[str], None]) -> list[float | None]:
    """The success of each folder's weights; None where there are none, or no held-out task is played."""
    if not order.sizes.held_out:
        return [None] * len(folders)
    known = [folder for folder in dict.fromkeys(folders) if folder]
    say(f"       held-out tasks, {len(known)} times {order.sizes.held_out}")
    command = python("bench.parts.peers.held_out", str(order.held_out_tasks), str(order.sizes.reply_tokens), *known)
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if ended.returncode:
        raise PeerError(f"the held-out tasks could not be played: {ended.stderr[-300:]}")
    solved = dict(zip(known, map(json.loads, ended.stdout.splitlines()), strict=True))
    return [solved[folder] if folder else None for folder in folders]


# Figures, which are worked out from what was seen -------------------------------------------------------------------


def first_step_s(run: Measured) -> float:
    return run.steps[0].at_s


def step_seconds(run: Measured) -> list[float]:
    """Seconds of each step after the first, without the saving of weights."""
    return [later.at_s - earlier.at_s - later.save_s for earlier, later in itertools.pairwise(run.steps)]


def step_s(run: Measured) -> float:
    return median(step_seconds(run))


def per_second(run: Measured, what: str) -> float:
    """Rollouts or trained tokens of the steps after the first, by their seconds."""
    return sum(getattr(step, what) for step in run.steps[1:]) / sum(step_seconds(run))


def sampled_share(run: Measured) -> float:
    return sum(step.sampled for step in run.steps) / sum(step.trained for step in run.steps)
