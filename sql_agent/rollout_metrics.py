"""Numbers of one batch of rollouts; pure. `doc/metrics.md` says what each one means and what is healthy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sql_agent.rollout_manager import Result


def batch_metrics(results: Sequence[Result]) -> dict[str, float]:
    """Means are over judged rollouts, shares over all of them."""
    total = len(results)
    judged = [r for r in results if r.reward is not None and r.outcome is not None]
    metrics: dict[str, float] = {"reward/unjudged_frac": 1 - len(judged) / total, "rollout/count": float(total)}
    for reason, count in Counter(r.lost for r in results if r.lost).items():
        metrics[f"rollout/lost/{reason}"] = float(count)
    if not judged:
        return metrics
    rewards = np.array([r.reward for r in judged], dtype=float)
    metrics |= {"reward/mean": rewards.mean(), "reward/std": rewards.std()}
    parts: defaultdict[str, list[float]] = defaultdict(list)
    for result in judged:
        assert result.outcome is not None
        for name, value in result.outcome.metrics.items():
            parts[name].append(value)
    metrics |= {
        "rollout/success": float(np.mean(parts["success"])),
        "rollout/malformed_calls": float(np.mean(parts["malformed_calls"])),
        "rollout/seconds": float(np.mean(parts["seconds"])),
    }
    metrics |= {
        f"reward/{name.removeprefix('reward_')}": float(np.mean(v))
        for name, v in parts.items()
        if name.startswith("reward_")
    }
    for reason, count in Counter(r.outcome.stop_reason for r in judged if r.outcome).items():
        metrics[f"rollout/stop/{reason}"] = count / len(judged)
    return {k: float(v) for k, v in (metrics | _shape_metrics(judged) | _group_metrics(results)).items()}


def _shape_metrics(judged: Sequence[Result]) -> dict[str, float]:
    rows = [r.trajectory for r in judged if r.trajectory is not None]
    metrics = {
        "rollout/turns": float(np.mean([row.num_turns + row.dropped_turns for row in rows])),
        "rollout/sampled_tokens": float(np.mean([sum(row.response_mask) for row in rows])),
        "rollout/response_tokens": float(np.mean([len(row.response_ids) for row in rows])),
        "prefix/broken_frac": sum(row.prefix_break is not None for row in rows) / len(rows),
        "prefix/overflow_frac": sum(row.dropped_turns > 0 and row.prefix_break is None for row in rows) / len(rows),
    }
    for cause, count in Counter(row.prefix_break for row in rows if row.prefix_break).items():
        metrics[f"prefix/break/{cause}"] = float(count)
    return metrics


def _group_metrics(results: Sequence[Result]) -> dict[str, float]:
    """Groups of at least two rows; validation, one row per task, has none."""
    groups: defaultdict[str, list[float | None]] = defaultdict(list)
    for result in results:
        groups[result.group].append(result.reward)
    grouped = [[r for r in rewards if r is not None] for rewards in groups.values() if len(rewards) > 1]
    if not grouped:
        return {}
    flat = [rewards for rewards in grouped if len(rewards) > 1 and max(rewards) == min(rewards)]
    return {
        "group/count": float(len(grouped)),
        "group/zero_std_frac": len(flat) / len(grouped),
        "group/all_right_frac": sum(rewards[0] > 0 for rewards in flat) / len(grouped),
        "group/all_wrong_frac": sum(rewards[0] <= 0 for rewards in flat) / len(grouped),
        "group/lone_frac": sum(len(rewards) < 2 for rewards in grouped) / len(grouped),
    }
