"""Detects that sampler and trainer give the sampled tokens different probabilities.

If they do, the tokens were not sampled from the policy, and the update is off-policy without correction. In float32
both agree to 1e-5, so one token that differs is a fault. In bfloat16 single tokens differ by 0.1 and more without a
fault, since a logit between 16 and 32 is rounded to an eighth, so only the mean difference is a sign. Small faults stay
below that limit, for example a sampler with top-p 0.9, or weights that are a step or two old.
"""

from __future__ import annotations

from collections.abc import Mapping

# The watched metric, a difference of probabilities, and its highest healthy value, by the sampler's dtype.
LIMITS = {
    # a healthy run on a CPU: 1e-5; top_p of 0.9: 0.1; a step without weight sync, small policy: 0.3 (doc/faithful.md)
    "float32": ("engine/probs_diff_max", 1e-3),
    # five times what a healthy run in bfloat16 showed, 4e-3 (verl-project/verl-omni issue 637, FSDP2 and vLLM)
    "bfloat16": ("engine/probs_diff_mean", 2e-2),
}


def engine_alarm(metrics: Mapping[str, float], dtype: str) -> dict[str, float]:
    """`engine/alarm`, 1 or 0; {} if nothing was compared (no trained token, or no log-probs of the sampler).

    Args:
        metrics: of one train step, under our names.
        dtype: the sampler's; a dtype that is not in `LIMITS` has bfloat16's limit.
    """
    name, limit = LIMITS.get(dtype, LIMITS["bfloat16"])
    if not metrics.get("training/rollout_probs_diff_valid"):
        return {}
    return {"engine/alarm": float(not metrics[name] <= limit)}  # NaN raises the alarm too
