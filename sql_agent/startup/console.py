"""Prints a training run's progress: one line per phase, one per step, and alarms. Leaves out log files."""

from __future__ import annotations

import shlex
import time
from typing import Any

import psutil

from sql_agent.config import TrainConfig
from sql_agent.rollouts.reward_hacking_alarm import WINDOW


class Console:
    """Prints the events of `sql_agent.lightning.algorithm`."""

    def __init__(self, cfg: TrainConfig) -> None:
        self.cfg, self.started = cfg, psutil.Process().create_time()
        self._alarmed: set[str] = set()

    def show(self, event: dict[str, Any]) -> None:
        seconds = time.time() - self.started  # since the command started, imports included
        match event["event"]:
            case "phase":
                print(f"[{seconds:6.1f} s] {event['name']}", flush=True)
            case "step":
                line = step_line(event["step"], self.cfg.trainer.steps, event["metrics"])
                print(f"[{seconds:6.1f} s] {line}", flush=True)
                alarmed = {name for name in ALARMS if event["metrics"].get(name, name in self._alarmed)}
                for name in alarmed - self._alarmed:
                    print(f"[{seconds:6.1f} s] ALARM: {ALARMS[name]}", flush=True)
                self._alarmed = alarmed
            case "finished":
                run = shlex.quote(str(self.cfg.run_dir))
                print(f"[{seconds:6.1f} s] done", flush=True)
                print(
                    f"rollouts: {run}/trajectories; all of it on one page: python -m scripts.report {run}", flush=True
                )
            case "failed":
                print(f"[{seconds:6.1f} s] failed: {event['error']}", flush=True)


ALARMS = {
    "reward_model/alarm": f"over the last {WINDOW} steps the reward model's score rose while correctness fell; the "
    "policy learns to please the scorer. Read the trajectories; lower reward_model.weight or train the scorer on them",
    "engine/alarm": "sampler and trainer give the sampled tokens different probabilities, so the policy is trained on "
    "samples that are not its own. Compare engine/kl_k3 over the steps: it grows if weights do not reach the sampler, "
    "and stays constant if the sampler's dtype or template differs",
}
"""Messages by metric, printed each time that the metric changes to 1."""
LINE = [
    ("reward/mean", "reward {:.3f}"),
    ("rollout/success", "success {:.1%}"),
    ("reward_model/score_mean", "score {:.2f}"),
    ("group/zero_std_frac", "no spread {:.0%}"),
    ("policy/kl_k1", "KL {:.1e}"),
    ("policy/entropy", "entropy {:.3f}"),
    ("policy/clip_frac", "clip {:.3f}"),
    ("policy/grad_norm", "grad {:.2f}"),
    ("val/rollout/success", "held-out success {:.1%}"),
]


def step_line(step: int, steps: int, metrics: dict[str, float]) -> str:
    """Return the numbers of one step as a line; numbers that were not measured are left out."""
    parts = [form.format(metrics[name]) for name, form in LINE if name in metrics]
    if lost := metrics.get("reward/unjudged_frac", 0.0):
        parts.append(f"unjudged {lost:.0%}")
    if unscored := metrics.get("reward_model/unscored_frac", 0.0):
        parts.append(f"without score {unscored:.0%}")
    if "time/step_s" in metrics:
        phases = [("rollouts", "time/gen_s"), ("log-probs", "time/log_prob_s"), ("update", "time/update_s")]
        inner = ", ".join(f"{label} {metrics[name]:.1f}" for label, name in phases if name in metrics)
        parts.append(f"{metrics['time/step_s']:.1f} s ({inner})")
    return f"step {step}/{steps}  " + "  ".join(parts)
