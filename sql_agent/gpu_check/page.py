"""Writes the page: a table of stages, what each found, the memory beside its estimate, and the ends of failed logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sql_agent.gpu_check.stages import Result

METRICS = {
    "time/rollout_s": "rollouts, s",
    "time/log_prob_s": "old log-probs, s",
    "time/update_s": "update, s",
    "time/weight_sync_s": "weight sync, s",
    "time/step_s": "step, s",
    "perf/total_num_tokens": "tokens trained on",
    "perf/throughput": "tokens of the step a second",
    "engine/probs_diff_mean": "probability of a sampled token, sampler against trainer: mean difference",
    "engine/probs_diff_max": "... largest difference",
    "engine/kl_k3": "... k3",
    "actor/perf/max_memory_allocated_gb": "memory of the trainer's tensors at most, GiB",
    "actor/perf/max_memory_reserved_gb": "... held by torch, GiB",
}
"""Metrics of a train step that the page shows, and what they are."""


def write_page(
    title: str,
    machine: Mapping[str, str],
    results: Sequence[Result],
    steps: Mapping[str, Mapping[str, float]],
    estimate: str,
    stages: int,
) -> str:
    """
    Args:
        results: of the stages so far.
        steps: the metrics of each train step, by what the page calls it.
        estimate: of the memory that a GPU needs, in words.
        stages: how many there are.
    """
    passed = sum(result.state == "ok" for result in results)
    parts = [
        f"# {title}",
        f"{passed} of {stages} stages passed.",
        "## Machine",
        _table(("what", "found"), machine.items()),
        "## Stages",
        _table(("stage", "result", "seconds", "found"), map(_row, results)),
    ]
    if steps:
        names = [name for name in METRICS if any(name in metrics for metrics in steps.values())]
        rows = [(METRICS[name], *(_number(metrics.get(name)) for metrics in steps.values())) for name in names]
        parts += ["## Train steps", _table(("what", *steps), rows)]
    parts += ["## Memory, estimated before the run", estimate]
    for result in results:
        if result.state != "ok":
            fence = "`" * 4  # a log may hold three of them
            parts += [f"## {result.name}: {result.state}", result.why, f"{fence}text\n{result.tail}\n{fence}"]
    return "\n\n".join(parts) + "\n"


def _row(result: Result) -> tuple[str, ...]:
    found = [f"{name} {value}" for name, value in result.found.items()] or [result.why]
    if result.peak is not None:
        found.append(f"of a GPU {result.peak / 2**30:.1f} GiB were taken at most")
    return result.name, result.state, f"{result.seconds:.0f}", "; ".join(found)


def _table(header: Sequence[str], rows: Any) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
