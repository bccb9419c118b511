"""Writes a step's metrics: to metrics.jsonl always, to the command's progress line, and to verl's sinks on request.

verl calls `Tracking.log` once per step. `RunTracking` adds the rollout manager's metrics and renames those that people
watch (doc/operate/reading_a_run.md). A sink whose package is not installed is left out with a warning.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from agentgrpo.outputs import append_line, sync
from agentgrpo.run_folder import drop_torn_line, earlier_steps
from sql_agent.source.metrics import RewardHackingAlarm
from sql_agent.source.run_context import RunContext

logger = logging.getLogger(__name__)

# The watched metric, a difference of probabilities, and its highest healthy value, by the sampler's dtype. In float32
# sampler and trainer agree to 1e-5, so one token that differs is a fault. In bfloat16 single tokens differ by 0.1 and
# more without a fault, since a logit between 16 and 32 is rounded to an eighth, so only the mean difference is a sign.
# Small faults stay below that limit, for example a sampler with top-p 0.9, or weights that are a step or two old.
HEALTHY = {
    # a healthy run on a CPU: 1e-5; top_p of 0.9: 0.1; a step without weight sync, small policy: 0.3
    "float32": ("engine/probs_diff_max", 1e-3),
    # five times what a healthy run in bfloat16 showed, 4e-3 (verl-project/verl-omni issue 637, FSDP2 and vLLM)
    "bfloat16": ("engine/probs_diff_mean", 2e-2),
}
# verl's names and ours; all other metrics keep verl's name.
RENAMED = {
    "actor/pg_loss": "policy/loss",
    "actor/pg_clipfrac": "policy/clip_frac",
    "actor/ppo_kl": "policy/kl_k1",
    "actor/kl_loss": "policy/kl_k3",
    "actor/entropy": "policy/entropy",
    "actor/grad_norm": "policy/grad_norm",
    "actor/lr": "policy/learning_rate",
    "actor/skipped_updates": "policy/skipped_updates",
    "training/rollout_probs_diff_max": "engine/probs_diff_max",
    "training/rollout_probs_diff_mean": "engine/probs_diff_mean",
    "rollout_corr/kl": "engine/kl_k1",
    "rollout_corr/k3_kl": "engine/kl_k3",
    "timing_s/gen": "time/gen_s",
    "timing_s/old_log_prob": "time/log_prob_s",
    "timing_s/update_actor": "time/update_s",
    "timing_s/update_weights": "time/weight_sync_s",
    "timing_s/save_checkpoint": "time/checkpoint_s",
    "timing_s/testing": "time/validation_s",
    "timing_s/step": "time/step_s",
}


def engine_alarm(metrics: Mapping[str, float], dtype: str) -> dict[str, float]:
    """`engine/alarm`, 1 or 0; {} if nothing was compared (no trained token, or no log-probs of the sampler).

    If sampler and trainer give the sampled tokens different probabilities, the tokens were not sampled from the policy,
    and the update is off-policy without correction.

    Args:
        metrics: of one train step, under our names.
        dtype: the sampler's; a dtype that is not in `HEALTHY` has bfloat16's limit.
    """
    name, limit = HEALTHY.get(dtype, HEALTHY["bfloat16"])
    if not metrics.get("training/rollout_probs_diff_valid"):
        return {}
    return {"engine/alarm": float(not metrics[name] <= limit)}  # NaN raises the alarm too


def rename_verl_metrics(metrics: dict[str, Any]) -> dict[str, float]:
    """Scalars only."""
    return {RENAMED.get(k, k): float(v) for k, v in metrics.items() if isinstance(v, int | float) or hasattr(v, "item")}


def make_tracking(context: RunContext, emit: Callable[[dict[str, Any]], None]) -> type:
    """A replacement for `verl.utils.tracking.Tracking` that belongs to this run.

    Args:
        context: its `step_metrics` are logged and emptied at each step.
        emit: receives `{"event": "step", "step", "metrics"}`; the driver adds `steps` for the command's progress line.
    """
    from verl.utils.tracking import Tracking

    path = context.run_dir / "metrics.jsonl"
    drop_torn_line(path)
    alarm = RewardHackingAlarm(earlier_steps(path))

    class RunTracking(Tracking):  # type: ignore[misc]
        def __init__(self, project_name: str, experiment_name: str, default_backend: Any, config: Any) -> None:
            super().__init__(project_name, experiment_name, default_backend, config)
            self._dtype = str(config["actor_rollout_ref"]["rollout"]["dtype"])

        def log(self, data: dict[str, Any], step: int, backend: Any = None) -> None:
            metrics = rename_verl_metrics(data) | context.step_metrics
            context.step_metrics.clear()
            metrics |= alarm.look(step, metrics) | engine_alarm(metrics, self._dtype)
            # JSON has no NaN
            known = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
            append_line(path, json.dumps({"train_step": step, "at": time.time(), **known}))
            sync(path)  # before the checkpoint of this step is sealed
            super().log(metrics, step, backend)
            emit({"event": "step", "step": step, "metrics": metrics})

    return RunTracking
