"""Actor update and log-probs under our settings against the prototype's, on the same rows.

Settings are added one by one, each measured in a fresh process (`scripts.bench.update_worker`), so the table says what
each one gives. Prototype: one OpenMP thread, as Ray sets it; micro batches of 8 rows; every row padded to 384 tokens;
verl's own functions. Ours: what `to_verl` says.
"""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.machine import free_port
from scripts.bench.children import answer, python, say, started
from scripts.bench.report import Row
from sql_agent.config import load_config
from sql_agent.verl_side.config import worker_environment

MAX_TOKENS = 384
"""Prompt and response together in the prototype's runs; the rows fit into it."""
REPEATS = 5
PADDED_MICRO_BATCHES = {
    "actor_rollout_ref.actor.use_dynamic_bsz": False,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 8,
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": False,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 8,
    "actor_rollout_ref.model.use_remove_padding": False,
    "actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
}
"""The prototype's command line, where it differs from `to_verl`."""
GROUPS, GROUP_SIZE = 8, 4
UpdateRow = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""Ids of the prompt, ids of the response, its mask."""


@dataclass(frozen=True)
class Setting:
    name: str
    threads: int
    pad_to: int | None = None
    """Width of every row; None: the longest row's."""
    upstream: bool = False
    """verl's own engine and transformers' own attention, not what `sql_agent.verl_side.plugin` puts in their place."""
    verl: Mapping[str, Any] = field(default_factory=dict)
    more: tuple[str, ...] = ()
    """Further settings of ours."""


def settings(cores: int) -> list[Setting]:
    """From the prototype's to ours; the first and the last are compared."""
    padded = {"upstream": True, "verl": PADDED_MICRO_BATCHES}
    return [
        Setting("prototype's settings", 1, MAX_TOKENS, **padded),
        Setting("+ threads = cores", cores, MAX_TOKENS, **padded),
        Setting("+ batch as wide as its longest row", cores, **padded),
        Setting("our settings on one thread", 1),
        Setting("our settings", cores),
    ]


def row_lengths() -> list[tuple[int, int]]:
    """(prompt, response) tokens of 32 rollouts, spread as in a first step of the small policy: most end after two
    short turns, one in eight runs on until something cuts it (here the prototype's limit)."""
    size = GROUPS * GROUP_SIZE
    prompts = [56 + 50 * (i // GROUP_SIZE) // (GROUPS - 1) for i in range(size)]  # one task per group
    longest = MAX_TOKENS - max(prompts)
    # 11 has no factor in common with 32: the response lengths are mixed over the groups
    responses = [longest if i % 8 == 7 else 40 + 110 * (11 * i % size) // size for i in range(size)]
    return list(zip(prompts, responses, strict=True))


def random_rows(lengths: Sequence[tuple[int, int]]) -> list[UpdateRow]:
    """Random ids, every response token trained."""
    draw = random.Random(0)
    rows = []
    for prompt, response in lengths:
        ids = [draw.randrange(10, 1000) for _ in range(prompt + response)]
        rows.append((ids[:prompt], ids[prompt:], [1] * response))
    return rows


def measure(model: Path, folder: Path) -> list[Row]:
    lengths = row_lengths()
    rows, log = random_rows(lengths), folder / "update.log"
    results = {
        setting.name: run_worker({"rows": rows}, model, log, setting, repeats=REPEATS)["rows"]
        for setting in settings(os.cpu_count() or 1)
    }
    check_same_log_probs({name: result["log_prob_sum"] for name, result in results.items()})
    return update_rows(sum(prompt + response for prompt, response in lengths), results)


def run_worker(
    batches: Mapping[str, Sequence[UpdateRow]], model: Path, log: Path, setting: Setting, *, repeats: int
) -> dict[str, Any]:
    """What `scripts.bench.update_worker` measured of each batch; `GROUP_SIZE` divides the number of its rows."""
    overrides = [f"data.train_batch_size={GROUPS}", f"rollout.group_size={GROUP_SIZE}"]
    overrides += [f"engine.train_threads={setting.threads}", f"model={model}", *setting.more]
    spec = {
        "settings": overrides,
        "verl": dict(setting.verl),
        "upstream": setting.upstream,
        "model": str(model),
        "batches": batches,
        "pad_to": setting.pad_to,
        "repeats": repeats,
        "port": free_port(),
    }
    environment = worker_environment(load_config(None, overrides), cpu=True)
    if setting.upstream:
        environment["VERL_ENGINE_DEVICE"] = "cuda"  # the name of verl's own engine, which runs on a CPU too
    with started(python("scripts.bench.update_worker"), log, environment, talks=True) as worker:
        say(worker, spec)
        return answer(worker, log)


def check_same_log_probs(sums: Mapping[str, float]) -> None:
    """The settings may differ in speed only.

    Raises:
        RuntimeError: two of them computed other log-probs from the same weights and rows.
    """
    values = list(sums.values())
    if max(values) - min(values) > 1e-4 * abs(values[0]):
        raise RuntimeError(f"the settings disagree on the sum of all log-probs, so their times mean nothing: {sums}")


def update_rows(tokens: int, results: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Tokens/s of each setting and the ratio of the last to the first.

    Args:
        tokens: in the rows, padding left out.
        results: per setting, `log_probs_s` and `update_s`, one value per repetition; the medians count.
    """
    speeds = {name: tokens / (median(r, "log_probs_s") + median(r, "update_s")) for name, r in results.items()}
    first, *_, last = results
    limit = "matrix products of a model this small, FSDP around them"
    rows = [Row("our tokens/s / the prototype's", speeds[last] / speeds[first], "x", 4.0, "at least", limit)]
    for name, result in results.items():
        parts = f"log-probs {median(result, 'log_probs_s'):.2f} s, update {median(result, 'update_s'):.2f} s"
        rows.append(Row(f"... {name}", speeds[name], "tokens/s", limit=parts))
    return rows


def median(result: Mapping[str, Any], name: str) -> float:
    return statistics.median(result[name])
