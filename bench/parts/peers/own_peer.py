"""The command that trains with this project, and what it has done so far."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from bench.parts.peers.order import REWARD, SEED, Order, read_lines


def command(order: Order, max_off_policy_steps: int) -> list[str]:
    sizes = order.sizes
    settings = {
        "data.train_batch_size": sizes.groups,
        "data.max_response_tokens": sizes.rollout_tokens,
        "data.val_limit": max(sizes.held_out, 1),
        "agent.max_tokens": sizes.reply_tokens,
        "rollout.group_size": sizes.group_size,
        "rollout.max_resamples": 0,  # every group is trained, as the peers do
        "rollout.reward": REWARD,
        "rollout.trajectories_per_step": 0,
        "loss.scale": "false",
        "optim.learning_rate": sizes.learning_rate,
        "engine.precision": sizes.precision,
        "engine.gradient_checkpointing": "false",
        "trainer.max_off_policy_steps": max_off_policy_steps,
        "trainer.steps": 1000,  # it is ended from outside
        "trainer.val_before_train": "false",
        "trainer.val_every": 0,
        "trainer.save_every": int(bool(sizes.held_out)),
        "trainer.keep_checkpoints": 1000,
        "seed": SEED,
    }
    files = ["--train-file", str(order.tasks), "--val-file", str(order.held_out_tasks)]
    return [
        *(sys.executable, "sql_agent/train_sql_agent.py", "--device", "cpu", "--llm-proxy"),
        *("--model", str(order.model), "--run-dir", str(run_dir(order)), *files),
        *(text for name, value in settings.items() for text in ("--set", f"{name}={value}")),
    ]


def run_dir(order: Order) -> Path:
    return order.folder / "run"


def steps(order: Order) -> list[dict[str, Any]]:
    """The steps so far, in the form that `bench.parts.peers.run` reads."""
    return [step_of(order, line) for line in read_lines(run_dir(order) / "metrics.jsonl")]


def step_of(order: Order, line: dict[str, Any]) -> dict[str, Any]:
    """
    Args:
        line: of metrics.jsonl. What is not judged is a masked row, and not trained.
    """
    rollouts = round(line["rollout/count"] * (1 - line["reward/unjudged_frac"]))
    trained = round(line["rollout/sampled_tokens"] * rollouts)
    checkpoint = run_dir(order) / "checkpoints" / f"global_step_{line['train_step']}"
    return {
        # with a lag rollouts go on meanwhile, so these seconds are not free
        "save_s": 0.0 if "lag/mean" in line else line.get("time/checkpoint_s", 0.0),
        "weights": str(checkpoint / "actor" / "huggingface"),
        "rollouts": rollouts,
        "trained": trained,
        "sampled": trained,
    }
